"""Autothrottle's Captain, step by step with numbers worked out by hand; microseconds per period of 100 ms."""

import numpy as np
import pytest

from tests.bench.escra.peers import captain
from tests.bench.escra.peers.captain import Captain, CaptainState
from tests.bench.escra.profile import ContainerProfile
from tests.support.peer_views import cpu_view

ROW = np.arange(1)


class OneContainer:
    """A container, its Captain, and an allocator that does what it wishes."""

    def __init__(self, profile_us: tuple[int, ...], target: float = 0.1, replay_periods: int = 0) -> None:
        self.state, self.setting = CaptainState(1), Captain(target, replay_periods)
        captain.start(self.state, ROW, [ContainerProfile(profile_us, (0,) * len(profile_us))], self.setting)
        self.quota_us = round(float(self.state.limit_us[0]))

    def run(self, periods: int, used_us: int, throttled: int = 0, limit_us: int = 10_000_000) -> int:
        """So many periods, the first of them throttled; returns the quota after them."""
        for period in range(periods):
            view = cpu_view([used_us], [self.quota_us], [period < throttled], limit_us=limit_us)
            self.quota_us = int(captain.decide(self.state, view, ROW, self.setting).target_us[0])
        return self.quota_us


def test_it_starts_from_the_last_fifty_periods_with_a_margin_of_three_deviations() -> None:
    """25 x 1 ms and 25 x 3 ms: max 3 ms, stdev sqrt(50 / 49) ms = 1.010153 ms: 3 + 3 x 1.010153 = 6.030458 ms."""
    assert OneContainer((90_000,) * 7 + (1_000,) * 25 + (3_000,) * 25).quota_us == 6_030


def test_more_than_three_times_the_target_raises_by_what_is_more() -> None:
    """Target 0.1, throttled in 4 of 10: 1 + (0.4 - 0.3) = 1.1 times 20 ms; not before the tenth period."""
    one = OneContainer((20_000,) * 50)
    assert one.quota_us == 20_000
    assert one.run(9, 20_000, throttled=4) == 20_000
    assert one.run(1, 20_000) == 22_000
    assert one.state.margin[0] == pytest.approx(3 + 0.4 - 0.1)


def test_three_times_the_target_is_no_reason_and_flags_start_anew_after_a_decision() -> None:
    one = OneContainer((20_000,) * 50)
    one.run(10, 20_000, throttled=3)
    assert one.quota_us == 20_000
    assert one.run(10, 20_000, throttled=0) == 20_000


def test_a_cut_to_the_candidate_at_most_by_half_and_only_beyond_a_tenth() -> None:
    """Use falls from 20 to 8 ms; for four decisions 20 ms is remembered.

    At the fifth the margin is 3 - 5 x 0.1 = 2.5, the deviation 0: the candidate is 8 ms, but not below half of 20.
    """
    one = OneContainer((20_000,) * 50)
    assert one.run(49, 8_000) == 20_000
    assert one.run(1, 8_000) == 10_000
    assert one.state.margin[0] == pytest.approx(2.5)
    assert one.run(10, 8_000) == 8_000, "8 <= 0.9 x 10"
    assert one.run(50, 7_500) == 8_000, "7.5 > 0.9 x 8"


def test_a_cut_that_hurts_is_rolled_back_beyond_what_was_before() -> None:
    """20 -> 10 ms as above. Throttled in 4 of the 10 flags: 2 x 20 - 10 = 30 ms, margin 2.5 + 0.4 - 0.1; only once."""
    one = OneContainer((20_000,) * 50)
    one.run(50, 8_000)
    assert one.run(3, 10_000, throttled=3) == 10_000
    assert one.run(1, 10_000, throttled=1) == 30_000
    assert one.state.margin[0] == pytest.approx(2.8)
    assert one.run(5, 30_000, throttled=5) == 30_000, "not after a cut any more"


def test_the_margin_never_falls_below_zero() -> None:
    one = OneContainer((20_000,) * 50, target=1.0)
    one.run(100, 20_000)
    assert one.state.margin[0] == 0


def test_it_stops_at_the_hosts_processors_and_at_a_hundredth_core() -> None:
    one = OneContainer((190_000,) * 50)
    assert one.run(10, 190_000, throttled=10) == 200_000
    idle = OneContainer((5,) * 50)
    assert idle.quota_us == 1_000


def test_where_the_application_is_short_it_goes_on_from_what_it_got() -> None:
    """20 ms, the application has 15: after ten throttled periods 15 x (1 + 1 - 0.3) = 25.5 is wished, 15 are there."""
    one = OneContainer((20_000,) * 50)
    assert one.run(1, 20_000, limit_us=15_000) == 15_000
    assert one.run(8, 15_000, throttled=8, limit_us=15_000) == 15_000
    assert one.run(1, 15_000, throttled=1, limit_us=26_000) == pytest.approx(15_000 * (1 + 0.9 - 0.3), abs=1)


def test_periods_without_a_sample_do_not_count() -> None:
    one = OneContainer((20_000,) * 50)
    for _ in range(30):
        view = cpu_view([20_000], [20_000], [True], fresh=[False])
        assert captain.decide(one.state, view, ROW, one.setting).target_us.tolist() == [20_000]


def test_without_a_profile_it_begins_with_what_was_ordered() -> None:
    one = OneContainer(())
    one.quota_us = 40_000
    assert one.run(1, 1_000) == 40_000
    assert one.run(9, 1_000) == 20_000, "no history: half at most"


def test_it_begins_with_what_it_has_learnt_from_the_profile() -> None:
    """Constant 20 ms, never throttled: 3 - 0.1 per second. After 15 s 1.5, after 150 s 0; the limit stays at 20 ms."""
    one = OneContainer((20_000,) * 120, replay_periods=150)
    assert (one.state.margin[0], one.quota_us) == (pytest.approx(1.5), 20_000)
    one = OneContainer((20_000,) * 120, replay_periods=1_500)
    assert (one.state.margin[0], one.quota_us) == (0, 20_000)


def test_the_greater_the_target_the_less_it_holds_after_the_replay() -> None:
    """Random demands around 10 ms: by its margin each Captain leaves out as much as its target lets it."""
    demands_us = tuple(np.random.default_rng(5).lognormal(np.log(10_000), 0.6, 240).astype(int).tolist())
    limits_us = [OneContainer(demands_us, target, captain.REPLAY_PERIODS).quota_us for target in (0.02, 0.06, 0.2)]
    assert limits_us == sorted(limits_us, reverse=True)
    assert max(demands_us) * 1.2 > limits_us[0] > 1.3 * limits_us[2]


def test_what_does_not_fit_waits_in_the_replay() -> None:
    """The profile's last 50 periods are idle, then 12 ms are asked for again and again: it ends above 12 ms."""
    one = OneContainer((12_000,) * 200 + (100,) * 50, replay_periods=200)
    assert one.quota_us >= 12_000

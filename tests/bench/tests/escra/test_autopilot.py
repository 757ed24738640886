"""Autopilot's recommender on examples worked out by hand.

The grid is 1 ms x 1.06 ** k. 10 ms lie at L40 = 10,285.7 us (L39 = 9,703.5), 20 ms at L52 = 20,696.9 (L51 = 19,525.3).
"""

import numpy as np
import pytest

from tests.bench.escra.peers import autopilot
from tests.bench.escra.peers.autopilot import CPU_GRID_US, GRID, Autopilot, RecommenderState, Weights
from tests.bench.escra.profile import ContainerProfile
from tests.support.peer_views import cpu_view, memory_sample

L40, L52 = 1_000 * 1.06**40, 1_000 * 1.06**52
ROW = np.arange(1)
SETTING = Autopilot(Weights(underrun=0.5, limit_change=0.0, model_change=0.0, cost_decay=0.5), window_periods=2)


def window(state: RecommenderState, *used_us: float, setting: Autopilot = SETTING) -> None:
    for value in used_us:
        autopilot.observe(state, ROW, np.array([value]), CPU_GRID_US, setting)


def part(matrix, number: int):
    return matrix[0, number * GRID : (number + 1) * GRID]


def test_mass_above_and_distance_weighted_mass_below() -> None:
    """Half of the samples at L40, half at L52: o = 1, 1/2, 0; u(L52) = 1/2 (1 - 10285.7 / 20696.9) = 0.2515."""
    state = RecommenderState(1)
    window(state, 10_000, 20_000)
    over, under = part(state.over, 0), part(state.under, 0)
    assert over[[39, 40, 51, 52]] == pytest.approx([1, 0.5, 0.5, 0])
    assert under[[39, 40, 52]] == pytest.approx([0, 0, 0.5 * (1 - L40 / L52)])
    assert under[52] == pytest.approx(0.2515, abs=1e-4)


def test_one_window_recommends_the_least_limit_above_all_samples() -> None:
    """At L40 both masses are 0; any less costs 1, a margin of 0.1 costs 0.5 (1 - L40 / L42) = 0.055."""
    state = RecommenderState(1)
    window(state, 10_000)
    assert state.limit[0] == 0, "half a window"
    window(state, 10_000)
    assert state.limit[0] == pytest.approx(L40)
    assert state.costs[0][:2] == pytest.approx([0, 0.5 * (1 - 1.06**-2)])


def test_models_that_forget_faster_move_first() -> None:
    """After a window at 20 ms: L40 costs d, L52 costs 0.5 (1 - d)(1 - L40 / L52) = 0.2515 (1 - d).

    d = 0.02: 0.02 against 0.246, stays. 0.1: 0.1 against 0.226, stays. 0.3: 0.3 against 0.176, 0.6: 0.6 against 0.101:
    both move. Costs of the models without a margin, half of it new: 0.01, 0.05, 0.088, 0.0503. The first is chosen.
    """
    state = RecommenderState(1)
    window(state, 10_000, 10_000)
    window(state, 20_000, 20_000)
    assert state.best[0] == pytest.approx([L40, L40, L52, L52])
    assert state.costs[0][::4] == pytest.approx([0.01, 0.05, 0.088, 0.0503], abs=1e-4)
    assert (state.model[0], state.limit[0]) == (0, pytest.approx(L40))


def test_what_goes_on_wins() -> None:
    """More windows at 20 ms: the model with d = 0.6 comes to cost nothing, the one with 0.02 costs more each time."""
    state = RecommenderState(1)
    window(state, 10_000, 10_000)
    for _ in range(4):
        window(state, 20_000, 20_000)
    assert state.limit[0] == pytest.approx(L52)


def test_a_price_on_changes_keeps_limits_and_models() -> None:
    """0.2 for each change: with d = 0.3 moving costs 0.176 + 0.2 > 0.3, with d = 0.6 still 0.101 + 0.2 < 0.6."""
    setting = Autopilot(Weights(0.5, 0.2, 0.2, 0.5), 2)
    state = RecommenderState(1)
    window(state, 10_000, 10_000, setting=setting)
    window(state, 20_000, 20_000, setting=setting)
    assert state.best[0] == pytest.approx([L40, L40, L40, L52])
    dear = Autopilot(Weights(0.5, 9.0, 9.0, 0.5), 2)
    state = RecommenderState(1)
    for used_us in (10_000, *[20_000] * 9):
        window(state, used_us, used_us, setting=dear)
    assert state.limit[0] == pytest.approx(L40)


def test_a_least_margin_lies_on_top_of_what_was_seen() -> None:
    """10,285.7 x 1.25."""
    state = RecommenderState(1)
    window(state, 10_000, 10_000, setting=Autopilot(Weights(0.5, 0.0, 0.0, 0.5, least_margin=0.25), 2))
    assert state.limit[0] == pytest.approx(1.25 * L40)


def test_a_throttled_sample_counts_for_more() -> None:
    """10 ms x 1.3 = 13 ms lie at L45 = 13,764.6 (L44 = 12,985.5), without throttling at L40."""
    for throttled, expected in ((False, L40), (True, 1_000 * 1.06**45)):
        state = RecommenderState(1)
        for _ in range(2):
            targets = autopilot.decide(state, cpu_view([10_000], [10_000], [throttled]), ROW, SETTING)
        assert targets.target_us.tolist() == [round(expected)]


def test_before_the_first_window_the_container_keeps_its_quota() -> None:
    targets = autopilot.decide(RecommenderState(1), cpu_view([10_000], [77_000]), ROW, SETTING)
    assert targets.target_us.tolist() == [77_000]


@pytest.mark.parametrize("periods", [1, 2, 31])
def test_it_starts_from_the_profile_however_short(periods) -> None:
    state = RecommenderState(1)
    autopilot.start_cpu(state, ROW, [ContainerProfile((10_000,) * periods, (0,) * periods)], SETTING)
    assert state.limit[0] == pytest.approx(L40)
    assert state.samples[0] == 0, "windows of the run begin with the run"


def test_many_profiles_of_different_lengths_are_watched_as_each_alone() -> None:
    """And as if their samples came one by one."""
    profiles = [ContainerProfile((10_000, 20_000) * half, (0,) * 2 * half) for half in (1, 9, 4)]
    together = RecommenderState(3)
    autopilot.start_cpu(together, np.arange(3), profiles, SETTING)
    for slot, profile in enumerate(profiles):
        alone, by_sample = RecommenderState(1), RecommenderState(1)
        autopilot.start_cpu(alone, ROW, [profile], SETTING)
        window(by_sample, *profile.used_us)
        for name in ("over", "under", "costs", "limit"):
            assert getattr(together, name)[slot] == pytest.approx(getattr(alone, name)[0])
            assert getattr(alone, name)[0] == pytest.approx(getattr(by_sample, name)[0])


def test_memory_has_a_grid_of_its_own() -> None:
    """100 MiB lie at 4 MiB x 1.07 ** 48 = 102.93 MiB (1.07 ** 47: 96.2)."""
    state, mib = RecommenderState(1), 1 << 20
    autopilot.start_memory(state, ROW, [ContainerProfile((0, 0), (100 * mib, 100 * mib))], SETTING)
    targets = autopilot.decide_memory(state, memory_sample([80 * mib], [500 * mib]), ROW, SETTING)
    assert targets.target_bytes[0] == pytest.approx(4 * mib * 1.07**48, abs=4096)


def test_beyond_the_grid_is_its_last_limit() -> None:
    state = RecommenderState(1)
    window(state, 1e9, 1e9)
    assert state.limit[0] == pytest.approx(CPU_GRID_US[-1])

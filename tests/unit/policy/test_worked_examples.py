"""The thesis' equations and our own, by hand. Microseconds per period."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from schemas.apps import AppSpec
from schemas.reasons import Reason
from services.allocator.cpu import escra as policy_escra
from services.allocator.cpu import waterfill as policy_waterfill
from services.allocator.cpu.escra import EscraState
from services.allocator.cpu.policy_interface import CpuParameters, CpuView
from services.allocator.cpu.waterfill import (
    GRACE_PERIODS,
    HEADROOM_SHARE,
    HEADROOM_US,
    HOLD_PERIODS,
    KEEP_PERIODS,
    PROBE_FACTOR,
    RECALL_PERIODS,
    WaterfillState,
)
from services.allocator.state.app_parameters import build_table
from tests.support.cfs_plant import decide, parameters


def view(
    quota: list[int], used: list[int], limit: int, throttled: list[bool] | None = None, throttled_us: int = 0
) -> CpuView:
    """One application; every row fresh; the quota is in the kernel and ordered."""
    q, u = np.array(quota, np.int64), np.array(used, np.int64)
    th = np.array(throttled or [False] * len(quota))
    return CpuView(
        app=np.zeros(len(q), np.int32),
        fresh=np.ones(len(q), np.bool_),
        used_us=u,
        unused_us=q - u,
        throttled_us=np.where(th, throttled_us, 0),
        throttled=th,
        quota_us=q,
        ordered_us=q,
        min_us=np.full(len(q), 1_000),
        cap_us=np.full(len(q), 400_000),
        node_idle_percent=np.full(len(q), -1),
        limit_us=np.array([limit]),
        params=parameters(1),
    )


def test_parameters_come_from_the_specification() -> None:
    spec = AppSpec(name="shop", cpu_limit=4, memory_limit=1 << 30, gamma=0.2, upsilon=20, kappa=0.8, window=10)
    table = build_table([spec.name], {spec.name: spec})
    params = CpuParameters(table.kappa, table.gamma_us, table.upsilon_share, table.window)
    assert (params.gamma_us[0], params.upsilon_share[0], params.kappa[0], params.window[0]) == (20_000, 0.2, 0.8, 10)


def test_escra_increase_by_the_thesis_formula() -> None:
    """Thesis: q' = q + mean(throttled) * upsilon * (limit - sum q): half of the window throttled, pool 100,000.

    50,000 + 5/10 * 0.20 * 100,000 = 60,000.
    """
    state, rows = EscraState(1), np.arange(1)
    for step in range(9):
        decide(policy_escra, state, view([50_000], [45_000], 150_000, [step >= 5]), rows)
    targets = decide(policy_escra, state, view([50_000], [50_000], 150_000, [True]), rows)
    assert targets.target_us.tolist() == [60_000]
    assert targets.reason.tolist() == [Reason.THROTTLED]
    assert (targets.measured[0], targets.threshold[0]) == (50_000, 50_000)


def test_escra_raises_by_at_least_a_tenth() -> None:
    """One throttle in ten with a pool of 20,000: 0.1 * 0.2 * 20,000 = 400; a tenth of 50,000 is 5,000."""
    state, rows = EscraState(1), np.arange(1)
    for _ in range(9):
        decide(policy_escra, state, view([50_000], [45_000], 70_000), rows)
    targets = decide(policy_escra, state, view([50_000], [50_000], 70_000, [True]), rows)
    assert targets.target_us.tolist() == [55_000]


def test_escra_release_by_the_thesis_formula() -> None:
    """Thesis: q' = q - kappa * mean(q - u). Unused 40,000 in every period: 100,000 - 0.8 * 40,000 = 68,000."""
    state, rows = EscraState(1), np.arange(1)
    for _ in range(9):
        decide(policy_escra, state, view([100_000], [60_000], 400_000), rows)
    targets = decide(policy_escra, state, view([100_000], [60_000], 400_000), rows)
    assert targets.target_us.tolist() == [68_000]
    assert targets.reason.tolist() == [Reason.UNUSED]
    assert (targets.measured[0], targets.threshold[0]) == (40_000, 8_000)


def test_escra_never_takes_the_same_slack_twice() -> None:
    """The thesis' formula subtracts a stale mean: 400 -> 120 -> -137 ms at a constant use of 50 ms (escra.md 6.3).

    Ours: min(mean, current). 400 - 0.8 * 350 = 120; then the ring counts 70 at most: 120 - 0.8 * 70 = 64;
    then 14 are left, which is below gamma (20).
    """
    state, rows, quota = EscraState(1), np.arange(1), 400_000
    seen = []
    for _ in range(5):
        quota = int(decide(policy_escra, state, view([quota], [50_000], 400_000), rows).target_us[0])
        seen.append(quota)
    assert seen == [120_000, 64_000, 64_000, 64_000, 64_000]


def test_escra_release_leaves_a_margin_above_the_use() -> None:
    """A kappa of 1 would take all of it: 1.05 * 60,000 = 63,000 stay."""
    state = EscraState(1)
    alone = replace(view([200_000], [60_000], 400_000), params=parameters(1, kappa=1.0))
    assert decide(policy_escra, state, alone, np.arange(1)).target_us.tolist() == [63_000]


def test_escra_shares_a_small_pool_in_proportion() -> None:
    """Raises in proportion to what each asks for, where the pool is too small.

    First sample, all throttled: the means are 1. Each wishes 0.2 * 20,000 = 4,000, but at least a tenth of its quota:
    10,000 + 4,000 + 5,000 = 19,000 fit into 20,000. Into a pool of 9,500 half of each fits.
    """
    quota = [100_000, 40_000, 50_000]
    ample = view(quota, quota, 210_000, [True] * 3)
    assert decide(policy_escra, EscraState(3), ample, np.arange(3)).target_us.tolist() == [110_000, 44_000, 55_000]
    scarce = view(quota, quota, 199_500, [True] * 3)
    assert decide(policy_escra, EscraState(3), scarce, np.arange(3)).target_us.tolist() == [105_000, 42_000, 52_500]


def test_escra_cuts_in_proportion_above_the_minimum_when_over_the_limit() -> None:
    """Quotas 101,000 and 51,000, limit 77,000: 75,000 too much of 150,000 above the minima: each keeps half of that."""
    over = view([101_000, 51_000], [101_000, 50_000], 77_000, [True, False])
    targets = decide(policy_escra, EscraState(2), over, np.arange(2))
    assert targets.target_us.tolist() == [51_000, 26_000]
    assert targets.reason.tolist() == [Reason.OVER_LIMIT] * 2
    assert (targets.measured[0], targets.threshold[0]) == (152_000, 77_000)


def test_waterfill_first_sample_with_an_ample_limit() -> None:
    """Level = 80,000; headroom max(12,000, 2,000): 92,000. The second: 10,000 + 2,000."""
    targets = decide(
        policy_waterfill, WaterfillState(2), view([200_000, 10_000], [80_000, 10_000], 400_000), np.arange(2)
    )
    assert targets.target_us.tolist() == [92_000, 12_000]
    assert targets.reason.tolist() == [Reason.UNUSED, Reason.DEMAND_ROSE]
    assert (targets.measured[0], targets.threshold[0]) == (120_000, 12_000)


def test_comfortable_container_is_not_raised_for_a_little_more_headroom() -> None:
    """1,000 of 2,500 used: a target of 3,000 is 20 % more, less than LOW_USE_RAISE_SHARE. Throttled, it is raised."""
    before = view([200_000, 2_500], [80_000, 1_000], 400_000)
    targets = decide(policy_waterfill, WaterfillState(2), before, np.arange(2))
    assert targets.target_us.tolist() == [92_000, 2_500]


def test_waterfill_probes_while_throttled() -> None:
    """Estimate 30,000 + 0.1 * 70,000 = 37,000; need 37,000 + 5,550; probe 2 * 30,000 = 60,000."""
    throttled = view([30_000], [30_000], 400_000, [True], throttled_us=70_000)
    targets = decide(policy_waterfill, WaterfillState(1), throttled, np.arange(1))
    assert targets.target_us.tolist() == [60_000]
    assert (targets.reason[0], targets.measured[0], targets.threshold[0]) == (Reason.THROTTLED, 37_000, 30_000)


def test_waterfill_rations_headroom_in_proportion() -> None:
    """Demands 80,000 + 40,000 = 120,000; headroom 12,000 + 6,000 = 18,000, room for it 9,000: half of each."""
    targets = decide(
        policy_waterfill, WaterfillState(2), view([64_000, 64_000], [80_000, 40_000], 129_000), np.arange(2)
    )
    assert targets.target_us.tolist() == [86_000, 43_000]
    assert targets.reason.tolist() == [Reason.DEMAND_ROSE, Reason.SHARED_SCARCITY]


def test_waterfill_tight_limit_gives_the_minimum_and_then_weighs() -> None:
    """Demands above the minimum of 1,000: 160,000 and 10,000; weights as 16 ** 0.75 : 1 = 8 : 1.

    The limit of 92,000 leaves 90,000 above the minima, 10,000 per weight: the small one is satisfied exactly, the
    large one gets 80,000.
    """
    demanding = view([46_000, 46_000], [161_000, 11_000], 92_000)
    targets = decide(policy_waterfill, WaterfillState(2), demanding, np.arange(2))
    assert np.abs(targets.target_us - [81_000, 11_000]).max() <= 2


def quotas_after_a_peak(state: WaterfillState, periods: int, limit: int = 400_000) -> list[int]:
    """Targets for a container that uses 20,000 after one period with 100,000, each ordered in its turn."""
    rows, quota, targets = np.arange(1), limit, []
    for period in range(periods + 1):
        used = 20_000 if period else 100_000
        quota = int(decide(policy_waterfill, state, view([quota], [used], limit), rows).target_us[0])
        targets.append(quota)
    return targets[1:]


def test_waterfill_holds_a_peak_for_a_while() -> None:
    targets = quotas_after_a_peak(WaterfillState(1), 4 * HOLD_PERIODS + 12)  # the level itself takes twelve to fall
    first = next(period for period, target in enumerate(targets) if target < above(100_000))
    assert HOLD_PERIODS - 1 <= first < 2 * HOLD_PERIODS
    assert targets[first - 1] == above(100_000)
    assert targets[-1] <= above(20_000) * 1.1


def test_waterfill_holds_a_peak_for_longer_where_peaks_do_not_fit_together() -> None:
    """Scarce: the one level, 115,000 with its headroom, is more than 0.9 of the limit of 120,000."""
    targets = quotas_after_a_peak(WaterfillState(1), 2 * KEEP_PERIODS + 12, limit=120_000)
    first = next(period for period, target in enumerate(targets) if target < above(100_000))
    assert KEEP_PERIODS - 1 <= first < 2 * KEEP_PERIODS
    assert targets[-1] <= above(20_000) * 1.1


def test_a_single_period_makes_no_application_scarce() -> None:
    """The same peak after steady use: the level is 44,000 then, which fits well."""
    state, rows = WaterfillState(1), np.arange(1)
    for _ in range(20):
        decide(policy_waterfill, state, view([23_000], [20_000], 120_000), rows)
    targets = quotas_after_a_peak(state, 2 * HOLD_PERIODS + 12, limit=120_000)
    first = next(period for period, target in enumerate(targets) if target < above(100_000))
    assert first < 2 * HOLD_PERIODS
    assert targets[-1] <= above(20_000) * 1.1


def test_waterfill_serves_what_is_used_before_what_is_kept() -> None:
    """The first one keeps 92,000 of 120,000 until the second one burns, which then has its level first."""
    state, rows = WaterfillState(2), np.arange(2)
    decide(policy_waterfill, state, view([100_000, 20_000], [80_000, 5_000], 120_000), rows)
    kept = decide(policy_waterfill, state, view([92_000, 28_000], [10_000, 5_000], 120_000), rows).target_us
    assert kept[0] == above(80_000)
    burning = view([92_000, 28_000], [10_000, 28_000], 120_000, [False, True], throttled_us=70_000)
    first, second = decide(policy_waterfill, state, burning, rows).target_us.tolist()
    assert first < above(80_000)
    assert second >= 28_000 + 7_000  # all that was seen of its demand
    assert first + second <= 120_000


def test_waterfill_gives_a_throttled_container_at_once_what_it_had_seconds_ago() -> None:
    """The remembered peak in one step, where doubling would take three; after 30 s nothing of it is known."""
    rows, seen = np.arange(1), []
    for rest in (2 * HOLD_PERIODS + 6, 2 * RECALL_PERIODS + HOLD_PERIODS):
        state = WaterfillState(1)
        quota = quotas_after_a_peak(state, rest)[-1]
        throttled = view([quota], [quota], 400_000, [True])
        seen.append((quota, int(decide(policy_waterfill, state, throttled, rows).target_us[0])))
    (_, recalled), (quota, doubled) = seen
    assert recalled == above(100_000)
    assert doubled == max(PROBE_FACTOR * quota, above(quota))


def test_waterfill_keeps_a_raise_until_a_whole_period_has_shown_what_is_used() -> None:
    """The sample after it tells of 12,000, used mostly under the old quota: too early to take 100,000 back."""
    state, rows = WaterfillState(1), np.arange(1)
    quota = quotas_after_a_peak(state, 2 * HOLD_PERIODS + 6)[-1]
    raised = int(decide(policy_waterfill, state, view([quota], [quota], 400_000, [True]), rows).target_us[0])
    after = [
        int(decide(policy_waterfill, state, view([raised], [12_000], 400_000), rows).target_us[0])
        for _ in range(GRACE_PERIODS + 1)
    ]
    assert [raised, *after[:-1]] == [above(100_000)] * (GRACE_PERIODS + 1)
    assert after[-1] <= above(quota) * 1.1


def test_a_sample_that_brings_nothing_new_does_not_use_up_the_grace() -> None:
    state, rows = WaterfillState(1), np.arange(1)
    decide(policy_waterfill, state, view([30_000], [30_000], 400_000, [True]), rows)
    silent = view([60_000], [0], 400_000)
    silent.fresh[0] = False
    for _ in range(5):
        decide(policy_waterfill, state, silent, rows)
    assert decide(policy_waterfill, state, view([60_000], [31_000], 400_000), rows).target_us.tolist() == [60_000]


def above(used_us: int) -> int:
    """Use with its headroom."""
    return used_us + int(max(HEADROOM_SHARE * used_us, HEADROOM_US))


def test_a_row_that_never_reported_keeps_what_it_has_but_counts() -> None:
    """Limit 100,000; the silent one holds 60,000: the other, asking for 100,000, gets 40,000."""
    two = view([30_000, 60_000], [80_000, 0], 100_000)
    two.fresh[1] = False
    targets = decide(policy_waterfill, WaterfillState(2), replace(two, limit_us=np.array([140_000])), np.arange(2))
    assert targets.target_us.tolist() == [80_000, 60_000]

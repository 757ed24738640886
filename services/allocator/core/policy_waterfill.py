"""CPU policy `waterfill`: estimate demand, remember peaks while a container is at work, share what there is.

The form of measured/policy.md section 4 without burst, reduced by simulation on its tuning half: one average
instead of three, no margin and no probing in the part that is served first, memory as a sliding maximum. Every
reduction was measured to cost nothing there, or to gain (tight limit: 5.3 -> 3.3 times the p99.9 of no limits).

Per container:   x      = used, or when throttled min(used + THROTTLE_WEIGHT * throttled_us, 4 used + 20 ms)
                 level += LEVEL_RATE * (x - level)
                 need   = max(level, x) + max(HEADROOM_SHARE * max(level, x), HEADROOM_US)
                 peak   = the largest need of the last 15 to 30 s; forgotten after 15 quiet periods
                 demand = level, or when throttled max(level, x)
                 wanted = max(demand, peak), or when throttled max(that, PROBE_FACTOR * quota in the kernel)
Per application: ample   sum(wanted) <= limit: everybody gets wanted
                 rationed sum(demand) <= limit: demand, and headroom (wanted - demand) in proportion
                 tight   min_us first, the rest max-min fair with weights (demand - min_us) ** 0.75

What holds (tests/unit/policy), with a loop delay of one period:
- Constant demand: after 20 periods no target changes for the following 100, without noise at limits of 3, 1.15, 1.02
  and 0.8 times the demand; with noise of +-2 % at most 1 write in 100 container-periods. The peak of the transient
  leaves the memory 15 to 30 s later, which may cost each container two more cuts.
- A container that burns at 10 % of its demand has 95 % of it within 10 periods when the application has room.
- A container that goes quiet (below QUIET_US) falls within 20 periods to at most HEADROOM_US above its use or a
  quarter of its quota. One that goes on with QUIET_US or more keeps the remembered peak for up to 30 s while the
  application has room; the rationed and tight branches hand it to whoever needs it in the same step.
- A throttled container can be cut: when the limit is tight, to its fair share.
"""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np

from schemas.limits import Reason
from services.allocator.core.damping import damp
from services.allocator.core.sharing import weighted_max_min
from services.allocator.core.slots import SlotArrays
from services.allocator.core.view import Bools, CpuTargets, CpuView, Floats, Ints, any_per_app, per_app

THROTTLE_WEIGHT: Final = 0.1
"""Share of throttled_us that counts as demand: it overestimates (measured/policy.md section 2.4)."""
GROWTH_FACTOR: Final = 4
GROWTH_US: Final = 20_000
"""One sample estimates at most GROWTH_FACTOR * used + GROWTH_US (measured/policy.md section 4)."""
LEVEL_RATE: Final = 0.3
"""Weight of a new sample per period, both ways."""
HEADROOM_SHARE: Final = 0.25
HEADROOM_US: Final = 14_000
"""Headroom above the demand, share of it and microseconds per period, whichever is more (policy.md section 4)."""
PROBE_FACTOR: Final = 2
"""Quota wanted by a throttled container, times the one in the kernel: 10 x in 4 steps of two periods."""
MEMORY_PERIODS: Final = 150
"""Half of the sliding maximum: a peak is remembered for 15 to 30 s (10 s or more: policy.md section 2.3)."""
QUIET_US: Final = 3_000
QUIET_PERIODS: Final = 15
"""After so many periods in a row below QUIET_US the estimate starts anew: no cost in p99.9, 30 % less median slack."""
WEIGHT_SCALE: Final = 16
"""Resolution of the integer weights of the tight branch."""


class WaterfillState(SlotArrays):
    """Per slot: seen, level, the two halves of the remembered peak with their age, quiet periods in a row."""

    _columns: ClassVar[dict[str, tuple[type[np.generic], int]]] = {
        "seen": (np.bool_, 0),
        "level": (np.float64, 0),
        "peak_now": (np.float64, 0),
        "peak_before": (np.float64, 0),
        "age": (np.int32, 0),
        "quiet": (np.int32, 0),
    }
    seen: Bools
    level: Floats
    peak_now: Floats
    peak_before: Floats
    age: np.ndarray[tuple[int], np.dtype[np.int32]]
    quiet: np.ndarray[tuple[int], np.dtype[np.int32]]


def decide(state: WaterfillState, view: CpuView, rows: Ints) -> CpuTargets:
    """Decide one step for all applications that have a fresh row.

    Args:
        state: updated in place, for the fresh rows only.
        view: the step's observations, shape N.
        rows: slot of every row in `state`, shape N, distinct.
    """
    apps = len(view.limit_us)
    estimate = _estimate(view)
    _observe(state, rows[view.fresh], estimate[view.fresh])
    seen = state.seen[rows]
    decided = any_per_app(view.app, view.fresh, apps)[view.app] & seen

    low, cap = view.min_us, np.maximum(view.cap_us, view.min_us)
    throttled = view.fresh & view.throttled
    level = state.level[rows]
    demand = np.where(throttled, np.maximum(level, estimate), level)
    wanted = np.maximum(demand, np.maximum(state.peak_now, state.peak_before)[rows])
    wanted = np.where(throttled, np.maximum(wanted, PROBE_FACTOR * view.quota_us), wanted)
    demand_us = np.clip(np.rint(demand).astype(np.int64), low, cap)
    wanted_us = np.clip(np.rint(wanted).astype(np.int64), demand_us, cap)

    unseen_us = per_app(view.app, np.where(seen, 0, view.ordered_us), apps)
    shares = _share(view, view.limit_us - unseen_us, np.where(seen, demand_us, 0), np.where(seen, wanted_us, 0))
    target = damp(view, decided, np.where(seen, shares, view.ordered_us))
    return _explain(view, target, estimate, np.where(seen, wanted_us, view.ordered_us))


def _estimate(view: CpuView) -> Floats:
    """Demand in the sampled period, x above; shape N, microseconds."""
    used = view.used_us.astype(np.float64)
    hidden = np.minimum(used + THROTTLE_WEIGHT * view.throttled_us, GROWTH_FACTOR * used + GROWTH_US)
    return np.minimum(np.where(view.throttled, hidden, used), view.cap_us)


def _observe(state: WaterfillState, rows: Ints, estimate: Floats) -> None:
    """Fold new samples into the slots `rows`; both of the same length."""
    quiet = np.where(estimate < QUIET_US, state.quiet[rows] + 1, 0)
    anew = ~state.seen[rows] | (quiet >= QUIET_PERIODS)
    level = state.level[rows]
    level = np.where(anew, estimate, level + LEVEL_RATE * (estimate - level))
    base = np.maximum(level, estimate)
    need = base + np.maximum(HEADROOM_SHARE * base, HEADROOM_US)
    age = state.age[rows] + 1
    turn = age >= MEMORY_PERIODS
    now = state.peak_now[rows]
    state.peak_before[rows] = np.where(anew, 0.0, np.where(turn, now, state.peak_before[rows]))
    state.peak_now[rows] = np.where(anew | turn, need, np.maximum(now, need))
    state.age[rows] = np.where(anew | turn, 0, age)
    state.quiet[rows] = quiet
    state.level[rows] = level
    state.seen[rows] = True


def _share(view: CpuView, limit_us: Ints, demand_us: Ints, wanted_us: Ints) -> Ints:
    """The three branches above; rows that do not take part have demand and wanted 0. Shape N."""
    app, apps = view.app, len(limit_us)
    demand_sum = per_app(app, demand_us, apps)
    wanted_sum = per_app(app, wanted_us, apps)
    shares = wanted_us.copy()
    rationed = (wanted_sum > limit_us) & (demand_sum <= limit_us)
    if rationed.any():
        i = np.flatnonzero(rationed[app])
        a = app[i]
        headroom = wanted_us[i] - demand_us[i]
        shares[i] = demand_us[i] + headroom * (limit_us - demand_sum)[a] // (wanted_sum - demand_sum)[a]
    tight = demand_sum > limit_us
    if tight.any():
        i = np.flatnonzero(tight[app] & (demand_us > 0))
        floor_us = view.min_us[i]
        room = limit_us - per_app(app[i], floor_us, apps)
        above = demand_us[i] - floor_us
        root = np.sqrt(above)
        weight = np.maximum(np.rint(WEIGHT_SCALE * root * np.sqrt(root)).astype(np.int64), 1)
        shares[i] = floor_us + weighted_max_min(app[i], above, weight, room)
    return shares


def _explain(view: CpuView, target_us: Ints, estimate: Floats, wanted_us: Ints) -> CpuTargets:
    """Attach to every change its reason with the two numbers of `schemas.limits.REASON_TEXT`."""
    apps = len(view.limit_us)
    reason = np.zeros(len(target_us), np.uint8)
    measured, threshold = np.zeros(len(target_us)), np.zeros(len(target_us))
    change = target_us - view.ordered_us
    asked = per_app(view.app, wanted_us, apps)
    held = per_app(view.app, view.ordered_us, apps)
    throttled = view.fresh & view.throttled
    lower = change < 0
    over = lower & (held > view.limit_us)[view.app]
    scarce = lower & ~over & (asked > view.limit_us)[view.app]
    for mask, why, value, bound in (
        ((change > 0) & throttled, Reason.THROTTLED, estimate, view.quota_us),
        ((change > 0) & ~throttled, Reason.DEMAND_ROSE, wanted_us, view.ordered_us),
        (over, Reason.OVER_LIMIT, held[view.app], view.limit_us[view.app]),
        (scarce, Reason.SHARED_SCARCITY, asked[view.app], view.limit_us[view.app]),
        (
            lower & ~over & ~scarce,
            Reason.UNUSED,
            np.maximum(view.ordered_us - view.used_us, 0),
            np.maximum(target_us - view.used_us, 0),
        ),
    ):
        reason[mask], measured[mask], threshold[mask] = why, value[mask], bound[mask]
    return CpuTargets(target_us, reason, measured, threshold)

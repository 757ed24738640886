"""CPU policy `waterfill`: estimate demand, remember peaks while a container is at work, share what there is.

The form of measured/policy.md section 4 without burst, reduced by simulation on that study's tuning half (decision 6):
one average instead of three, no margin and no probing in what is served first, memory as sliding maxima. What is held
is short, since throttling is reported while it happens, and what is recalled is long (decision 24, real servers). In a
scarce application what is given away does not come back at once, so that it is held for longer there (decision 27).

Per container:   x      = used, or when throttled min(used + THROTTLE_WEIGHT * throttled_us, 4 used + 20 ms)
                 level += LEVEL_RATE * (x - level)
                 above  = max(level, x) + max(HEADROOM_SHARE * max(level, x), HEADROOM_US)
                 peak   = the largest `above` of the last HOLD_PERIODS to twice that: what is held
                 kept   = the largest level, with headroom, of the last KEEP_PERIODS to twice that: what is held as well
                          where all of these together are more than SCARCE_SHARE of the limit
                 recall = the largest `above` of the last RECALL_PERIODS to twice that: what is given back at once
                 demand = level,               or when throttled max(level, x)
                 need   = max(demand, peak),  or when scarce max(demand, peak, kept)
                 wanted = need,                or when throttled max(need, recall, PROBE_FACTOR * quota in the kernel,
                                               PROBE_US), kept for GRACE_PERIODS samples: the first after a
                                               raise covers mostly the time before it
Per application: the limit serves all demands, then need - demand, then wanted - need; the tier that does not fit is
                 shared in proportion. Where even the demands do not fit: min_us first, the rest max-min fair with
                 the weights (demand - min_us) ** 0.75. Probing (wanted) comes last because it jumps with every
                 throttled period: together with the headroom it kept a limit of 1.02 times the demand in motion
                 (0.04 writes per container-period under noise of +-2 %, against 0.002).

What holds (tests/unit/policy), with a loop delay of one period:
- Constant demand without noise at limits of 3, 1.15, 1.02 and 0.8 times the demand: from equal shares the last write
  comes within 20 periods (in 1 of 60 random loads within 25), from 10 % of the demand within 30 (in a scarce
  application 2 KEEP_PERIODS later, when what was kept on the way is forgotten), and none in the 100 after that. With
  noise of +-2 % there is on average at most 1 write in 100 container-periods.
- Where the limit is at least 1.02 times the demand everybody ends with 0.95 of his demand or more.
- A container that burns at 10 % of its demand has 95 % of it within 10 periods when the application has room.
- A container that goes quiet falls within 20 periods to at most HEADROOM_US above its use or a quarter of its quota; in
  a scarce application up to 2 KEEP_PERIODS later, and then another one that burns in its place has half of its demand
  within 11 periods and all within 30.
  The quiet one, throttled again within 15 to 30 s, has in one step what it had, if the application has room.
- A throttled container can be cut: when the limit is tight, to its fair share.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from schemas.reasons import Reason
from services.allocator.arrays.array_types import Bools, Floats, Ints
from services.allocator.arrays.grouping import any_per_app, per_app
from services.allocator.arrays.max_min_fairness import weighted_max_min
from services.allocator.arrays.proportional_share import scale_to_fit
from services.allocator.arrays.slot_arrays import SlotArrays
from services.allocator.cpu.dead_band import apply_dead_band
from services.allocator.cpu.policy_interface import CpuTargets, CpuView

THROTTLE_WEIGHT: Final = 0.1
"""Share of throttled_us that counts as demand: it overestimates (measured/policy.md section 2.4)."""
GROWTH_FACTOR: Final = 4
GROWTH_US: Final = 20_000
"""One sample estimates at most GROWTH_FACTOR * used + GROWTH_US (measured/policy.md section 4)."""
LEVEL_RATE: Final = 0.3
"""Weight of a new sample per period, both ways."""
HEADROOM_SHARE: Final = 0.15
HEADROOM_US: Final = 2_000
"""Headroom above the demand, share of it and microseconds per period, whichever is more."""
PROBE_FACTOR: Final = 2
"""Quota wanted by a throttled container, times the one in the kernel: 10 x in 4 steps of two periods."""
PROBE_US: Final = 20_000
"""And at least so much: a container that idled has 2 ms, and would need four more steps to a fifth of a core."""
HOLD_PERIODS: Final = 1
"""Half of a sliding maximum: a peak is held for 0.1 to 0.2 s."""
KEEP_PERIODS: Final = 20
"""The same for levels where the application is scarce: for 2 to 4 s."""
RECALL_PERIODS: Final = 150
"""The same for what a container is raised to at once when it is throttled again: for 15 to 30 s."""
SCARCE_SHARE: Final = 0.9
"""Of the limit: an application is scarce when its containers' largest levels with headroom are more than that. Levels,
because single periods reach far beyond what lasts, also where the limit is ample."""
GRACE_PERIODS: Final = 3
"""Samples after a throttled container was raised that cannot take it back: the raise comes at any time in a period,
and the sample at its end covers mostly the old quota (decisions 25 and 26)."""
WEIGHT_SCALE: Final = 16
"""Resolution of the integer weights of the tight branch."""


Ages: TypeAlias = np.ndarray[tuple[int], np.dtype[np.int32]]


class WaterfillState(SlotArrays):
    """Per slot: seen, level, the two halves of each sliding maximum with their age, and the last raise with its own."""

    _columns: ClassVar[dict[str, tuple[type[np.generic], int]]] = {
        "seen": (np.bool_, 0),
        "level": (np.float64, 0),
        "peak_now": (np.float64, 0),
        "peak_before": (np.float64, 0),
        "peak_age": (np.int32, 0),
        "kept_now": (np.float64, 0),
        "kept_before": (np.float64, 0),
        "kept_age": (np.int32, 0),
        "recall_now": (np.float64, 0),
        "recall_before": (np.float64, 0),
        "recall_age": (np.int32, 0),
        "raised": (np.float64, 0),
        "raised_age": (np.int32, 0),
    }
    seen: Bools
    level: Floats
    peak_now: Floats
    peak_before: Floats
    peak_age: Ages
    kept_now: Floats
    kept_before: Floats
    kept_age: Ages
    recall_now: Floats
    recall_before: Floats
    recall_age: Ages
    raised: Floats
    """What a throttled container wanted."""
    raised_age: Ages


def step(state: WaterfillState, view: CpuView) -> tuple[CpuTargets, WaterfillState]:
    """Targets for all applications that have a fresh row, and the state after this step; both of shape N."""
    estimate = _estimate(view)
    state = observe(state, view.fresh, estimate)
    decided = any_per_app(view.app, view.fresh, len(view.limit_us))[view.app]
    throttled = view.fresh & view.throttled
    recall = np.maximum(state.recall_now, state.recall_before)
    demand = np.where(throttled, np.maximum(state.level, estimate), state.level)
    need = np.maximum(demand, _held(state, view))
    probed = np.maximum(np.maximum(need, recall), np.maximum(PROBE_FACTOR * view.quota_us, PROBE_US))
    raised_age = np.where(throttled, 0, state.raised_age + view.fresh)
    raised = np.where(raised_age <= GRACE_PERIODS, np.where(throttled, probed, state.raised), 0)
    wanted = np.maximum(need, raised)
    demand_us, need_us, wanted_us = (_bounded(view, tier, state.seen) for tier in (demand, need, wanted))
    target = apply_dead_band(view, decided, _share(view, demand_us, need_us, wanted_us))
    return _explain(view, target, estimate, need_us), state.replace(raised_age=raised_age, raised=raised)


def _bounded(view: CpuView, tier: Floats, seen: Bools) -> Ints:
    """Whole microseconds within [min, cap]; a row that never reported asks for what it has."""
    asked = np.where(seen, np.rint(tier).astype(np.int64), view.ordered_us)
    return np.maximum(np.minimum(asked, view.cap_us), view.min_us)


def _estimate(view: CpuView) -> Floats:
    """Demand in the sampled period, x above; shape N, microseconds."""
    used = view.used_us.astype(np.float64)
    hidden = np.minimum(used + THROTTLE_WEIGHT * view.throttled_us, GROWTH_FACTOR * used + GROWTH_US)
    return np.minimum(np.where(view.throttled, hidden, used), view.cap_us)


def observe(state: WaterfillState, fresh: Bools, estimate: Floats) -> WaterfillState:
    """The state after the samples of the fresh rows; all of shape N."""
    level = np.where(state.seen, state.level + LEVEL_RATE * (estimate - state.level), estimate)
    above = _with_headroom(np.maximum(level, estimate))
    columns: dict[str, NDArray[Any]] = {"level": level, "seen": np.ones_like(state.seen)}
    for name, value, periods in (
        ("peak", above, HOLD_PERIODS),
        ("kept", _with_headroom(level), KEEP_PERIODS),
        ("recall", above, RECALL_PERIODS),
    ):
        now, before, age = (getattr(state, f"{name}_{half}") for half in ("now", "before", "age"))
        older = age + 1
        turn = older >= periods
        columns[f"{name}_before"] = np.where(turn, now, before)
        columns[f"{name}_now"] = np.where(turn, value, np.maximum(now, value))
        columns[f"{name}_age"] = np.where(turn, 0, older)
    if not fresh.all():
        columns = {name: np.where(fresh, column, getattr(state, name)) for name, column in columns.items()}
    return state.replace(**columns)


def _with_headroom(used_us: Floats) -> Floats:
    return used_us + np.maximum(HEADROOM_SHARE * used_us, HEADROOM_US)


def _held(state: WaterfillState, view: CpuView) -> Floats:
    """Peaks, each held for as long as its application can afford; shape N, microseconds."""
    peak = np.maximum(state.peak_now, state.peak_before)
    kept = np.maximum(state.kept_now, state.kept_before)
    together_us = per_app(view.app, _bounded(view, kept, state.seen), len(view.limit_us))
    scarce = together_us > SCARCE_SHARE * view.limit_us
    return np.where(scarce[view.app], np.maximum(peak, kept), peak)


def _share(view: CpuView, demand_us: Ints, need_us: Ints, wanted_us: Ints) -> Ints:
    """The tiers above, shape N; demand <= need <= wanted."""
    app, apps = view.app, len(view.limit_us)
    if (per_app(app, wanted_us, apps) <= view.limit_us).all():
        return wanted_us
    room = view.limit_us - per_app(app, demand_us, apps)
    headroom = scale_to_fit(app, need_us - demand_us, room)
    more = scale_to_fit(app, wanted_us - need_us, room - per_app(app, headroom, apps))
    shares = demand_us + headroom + more
    tight = room < 0
    if tight.any():
        i = np.flatnonzero(tight[app])
        floor_us = view.min_us[i]
        above = demand_us[i] - floor_us
        root = np.sqrt(above)
        weight = np.maximum(np.rint(WEIGHT_SCALE * root * np.sqrt(root)).astype(np.int64), 1)
        left = view.limit_us - per_app(app[i], floor_us, apps)
        shares[i] = floor_us + weighted_max_min(app[i], above, weight, left)
    return shares


def _explain(view: CpuView, target_us: Ints, estimate: Floats, needed_us: Ints) -> CpuTargets:
    """Attach to every change its reason with the two numbers of `schemas.reasons`."""
    app, apps = view.app, len(view.limit_us)
    raised, cut = target_us > view.ordered_us, target_us < view.ordered_us
    reasons = CpuTargets.none(len(target_us), target_us)
    if not (raised | cut).any():
        return reasons
    throttled = view.fresh & view.throttled
    reasons.give(raised & throttled, Reason.THROTTLED, estimate, view.quota_us)
    reasons.give(raised & ~throttled, Reason.DEMAND_ROSE, needed_us, view.ordered_us)
    asked = per_app(app, needed_us, apps)
    held = per_app(app, view.ordered_us, apps)
    over, scarce = (held > view.limit_us)[app] & cut, (asked > view.limit_us)[app] & cut
    reasons.give(over, Reason.OVER_LIMIT, held[app], view.limit_us[app])
    reasons.give(scarce & ~over, Reason.SHARED_SCARCITY, asked[app], view.limit_us[app])
    left, kept = np.maximum(view.ordered_us - view.used_us, 0), np.maximum(target_us - view.used_us, 0)
    reasons.give(cut & ~over & ~scarce, Reason.UNUSED, left, kept)
    return reasons

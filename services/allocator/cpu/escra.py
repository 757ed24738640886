"""CPU policy `escra`: the rule of thesis 2.4.4.1, made well-defined (design 4.3.1; measured/escra.md section 6).

All numbers are microseconds per period; q is the ordered quota, W the application's window.

1. Release. Not throttled and c = min(unused, q - used) > gamma:
       q1 = max(min, 1.05 used, q - floor(kappa m)),   m = min(mean over W of min(unused_j, q - used_j), c)
   Every entry of the window counts only up to what the quota of today still leaves of it, so that the same slack is
   never taken twice (the thesis' formula goes below zero: 120, then -137 ms).
2. Pool = limit - sum(q1). Below zero (the limit was lowered, containers joined): every quota is cut in proportion to
   what it has above its minimum, and nothing is raised.
3. Increase. Throttled: raise = max(floor(mean over W of throttled * upsilon * pool), 10 % of q1), at most cap - q1;
   raises that exceed the pool are scaled into it. Upsilon is a share of the pool (20 % as a percentage: as the factor
   20 it passes the limit within 12 periods), gamma is in cores (0.2 = 20 ms).
4. `pipeline.apply_dead_band`.

What holds (tests/unit/policy), with a loop delay of one period:
- A throttled container is never cut, unless its application is over its limit. With an empty pool nothing is raised.
- Constant demand: after 20 periods no target changes for the following 100, without noise at limits of 3, 1.15, 1.02
  and 0.8 times the demand; with noise of +-2 % at most 1 write in 100 container-periods.
- A container that burns at 10 % of its demand has 95 % of it within 10 periods while the application's limit is three
  times the demand, whatever its window says.
- After a burst it falls within 20 periods to at most gamma above its use (or to a quarter of its quota).
What does not: with an empty pool a throttled container gets nothing, however much less it holds than others; up to
gamma of slack per container is never given back. That is the thesis' rule; `waterfill` shares instead.
"""

from __future__ import annotations

from typing import ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from schemas.reasons import Reason
from services.allocator.arrays.array_types import Bools, Floats, Ints
from services.allocator.arrays.grouping import any_per_app, per_app
from services.allocator.arrays.proportional_share import scale_to_fit
from services.allocator.arrays.slot_arrays import SlotArrays
from services.allocator.cpu.dead_band import apply_dead_band
from services.allocator.cpu.policy_interface import CpuTargets, CpuView

MAX_WINDOW: Final = 64
"""Periods; the bound of `AppSpec.window`."""
MIN_RAISE_SHARE: Final = 0.10
"""Of the quota: a raise is never smaller, or a small container under a small pool would not get anywhere."""
RELEASE_MARGIN: Final = 0.05
"""Of the use: release never goes closer to it."""
_INT32_MAX: Final = 2**31 - 1


class EscraState(SlotArrays):
    """Per slot: rings of the last samples, with their own position, since containers report independently."""

    _columns: ClassVar[dict[str, tuple[type[np.generic], int]]] = {
        "used_us": (np.int32, MAX_WINDOW),
        "unused_us": (np.int32, MAX_WINDOW),
        "throttled": (np.bool_, MAX_WINDOW),
        "count": (np.int64, 0),
        "window": (np.int64, 0),
    }
    used_us: NDArray[np.int32]
    unused_us: NDArray[np.int32]
    throttled: Bools
    count: Ints
    """Samples since the slot was taken or its window changed."""
    window: Ints


def step(state: EscraState, view: CpuView) -> tuple[CpuTargets, EscraState]:
    """Targets for all applications that have a fresh row, and the state after this step; both of shape N."""
    apps = len(view.limit_us)
    state = _observe(state, view)
    decided = any_per_app(view.app, view.fresh, apps)[view.app]
    slack = np.minimum(view.unused_us, np.maximum(view.ordered_us - view.used_us, 0))
    released = np.clip(_release(state, view, slack), view.min_us, np.maximum(view.cap_us, view.min_us))
    released = np.where(decided, released, view.ordered_us)
    pool = view.limit_us - per_app(view.app, released, apps)
    excess = np.maximum(-pool, 0)
    if excess.any():
        released = _fit(view, np.where(decided, released, view.min_us), released, excess)
    raised = _increase(state, view, released, np.maximum(pool, 0))
    target = apply_dead_band(view, decided, released + raised)
    return _explain(view, target, slack), state


def _observe(state: EscraState, view: CpuView) -> EscraState:
    """The state with the fresh samples in their rings; a changed window starts its ring anew."""
    fresh = np.flatnonzero(view.fresh)
    columns = {name: getattr(state, name).copy() for name in ("used_us", "unused_us", "throttled", "count", "window")}
    window = np.clip(view.params.window, 1, MAX_WINDOW)[view.app[fresh]]
    count = np.where(state.window[fresh] == window, state.count[fresh], 0)
    position = count % window
    columns["used_us"][fresh, position] = view.used_us[fresh]
    columns["unused_us"][fresh, position] = view.unused_us[fresh]
    columns["throttled"][fresh, position] = view.throttled[fresh]
    columns["count"][fresh] = count + 1
    columns["window"][fresh] = window
    return state.replace(**columns)


def _window_mean(state: EscraState, slots: Ints, values: NDArray[np.int32] | Bools) -> Floats:
    """Mean over the filled part of each slot's window. `values` has shape (len(slots), columns)."""
    columns = values.shape[1]
    filled = np.minimum(state.count[slots], state.window[slots])
    if filled.min(initial=columns) < columns:
        values = np.where(np.arange(columns) < filled[:, None], values, 0)
    mean: Floats = values @ np.ones(columns) / np.maximum(filled, 1)
    return mean


def _columns_in_use(state: EscraState, slots: Ints) -> int:
    return int(state.window[slots].max(initial=1))


def _release(state: EscraState, view: CpuView, slack: Ints) -> Ints:
    """Step 1, shape N."""
    released = view.ordered_us.copy()
    giving = view.fresh & ~view.throttled & (slack > view.params.gamma_us[view.app])
    i = np.flatnonzero(giving)
    if not len(i):
        return released
    ordered, columns = view.ordered_us[i], _columns_in_use(state, i)
    left = np.maximum(np.minimum(ordered, _INT32_MAX).astype(np.int32)[:, None] - state.used_us[i, :columns], 0)
    mean = _window_mean(state, i, np.minimum(state.unused_us[i, :columns], left))
    taken = np.floor(view.params.kappa[view.app[i]] * np.minimum(mean, slack[i])).astype(np.int64)
    floor_us = np.ceil(view.used_us[i] * (1 + RELEASE_MARGIN)).astype(np.int64)
    released[i] = np.minimum(ordered, np.maximum(floor_us, ordered - taken))
    return released


def _fit(view: CpuView, above_min: Ints, quota_us: Ints, excess: Ints) -> Ints:
    """Cut in proportion to what each decided row has above its minimum until the excess (shape A) is gone."""
    slack = np.maximum(above_min - view.min_us, 0)
    total = per_app(view.app, slack, len(excess))
    cut: Ints = -(-slack * np.minimum(excess, total)[view.app] // np.maximum(total, 1)[view.app])
    remaining: Ints = quota_us - cut
    return remaining


def _increase(state: EscraState, view: CpuView, quota_us: Ints, pool: Ints) -> Ints:
    """Step 3: raises, shape N; an application's sum is at most its pool (shape A)."""
    raised = np.zeros_like(quota_us)
    i = np.flatnonzero(view.fresh & view.throttled & (pool > 0)[view.app])
    if not len(i):
        return raised
    app = view.app[i]
    share = _window_mean(state, i, state.throttled[i, : _columns_in_use(state, i)])
    share *= view.params.upsilon_share[app]
    raises = np.maximum(np.floor(share * pool[app]), np.floor(MIN_RAISE_SHARE * quota_us[i])).astype(np.int64)
    raised[i] = np.clip(raises, 0, np.maximum(view.cap_us[i] - quota_us[i], 0))
    return scale_to_fit(view.app, raised, pool)


def _explain(view: CpuView, target_us: Ints, slack: Ints) -> CpuTargets:
    """Attach to every change its reason with the two numbers of `schemas.reasons`."""
    held = per_app(view.app, view.ordered_us, len(view.limit_us))
    over = (held > view.limit_us)[view.app] & (target_us < view.ordered_us)
    reasons = CpuTargets.none(len(target_us), target_us)
    reasons.give(target_us > view.ordered_us, Reason.THROTTLED, view.used_us, view.quota_us)
    reasons.give(over, Reason.OVER_LIMIT, held[view.app], view.limit_us[view.app])
    kept = np.maximum(target_us - view.used_us, 0)
    reasons.give((target_us < view.ordered_us) & ~over, Reason.UNUSED, slack, kept)
    return reasons

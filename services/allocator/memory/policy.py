"""Memory limits: grow before a container reaches its limit, reclaim what it leaves (thesis 2.3.2-2.4.4).

The allocator sees usage every 100 ms and an order is in force at most two periods after its sample, so a limit must
hold what the container can take in LOOP_PERIODS = 3: those two, and the one until the next sample. From rest delta
covers delta / 3 per period (170 MB/s at 50 MiB); faster growth is the business of the agent, which is closer.

Growth.  g = max(0, usage - usage before); due when limit - usage < max(delta / 2, 6 g), which lasts for the loop if
         the rate doubles; then limit' = usage + max(delta, 9 g), at most the container's maximum: a steady rate is
         written every third period. delta / 2 to grow and delta to reclaim: usage may move by delta / 2 before
         anything is written again.
Recall.  What a container used at most between the last two periodic reclaims and since, 5 to 10 s, is what it may
         need again within one period: a process that starts takes 20 MiB in 50 ms. Its limit is kept MARGIN_BYTES
         above that peak, or brought back there, as long as no other container needs the memory.
Scarce.  Where the targets exceed what the application has free, all containers first get what keeps them alive for
         the loop (usage + max(3 g, MARGIN_BYTES)), then their recall, then the rest: a comfortable delta for one is
         not taken before the next three periods of another. Of each, what stays within fair shares comes
         first, and what goes beyond them second, both in proportion to what is missing. And the reclaim below is done
         at once for that application, not only when it is due (thesis 2.4.4.2); and for all containers of a node that
         has little left for raises, of whatever application (thesis 2.3.2).
Reclaim. limit > usage + delta becomes usage + delta (thesis 2.4.3), in pages, never below the recall or the container's
         minimum, and never for a container whose usage set a new high within GREW_STEPS, which is about to need it.
Refill.  Where the reserves lack more than a quarter of the withheld share (at a periodic reclaim: anything), the
         largest slacks above the recall are cut to one level: what an agent granted in haste comes back.
Urgent.  A task waits for memory and the application has none free (thesis 2.4.4.2): what others have above usage +
         delta is taken; where that is not enough, the largest slacks above their recall, then above usage + max(3 g,
         MARGIN_BYTES) + MARGIN_BYTES (agents refuse less than one margin, and usage has moved on), and of the usage up
         to CACHE_STEP_BYTES of page cache that the kernel can drop. For a container above its fair share no limit is
         cut below what is guaranteed to one that asks, too (as `min_bytes`).
Over.    Where the ordered limits exceed the application's (it was lowered): the largest slacks are cut to one level,
         never below usage + max(3 g, MARGIN_BYTES). If even that does not fit, the application stays over its limit:
         nothing is taken that is in use.
Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Final

import numpy as np

from schemas.reasons import Reason
from services.allocator.arrays.array_types import AppIndex, Bools, Ints
from services.allocator.arrays.grouping import per_app
from services.allocator.arrays.limit_values import MARGIN_BYTES, PAGE_BYTES, RECLAIM_BYTES
from services.allocator.arrays.max_min_fairness import weighted_max_min
from services.allocator.arrays.proportional_share import scale_to_fit
from services.allocator.arrays.reasons import Reasons
from services.allocator.arrays.slot_arrays import SlotArrays
from services.allocator.budget.fair_share import within_share

LOOP_PERIODS: Final = 3
"""From a sample to its order in force at most two (measured/policy.md section 1), and one until the next sample."""
ACCELERATION: Final = 2
"""A rate may double within the loop's delay."""
GREW_STEPS: Final = 10
"""Steps of 100 ms for which a container that grew is not reclaimed: one second."""
REFILL_SHARE: Final = 4
"""Reserves that lack less than this part of the withheld share wait for the periodic reclaim."""
CACHE_STEP_BYTES: Final = 64 << 20
"""Most page cache taken from a container at once: the agent blocks while the kernel drops it."""


class MemoryState(SlotArrays):
    """Per slot, each of shape (capacity,)."""

    _columns: ClassVar[dict[str, tuple[type[np.generic], int]]] = dict.fromkeys(
        ("high_bytes", "steps", "peak_bytes", "peak_before_bytes"), (np.int64, 0)
    )
    high_bytes: Ints
    """The highest usage since the last reclaim that touched it."""
    steps: Ints
    """Steps since that rose."""
    peak_bytes: Ints
    """The highest usage since the last periodic reclaim."""
    peak_before_bytes: Ints
    """The highest between the last two periodic reclaims."""


@dataclass(frozen=True, slots=True)
class MemoryView:
    """Memory observations of one step, shape N except where it says A; bytes."""

    app: AppIndex
    fresh: Bools
    """The usage is newer than in the previous step; other rows keep their limit, but count and may be cut when over."""
    usage_bytes: Ints
    previous_usage_bytes: Ints
    """Usage in the previous report; 0: none."""
    reclaimable_bytes: Ints
    """Part of the usage that the kernel can drop (inactive page cache)."""
    ordered_bytes: Ints
    """Last ordered limit."""
    min_bytes: Ints
    max_bytes: Ints
    share_bytes: Ints
    """Per application, A: a container's fair share."""
    limit_bytes: Ints
    """Per application, A: what these rows and the application's reserves may hold together."""
    withheld_bytes: Ints
    """Per application, A: of it, withheld for reserves as far as limits leave it."""
    delta_bytes: Ints
    """Per application, A."""
    node_short: Bools
    """Rows on a node with little headroom: unused memory there is reclaimed at once."""


@dataclass(frozen=True, slots=True)
class MemoryTargets(Reasons):
    """Limits in whole pages where they change, else `ordered_bytes`, with reasons."""

    target_bytes: Ints


@dataclass(frozen=True, slots=True)
class _Needs:
    """Derived once per step, shape N; bytes."""

    free: Ints
    """Ordered limit minus usage."""
    headroom: Ints
    """Growth is due below this."""
    delta: Ints
    survival: Ints
    """Limit that lasts for the loop."""
    recall: Ints
    """Limit that also holds the peak of the last seconds."""
    ample: Ints
    """Target where growth is due."""


def step(state: MemoryState, view: MemoryView, *, reclaim: bool) -> tuple[MemoryTargets, MemoryState]:
    """Targets for all applications, and the state after this step; both of shape N.

    Args:
        state: of the rows, as the step before left it.
        view: the step's observations, shape N.
        reclaim: whether the periodic reclaim (every 5 s) is due.
    """
    state = _observe(state, view, reclaim=reclaim)
    needs = _needs(view, _peaks(state))
    grown, starved = _grow(view, needs)
    target = view.ordered_bytes + grown
    giving = view.fresh & (state.steps >= GREW_STEPS) & (grown == 0)
    reclaiming = starved[view.app] | view.node_short | reclaim
    if reclaiming.any():
        target = np.where(reclaiming & giving, _reclaimed(view, needs), target)
    over = view.limit_bytes < per_app(view.app, view.ordered_bytes, len(view.limit_bytes))
    if over.any():
        floor = np.minimum(view.ordered_bytes, np.maximum(needs.survival, view.min_bytes))
        fitting = _fit(view.app, view.ordered_bytes, floor, view.limit_bytes)
        target = np.where(over[view.app], np.minimum(target, fitting), target)
    target = _refill(view, needs, target, giving, reclaim=reclaim)
    high = np.where(target < view.ordered_bytes, view.usage_bytes, state.high_bytes)
    return _explain(view, needs, target, over), state.replace(high_bytes=high)


def _needs(view: MemoryView, peak_bytes: Ints) -> _Needs:
    growth = np.where(
        view.fresh & (view.previous_usage_bytes > 0), np.maximum(view.usage_bytes - view.previous_usage_bytes, 0), 0
    )
    delta = view.delta_bytes[view.app]
    loop = LOOP_PERIODS * growth
    fast = ACCELERATION * loop
    survival = _pages_up(view.usage_bytes + np.maximum(loop, MARGIN_BYTES))
    return _Needs(
        free=view.ordered_bytes - view.usage_bytes,
        headroom=np.maximum(delta // 2, fast),
        delta=delta,
        survival=survival,
        recall=np.maximum(survival, np.minimum(_pages_up(peak_bytes + MARGIN_BYTES), view.max_bytes)),
        ample=_pages_up(view.usage_bytes + np.maximum(delta, fast + loop)),
    )


def _observe(state: MemoryState, view: MemoryView, *, reclaim: bool) -> MemoryState:
    """The state after the samples. A new high exceeds the last one by more than half of MARGIN_BYTES."""
    grew = view.usage_bytes > state.high_bytes + np.where(state.high_bytes > 0, MARGIN_BYTES // 2, 0)
    peak = view.usage_bytes if reclaim else np.maximum(state.peak_bytes, view.usage_bytes)
    return state.replace(
        high_bytes=np.where(grew, view.usage_bytes, state.high_bytes),
        steps=np.where(grew, 0, state.steps + view.fresh),
        peak_bytes=peak,
        peak_before_bytes=state.peak_bytes if reclaim else state.peak_before_bytes,
    )


def _peaks(state: MemoryState) -> Ints:
    """Highest usage of the last 5 to 10 s, shape N."""
    return np.maximum(state.peak_bytes, state.peak_before_bytes)


def _grow(view: MemoryView, needs: _Needs) -> tuple[Ints, Bools]:
    """Raises, shape N, in whole pages, and which applications (A) cannot fund all of them."""
    apps, held = len(view.limit_bytes), view.ordered_bytes
    ceiling = np.maximum(view.max_bytes, held)
    desired = np.where(needs.free < needs.headroom, np.maximum(needs.ample, needs.recall), needs.recall)
    desired = np.maximum(desired, view.min_bytes)  # one that was given its floor has less
    raises = np.where(view.fresh, np.maximum(np.minimum(desired, ceiling) - held, 0), 0)
    left = view.limit_bytes - per_app(view.app, held, apps)
    room = np.maximum(left - view.withheld_bytes, 0)
    starved = per_app(view.app, raises, apps) > room
    if not starved.any():
        return np.where(raises < RECLAIM_BYTES, 0, raises), starved
    funded = np.zeros_like(raises)
    fair = within_share(view.app, held, raises, view.share_bytes)
    for level in (needs.survival, needs.recall, held + raises):
        for most in (fair, raises):
            step = np.minimum(most, np.maximum(level - held, 0)) - funded
            funded += _scale_pages(view.app, np.maximum(step, 0), room - per_app(view.app, funded, apps))
    return np.where(funded < RECLAIM_BYTES, 0, funded), starved


def _scale_pages(app: AppIndex, need: Ints, room: Ints) -> Ints:
    """`scale_to_fit` in whole pages: the products of bytes would not fit into 64 bits."""
    return scale_to_fit(app, need // PAGE_BYTES, room // PAGE_BYTES) * PAGE_BYTES


def _reclaimed(view: MemoryView, needs: _Needs) -> Ints:
    """Thesis 2.4.3 per row: usage + delta, or the recall if that is more, where the limit is above that."""
    kept = np.maximum(np.maximum(_pages_up(view.usage_bytes + needs.delta), needs.recall), view.min_bytes)
    return np.where(view.ordered_bytes - kept >= RECLAIM_BYTES, kept, view.ordered_bytes)


def _refill(view: MemoryView, needs: _Needs, target: Ints, giving: Bools, *, reclaim: bool) -> Ints:
    """Targets that leave the reserves what they should have, as far as rows that may give have slack."""
    missing = per_app(view.app, target, len(view.limit_bytes)) - (view.limit_bytes - view.withheld_bytes)
    short = missing > (0 if reclaim else view.withheld_bytes // REFILL_SHARE)
    if not short.any():
        return target
    floor = np.where(giving, np.minimum(target, np.maximum(needs.recall, view.min_bytes)), target)
    fitting = _fit(view.app, target, floor, view.limit_bytes - view.withheld_bytes)
    return np.where(short[view.app] & (target - fitting >= RECLAIM_BYTES), fitting, target)


def _fit(app: AppIndex, limit: Ints, floor: Ints, total: Ints) -> Ints:
    """Limits (N), the largest slacks above `floor` (N) cut to one level per application: the sum fits `total` (A)."""
    slack = limit - floor
    kept = weighted_max_min(app, slack, np.ones_like(slack), total - per_app(app, floor, len(total)))
    return np.where(kept < slack, np.maximum(_pages_down(floor + kept), floor), limit)


def urgent_reclaim(
    state: MemoryState, view: MemoryView, rows: Ints, missing_bytes: Ints, exempt: Bools
) -> MemoryTargets:
    """Limits that free what is missing per application (shape A), as far as there is slack, and reasons.

    Args:
        state: what is remembered of the rows.
        view: the newest observations, shape N; all rows count, fresh or not.
        rows: slot of every row in `state`.
        missing_bytes: to be reclaimed per application; 0: nothing.
        exempt: rows that need memory themselves.
    """
    needs = _needs(replace(view, fresh=np.ones_like(view.fresh)), _peaks(state.take(rows)))
    wanted = (missing_bytes[view.app] > 0) & ~exempt
    target = np.where(wanted, np.minimum(_reclaimed(view, needs), view.ordered_bytes), view.ordered_bytes)
    cache = np.minimum(view.reclaimable_bytes, CACHE_STEP_BYTES)
    least = np.maximum(_pages_up(needs.survival + MARGIN_BYTES - cache), view.min_bytes)
    wanted_sum = per_app(view.app, view.ordered_bytes, len(missing_bytes)) - missing_bytes
    for level in (np.maximum(needs.recall, least), least):
        target = _fit(view.app, target, np.where(wanted, np.minimum(target, level), target), wanted_sum)
    return _explain(view, needs, target, np.zeros(len(missing_bytes), np.bool_))


def _pages_up(size: Ints) -> Ints:
    return -(-size // PAGE_BYTES) * PAGE_BYTES


def _pages_down(size: Ints) -> Ints:
    return size // PAGE_BYTES * PAGE_BYTES


def _explain(view: MemoryView, needs: _Needs, target: Ints, over: Bools) -> MemoryTargets:
    held = per_app(view.app, view.ordered_bytes, len(view.limit_bytes))
    targets = MemoryTargets.none(len(target), target)
    if np.array_equal(target, view.ordered_bytes):
        return targets
    lower, too_much = target < view.ordered_bytes, over[view.app]
    targets.give(target > view.ordered_bytes, Reason.MEMORY_GROWTH, view.usage_bytes, needs.headroom)
    targets.give(lower & ~too_much, Reason.MEMORY_RECLAIM, needs.free, needs.delta)
    targets.give(lower & too_much, Reason.OVER_LIMIT, held[view.app], view.limit_bytes[view.app])
    return targets

"""CPU pipeline: what a policy sees and answers, the dead band of its answer, and quotas to order within what is free.

Structures of arrays over all containers of all applications. Units are integer microseconds per period (100,000 us)
unless a name says otherwise. N is the number of containers (rows), A the number of applications; `app` maps a row to
its application.

Dead band of both CPU policies: under constant demand no quota is written.

Every quota write refills the bandwidth of its container (measured/escra.md section 2), so a write must be worth it.

- A decrease is written when it exceeds CUT_SHARE of the quota and CUT_US together.
- An increase is written when it exceeds RAISE_SHARE of the quota after scaling into the application's free capacity
  including this step's decreases. A container of low use (not throttled, at most LOW_USE_SHARE of its quota used) is
  raised only by LOW_USE_RAISE_SHARE or more: its headroom follows what others leave and need not follow every step.
- When the increases do not fit, and one of them exceeds URGENT_SHARE of its quota and CUT_US, the application's small
  decreases (of RELEASE_SHARE or more) are written as well: many small decreases fund a starving container. When all
  missing increases are small, nothing is written. This is the hysteresis in a tight application: near a fixed point all
  targets are close and there is no free capacity; a real shift of demand exceeds the band and passes at once.
- An application above its limit gets every decrease.
- On a node whose processors are full nothing is decreased but to fund an increase or to come below the limit. Usage
  there shows what a container got, not what it needs: a decrease makes the next period worse, frees no processor time,
  and costs a write (decision 40). Unless the node has a CPU budget that is nearly used up (decision 62): there it makes
  room for another application.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import numpy as np

from schemas.apps import PERIOD_US
from services.allocator.columns import (
    UNLIMITED,
    AppIndex,
    BoolArray,
    Bools,
    Floats,
    IntArray,
    Ints,
    Reasons,
    SlotArrays,
    any_per_app,
    at,
    per_app,
    scale_to_fit,
)
from services.allocator.state.budget import StepContext
from services.allocator.state.kernel_bounds import QUOTA, bounds

CUT_SHARE: Final = 0.05
"""Of the quota; measured/policy.md section 4 (b)."""
CUT_US: Final = 500
"""Microseconds per period; measured/policy.md section 4."""
RAISE_SHARE: Final = 0.02
"""Of the quota; measured/policy.md section 4 (0.4 b)."""
URGENT_SHARE: Final = 0.03
"""Of the quota, plus CUT_US: an increase beyond it is worth all small decreases. Tried on 60 constant loads with a
limit of 1.02 times the demand: 0.05 leaves a container at 0.92 of its demand, 0.02 writes five times as often under
noise."""
RELEASE_SHARE: Final = 0.01
"""Of the quota: a smaller decrease funds no container and is a write all the same."""
FULL_IDLE_PERCENT: Final = 5
"""Idle share of a node's processors at which they count as full."""
SHORT_US: Final = PERIOD_US
"""A node whose CPU budget leaves less than this (one core) is short of it."""
LOW_USE_SHARE: Final = 0.5
LOW_USE_RAISE_SHARE: Final = 0.25
"""Of the quota."""


@dataclass(frozen=True, slots=True)
class CpuParameters:
    """The thesis' parameters per application, shape A (2.4.4.1; design 4.1)."""

    kappa: Floats
    """Share of the mean unused runtime that is taken per period, 0 < kappa <= 1."""
    gamma_us: Ints
    """Unused runtime that is left alone."""
    upsilon_share: Floats
    """Share (0..1, that is percent / 100) of the pool given per period and throttled share."""
    window: Ints
    """Periods in the sliding windows, 1..64."""


@dataclass(frozen=True, slots=True)
class CpuView:
    """One step's CPU observations and holdings."""

    app: AppIndex
    fresh: Bools
    """The row has a new sample in this step: at least one period elapsed, or idleness was synthesised."""
    used_us: Ints
    """Per period; this and the next three are valid where `fresh`."""
    unused_us: Ints
    """Per period, of the quota that was in force."""
    throttled_us: Ints
    """Per period, summed over CPUs: overestimates the missing runtime (measured/policy.md section 2.4)."""
    throttled: Bools
    quota_us: Ints
    """In the kernel now; equal to the cap where it is unlimited."""
    ordered_us: Ints
    """Last ordered: what the kernel will hold when everything has arrived."""
    min_us: Ints
    cap_us: Ints
    """The least of the container's maximum, the host's CPUs, what its node's CPU budget leaves, and what the kernel
    accepts; but never below what it refuses to go below, which is a `min_us`. At most 2**25 (335
    cores) with 50,000 containers in one application: products of quotas and sums stay below 2**63."""
    node_idle_percent: Ints
    """Idle share of the time of all processors of the row's node; -1: not known, or the node is short of CPU budget."""
    limit_us: Ints
    """Per application, shape A."""
    params: CpuParameters


@dataclass(frozen=True, slots=True)
class CpuTargets(Reasons):
    """Quotas that the policy wants, with reasons, shape N; a reason exactly where the target is not `ordered_us`."""

    target_us: Ints


class CpuStep(Protocol):
    """A policy's function."""

    def __call__(self, state: Any, view: CpuView) -> tuple[CpuTargets, Any]:
        """From what the slots of a view's rows hold, and the view: targets, and what the slots hold afterwards."""


@dataclass(frozen=True, slots=True)
class CpuPolicy:
    """A policy with its estimates per container."""

    state: SlotArrays
    step: CpuStep


class CpuPipeline:
    """Both CPU policies with their estimates per container."""

    def __init__(self, waterfill: CpuPolicy, escra: CpuPolicy) -> None:
        self.waterfill, self.escra = waterfill, escra

    def follow(self, slot_capacity: int, released: IntArray) -> None:
        """Adapt to containers added and removed: ``released`` slots start anew."""
        for policy in (self.escra, self.waterfill):
            policy.state.grow(slot_capacity)
            policy.state.forget(released)

    def targets(self, context: StepContext, decidable: BoolArray, reasons: Reasons) -> IntArray:
        """Quota targets per row, us per period; the rows that are not decidable keep what is ordered.

        Args:
            context: of the step.
            decidable: rows that take part.
            reasons: written in place where a target differs from what is ordered.
        """
        rows = context.cluster.rows
        targets, by_waterfill = rows.quota_ordered_us.copy(), context.table.waterfill[rows.app]
        decidable = decidable & (rows.quota_ordered_us >= 0)  # the kernel may refuse any quota
        budget = budget_us(context, decidable)
        for chosen, policy in ((decidable & by_waterfill, self.waterfill), (decidable & ~by_waterfill, self.escra)):
            index = np.flatnonzero(chosen)
            if len(index):
                step = partial(policy.step, view=cpu_view(context, index, budget))
                result = policy.state.decide(rows.slot[index], step)
                targets[index] = result.target_us
                reasons.copy_from(index, result)
        return targets


def budget_us(context: StepContext, decidable: BoolArray) -> IntArray:
    """What the decidable rows may hold together per application: the limit less what others hold or will need."""
    app, limit_us = context.cluster.rows.app, context.table.cpu_limit_us
    return limit_us - per_app(app, context.holdings.quota_us * ~decidable, len(limit_us)) - context.pending.quota_us


def cpu_view(context: StepContext, index: IntArray, budget: IntArray) -> CpuView:
    """What a policy observes of the rows ``index``, which share ``budget`` per application (us per period)."""
    rows, table, mine = context.cluster.rows, context.table, at(index)
    app = rows.app[mine]
    cap_us = np.minimum(rows.host_cpus[mine] * PERIOD_US, table.max_quota_us[app])
    quota_us, ordered_us = rows.quota_us[mine], rows.quota_ordered_us[mine]
    # On a node whose CPU budget is used up no container is raised beyond what it holds: the rest is for other nodes.
    headroom_us = context.node_cpu_headroom[rows.node[mine]]
    cap_us = np.minimum(cap_us, np.maximum(ordered_us, quota_us) + headroom_us)
    floor_us, ceiling_us = (bound[mine] for bound in bounds(rows, QUOTA, context.time.now_ns))
    cap_us = np.maximum(np.minimum(cap_us, ceiling_us), floor_us)
    idle_percent = context.node_idle_percent[rows.node[mine]]
    return CpuView(
        app=app,
        fresh=rows.fresh[mine],
        used_us=rows.used_us[mine],
        unused_us=rows.unused_us[mine],
        throttled_us=rows.throttled_us[mine],
        throttled=rows.throttled[mine] > 0,
        quota_us=np.where(quota_us == UNLIMITED, cap_us, quota_us),
        ordered_us=ordered_us,
        min_us=np.minimum(np.maximum(table.min_quota_us[app], floor_us), cap_us),
        cap_us=cap_us,
        node_idle_percent=np.where(headroom_us < SHORT_US, -1, idle_percent),
        limit_us=budget,
        params=CpuParameters(table.kappa, table.gamma_us, table.upsilon_share, table.window),
    )


def apply_dead_band(view: CpuView, decided: Bools, wanted_us: Ints) -> Ints:
    """Targets with the dead band applied: `ordered_us` where the change is not worth a write.

    Args:
        view: the step's observations.
        decided: shape N, rows of applications that are decided in this step; the others keep `ordered_us`.
        wanted_us: shape N, within [min, cap], their sum within the limit of each application where that is feasible.

    Returns:
        Targets, shape N, with the same properties.
    """
    apps = len(view.limit_us)
    ordered = view.ordered_us
    change = np.where(decided, wanted_us - ordered, 0)
    drop, rise = np.maximum(-change, 0), np.maximum(change, 0)
    band = ordered * CUT_SHARE + CUT_US
    out_of_bounds = (ordered < view.min_us) | (ordered > view.cap_us)
    low_use = ~view.throttled & (view.used_us <= ordered * LOW_USE_SHARE)
    least_rise = ordered * np.where(low_use, LOW_USE_RAISE_SHARE, RAISE_SHARE)
    rise[~((rise > least_rise) | out_of_bounds)] = 0
    full = (view.node_idle_percent >= 0) & (view.node_idle_percent <= FULL_IDLE_PERCENT)
    cut = np.where(((drop > band) & ~full) | out_of_bounds, drop, 0)

    room = view.limit_us - per_app(view.app, ordered - cut, apps)
    short = per_app(view.app, rise, apps) > room
    if short.any():
        release = short & (any_per_app(view.app, rise > ordered * URGENT_SHARE + CUT_US, apps) | (room < 0))
        small = (drop < ordered * RELEASE_SHARE) & (room >= 0)[view.app]
        cut = np.where(release[view.app] & ~small, drop, cut)
        room = view.limit_us - per_app(view.app, ordered - cut, apps)
        rise = scale_to_fit(view.app, rise, room)
        rise[~((rise > ordered * RAISE_SHARE) | out_of_bounds)] = 0
    return ordered + rise - cut

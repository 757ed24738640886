"""Budget of a step: what is committed and what is free, who may be raised, fair shares. Computed once a step; a value.

Committed is the largest value that may be in force (`columns`). sum(committed) <= limit is kept by never raising beyond
``limit - sum(committed)``; a decrease frees capacity only once the agent has reported the lower value.

Fair shares of an application's memory: who comes first where several ask and not all of it is free (decision 116).

    share      = application limit / containers, admitted or announced, whichever are more; whole pages
    asks       : usage grew by more than GREW_BYTES since the sample before, or the limit is used up but for a margin
    guaranteed = min(share, used + max(9 g, 2 x margin)) of one that asks, g what it grew by; 0 of all others
    claims     = sum of max(guaranteed - limit, 0): what is kept of free capacity and reserves

- Where targets exceed what is free, raises up to the share come before raises beyond it (`memory`: first what keeps
  containers alive, then their recent peak, then comfort).
- Beyond its share a container is granted nothing of what those below theirs ask for, neither by the allocator nor by an
  agent, and no limit is decreased below what is guaranteed for its sake. What nobody asks for it gets: free capacity,
  reserves of other nodes, and slack of containers that do not ask.
- Memory in use is never taken, but for page cache: a container above its share keeps it.

All containers of an application weigh the same.

Headroom of a node is what its agent reports; it rejects what exceeds it (decision 36). Only what will not be rejected
is requested, so that no update fails every period and no application takes all of a node's headroom.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Self

import numpy as np

from schemas.apps import LEAST_RAISE_US, PERIOD_US, AppSpec
from services.allocator.columns import (
    MARGIN_BYTES,
    NO_BOUND,
    PAGE_BYTES,
    RECLAIM_BYTES,
    AppIndex,
    BoolArray,
    IntArray,
    Ints,
    Rows,
    any_per_app,
    per_app,
    scale_to_fit,
)
from services.allocator.state.app_parameters import AppTable
from services.allocator.state.cluster_state import ClusterState
from services.allocator.state.kernel_bounds import LIMIT, QUOTA, bounds, takes_no_limit
from services.allocator.state.totals import Holding


@dataclass(frozen=True, slots=True)
class StepTime:
    """Time of a step, and what is due."""

    now_ns: int
    """Monotonic."""
    wall_ns: int
    """Since the epoch."""
    reclaim_memory: bool = False
    """Whether the periodic reclaim is due (thesis 2.4.3)."""
    stale_after_ns: int = 2_000_000_000
    """No decisions for containers of a node that has not reported for this long; they keep their share."""


@dataclass(slots=True)
class LeaseState:
    """Leases of this replica: epoch, and end of the warm-up, per application."""

    warm_up_ns: int
    epochs: dict[str, int] = field(default_factory=dict)
    warm_up_ends_ns: dict[str, int] = field(default_factory=dict)
    lost: dict[str, int] = field(default_factory=dict)
    """Applications of which an agent has reported a newer epoch, and that epoch."""

    def acquire(self, app: str, epoch: int, now_ns: int) -> None:
        """Acquire an application."""
        self.epochs[app], self.warm_up_ends_ns[app] = epoch, now_ns + self.warm_up_ns

    def release(self, app: str) -> bool:
        """Release an application; returns whether it was owned."""
        self.lost.pop(app, None)
        self.warm_up_ends_ns.pop(app, None)
        return self.epochs.pop(app, None) is not None

    def owned_apps(self) -> set[str]:
        """Owned applications that are not lost."""
        return self.epochs.keys() - self.lost.keys()

    def epoch_array(self, apps: Sequence[str]) -> IntArray:
        """Epoch by application index; 0: not owned."""
        return np.array([self.epochs.get(app, 0) for app in apps], dtype=np.int64)

    def warmed_up(self, apps: Sequence[str], now_ns: int) -> BoolArray:
        """By application index: whether its warm-up is over."""
        ends_ns = np.array([self.warm_up_ends_ns.get(app, 0) for app in apps], dtype=np.int64)
        over: BoolArray = ends_ns <= now_ns
        return over


def committed_limits(rows: Rows, observe_only: BoolArray) -> tuple[IntArray, IntArray]:
    """The largest quota and memory limit per row that may be in force.

    A row that is not admitted counts too: its update may have arrived although the reply was lost, and a container may
    start with limits of its own. Unlimited ones count nothing until their first update is sent; those to which the
    kernel refuses one count what they use.

    Args:
        rows: all rows.
        observe_only: rows of applications in mode `observe`: nothing is sent, so the ordered value counts.
    """

    def committed(kernel: IntArray, inflight: IntArray, ordered: IntArray, unlimited: IntArray) -> IntArray:
        worst = np.maximum(np.maximum(kernel, inflight), unlimited)
        return np.where(observe_only, np.where(rows.admitted, ordered, 0), worst)

    used_us, used_bytes = (
        rows.used_us * takes_no_limit(rows, QUOTA),
        rows.memory_usage_bytes * takes_no_limit(rows, LIMIT),
    )
    return (
        committed(rows.quota_us, rows.quota_inflight_us, rows.quota_ordered_us, used_us),
        committed(rows.limit_bytes, rows.limit_inflight_bytes, rows.limit_ordered_bytes, used_bytes),
    )


@dataclass(frozen=True, slots=True)
class Pools:
    """Committed sums per application, shape (A,)."""

    quota_committed_us: IntArray
    limit_committed_bytes: IntArray
    """Containers' limits and reserves."""
    reserved_bytes: IntArray
    containers: IntArray


@dataclass(frozen=True, slots=True)
class Holdings:
    """Committed limits: reported values and everything in flight."""

    quota_us: IntArray
    """By `committed_limits`, shape (N,)."""
    limit_bytes: IntArray
    pools: Pools

    @classmethod
    def of(cls, cluster: ClusterState, table: AppTable) -> Self:
        """Committed limits now."""
        rows, apps, node_reserves = cluster.rows, len(cluster.apps), cluster.reserves
        quota_us, limit_bytes = committed_limits(rows, table.observe_only[rows.app])
        reserves_bytes = node_reserves.committed_bytes
        for pair, bound in cluster.claim_bounds.items():
            _bound_claims(cluster, pair, bound, (quota_us, limit_bytes, reserves_bytes))
        reserved = np.where(table.observe_only, 0, per_app(node_reserves.app, reserves_bytes, apps))
        pools = Pools(
            per_app(rows.app, quota_us, apps),
            per_app(rows.app, limit_bytes, apps) + reserved,
            reserved,
            per_app(rows.app, rows.admitted, apps),
        )
        return cls(quota_us, limit_bytes, pools)


def _bound_claims(
    cluster: ClusterState, pair: tuple[int, int], bound: tuple[int, int], committed: tuple[IntArray, IntArray, IntArray]
) -> None:
    """Scale what a node's containers of an application count down to its bound, in place; its reserve has the rest.

    Args:
        cluster: all rows and reserves.
        pair: application and node, by index.
        bound: CPU in us per period, memory in bytes.
        committed: quotas, shape (N,), limits, shape (N,), and reserves, by slot.
    """
    app, node = pair
    rows, node_reserves = cluster.rows, cluster.reserves
    mine = np.flatnonzero((rows.app == app) & (rows.node == node))
    for column, most in zip(committed[:2], bound, strict=True):
        if (total := int(column[mine].sum())) > most:
            # Floating point: the product may exceed 64 bits.
            column[mine] = np.floor(column[mine] * (most / total)).astype(np.int64)
    reserve = np.flatnonzero(node_reserves.in_use & (node_reserves.app == app) & (node_reserves.node == node))
    committed[2][reserve] = np.minimum(committed[2][reserve], max(bound[1] - int(committed[1][mine].sum()), 0))


GREW_BYTES: Final = MARGIN_BYTES // 2
"""More than this between two samples is growth: 20 MB/s."""
NEAR_SHARE: Final = 8
"""Of a small limit the margin is 1/n."""
GROWTH_PERIODS: Final = 9
"""As many periods of growth as a raise covers (`services.allocator.memory.policy`)."""


def fair_shares(limit_bytes: Ints, containers: Ints) -> Ints:
    """Equal shares per application, shape (A,), whole pages; of one container where there is none."""
    shares: Ints = limit_bytes // np.maximum(containers, 1) // PAGE_BYTES * PAGE_BYTES
    return shares


def guaranteed(share_bytes: Ints, limit_bytes: Ints, used_bytes: Ints, grew_bytes: Ints) -> Ints:
    """Guaranteed limit of each container that asks, up to its share, and 0 of the others; shape (N,) each.

    Args:
        share_bytes: its fair share.
        limit_bytes: the most that its limit may be now.
        used_bytes: what cannot be reclaimed, by the newest sample.
        grew_bytes: by how much its usage grew since the sample before.
    """
    used_up = limit_bytes - used_bytes < np.minimum(MARGIN_BYTES, limit_bytes // NEAR_SHARE)
    wanted = used_bytes + np.maximum(GROWTH_PERIODS * grew_bytes, 2 * MARGIN_BYTES)
    least = np.minimum(share_bytes, -(-wanted // PAGE_BYTES) * PAGE_BYTES)
    asking: Ints = np.where((grew_bytes > GREW_BYTES) | used_up, least, 0)
    return asking


def claims(guaranteed_bytes: Ints, limit_bytes: Ints) -> Ints:
    """Guaranteed bytes above the limit of each container, shape (N,)."""
    above: Ints = np.maximum(guaranteed_bytes - limit_bytes, 0)
    return above


def within_share(app: AppIndex, limit_bytes: Ints, raise_bytes: Ints, shares_bytes: Ints) -> Ints:
    """The part of each requested raise that stays within the fair share, shape (N,)."""
    within: Ints = np.clip(shares_bytes[app] - limit_bytes, 0, raise_bytes)
    return within


def counted_bytes(rows: Rows) -> IntArray:
    """What an agent counts per row: the limit that it has set, or use and a margin without one. Shape (N,)."""
    used = np.maximum(rows.memory_usage_bytes - rows.memory_reclaimable_bytes, 0)
    least = -(-(used + MARGIN_BYTES) // PAGE_BYTES) * PAGE_BYTES
    counted: IntArray = np.where((rows.limit_bytes < 0) | rows.own_limit, least, rows.limit_bytes)
    return counted


def node_headrooms(cluster: ClusterState) -> tuple[IntArray, IntArray]:
    """Headroom by node index less what updates in flight take: bytes of memory, and CPU quotas in us per period.

    `NO_BOUND`: unbounded. A row without a quota counts what it uses.
    """
    rows, node_reserves, count = cluster.rows, cluster.reserves, len(cluster.nodes)
    reported = np.array([(node.headroom_bytes, node.cpu_headroom_us) for node in cluster.nodes], dtype=np.int64)
    raised = np.maximum(rows.limit_inflight_bytes - counted_bytes(rows), 0)
    given = np.maximum(node_reserves.inflight_bytes - node_reserves.granted_total_bytes, 0) * node_reserves.in_use
    counted_us = np.where(rows.quota_us < 0, rows.used_us, rows.quota_us)
    raised_us = np.maximum(rows.quota_inflight_us - counted_us, 0)
    under_way = np.array(
        (
            per_app(rows.node, raised, count) + per_app(node_reserves.node, given, count),
            per_app(rows.node, raised_us, count),
        )
    )
    reported = reported.reshape(count, 2).T
    memory_bytes, cpu_us = np.where(reported == NO_BOUND, NO_BOUND, np.maximum(reported - under_way, 0))
    return memory_bytes, cpu_us


def fit_to_nodes(rows: Rows, before: IntArray, ordered: IntArray, headroom: IntArray) -> IntArray:
    """Memory limits to order, shape (N,): raises within node headroom, in proportion where it is short.

    Args:
        rows: all rows.
        before: what was ordered before.
        ordered: what is to be ordered now.
        headroom: by node index, from `node_headrooms`.
    """
    holding = np.maximum(counted_bytes(rows), rows.limit_inflight_bytes)
    ask = np.where(ordered > before, np.maximum(ordered - holding, 0), 0) // PAGE_BYTES
    got = scale_to_fit(rows.node, ask, headroom // PAGE_BYTES)
    bounded = np.maximum(before, holding + got * PAGE_BYTES)
    bounded = np.where(bounded - before < RECLAIM_BYTES, before, bounded)
    return np.where(got < ask, bounded, ordered)


@dataclass(frozen=True, slots=True)
class PendingCapacity:
    """Capacity reserved for pending containers per application, shape (A,)."""

    quota_us: IntArray
    limit_bytes: IntArray


def unacknowledged(cluster: ClusterState, table: AppTable, time: StepTime) -> BoolArray:
    """Rows of live agents that have not acknowledged the epoch: a previous owner's updates may act. Shape (N,)."""
    rows = cluster.rows
    obeyed = rows.fenced | table.observe_only[rows.app]
    return node_seen(cluster, time)[rows.node] & ~obeyed


def node_seen(cluster: ClusterState, time: StepTime) -> BoolArray:
    """By node index: it has reported within `StepTime.stale_after_ns`."""
    last_seen_ns = np.array([state.last_seen_ns for state in cluster.nodes], dtype=np.int64)
    seen: BoolArray = time.now_ns - last_seen_ns <= time.stale_after_ns
    return seen


@dataclass(frozen=True, slots=True)
class StepContext:
    """What both pipelines decide upon. N: rows, A: applications, M: nodes."""

    cluster: ClusterState
    table: AppTable
    time: StepTime
    epochs: IntArray
    """A; 0: not owned."""
    node_seen: BoolArray
    """M: the node has reported within `StepTime.stale_after_ns`."""
    node_idle_percent: IntArray
    """M: idle share of the time of all processors, as reported last; -1: unknown."""
    reachable: BoolArray
    """N: reported by a live agent that has acknowledged the epoch, or need not (mode `observe`)."""
    eligible: BoolArray
    """A: limits may be raised: every node that may hold containers has reported and acknowledged the epoch."""
    holdings: Holdings
    share_bytes: IntArray
    """A: fair share, of the containers admitted or announced, whichever are more."""
    node_headroom: IntArray
    """M, bytes."""
    node_cpu_headroom: IntArray
    """M, us per period."""
    pending: PendingCapacity

    @classmethod
    def of(
        cls,
        cluster: ClusterState,
        table: AppTable,
        leases: LeaseState,
        pending: PendingCapacity,
        time: StepTime,
    ) -> Self:
        """The context of a step, before it orders anything; all applications but those that warm up are eligible."""
        rows, holdings = cluster.rows, Holdings.of(cluster, table)
        node_headroom, node_cpu_headroom = node_headrooms(cluster)
        seen_nodes = node_seen(cluster, time)
        seen, obeyed = seen_nodes[rows.node], rows.fenced | table.observe_only[rows.app]
        return cls(
            cluster=cluster,
            table=table,
            time=time,
            epochs=leases.epoch_array(cluster.apps),
            node_seen=seen_nodes,
            node_idle_percent=np.array([state.idle_percent for state in cluster.nodes], dtype=np.int64),
            reachable=seen & obeyed & ~rows.unreported,
            eligible=leases.warmed_up(cluster.apps, time.now_ns),
            holdings=holdings,
            share_bytes=_fair_shares(table, holdings),
            node_headroom=node_headroom,
            node_cpu_headroom=node_cpu_headroom,
            pending=pending,
        )

    def without(self, apps: Iterable[int]) -> StepContext:
        """The same with these applications, by index, not eligible."""
        eligible = self.eligible.copy()
        eligible[list(apps)] = False
        return replace(self, eligible=eligible)

    def updated(self) -> StepContext:
        """The same after updates were ordered: what is committed, and what that leaves on nodes, has changed."""
        holdings = Holdings.of(self.cluster, self.table)
        node_headroom, node_cpu_headroom = node_headrooms(self.cluster)
        return replace(
            self,
            holdings=holdings,
            share_bytes=_fair_shares(self.table, holdings),
            node_headroom=node_headroom,
            node_cpu_headroom=node_cpu_headroom,
        )

    @property
    def decidable(self) -> BoolArray:
        """N: rows of announced, owned applications whose agent is reachable."""
        decidable: BoolArray = self.table.known[self.cluster.rows.app] & self.reachable
        return decidable

    @property
    def free_us(self) -> IntArray:
        """A: CPU limit - committed; negative: over the limit."""
        return self.table.cpu_limit_us - self.holdings.pools.quota_committed_us

    @property
    def free_bytes(self) -> IntArray:
        """A: memory limit - committed; negative: over the limit."""
        return self.table.memory_limit_bytes - self.holdings.pools.limit_committed_bytes

    @property
    def withheld_bytes(self) -> IntArray:
        """A: memory withheld for reserves, as far as the application has it: no limit grows into it."""
        limits = self.holdings.pools.limit_committed_bytes - self.holdings.pools.reserved_bytes
        left = np.maximum(self.table.memory_limit_bytes - limits - self.pending.limit_bytes, 0)
        withheld: IntArray = np.minimum(left, self.table.withheld_bytes)
        return withheld

    @property
    def guaranteed_bytes(self) -> IntArray:
        """N: guaranteed limit of each container that asks."""
        rows = self.cluster.rows
        usage_bytes, before_bytes = rows.memory_usage_bytes, rows.previous_memory_usage_bytes
        grew_bytes = np.where(before_bytes > 0, np.maximum(usage_bytes - before_bytes, 0), 0)
        used_bytes = np.maximum(usage_bytes - rows.memory_reclaimable_bytes, 0)
        return guaranteed(self.share_bytes[rows.app], self.holdings.limit_bytes, used_bytes, grew_bytes)


def capacity_for_pending(context: StepContext, short_of_cpu: BoolArray, short_of_memory: BoolArray) -> PendingCapacity:
    """What containers without their first share, of CPU or memory, and announced ones that have not started will need.

    Args:
        context: of the step.
        short_of_cpu: rows without their share of CPU, shape (N,).
        short_of_memory: the same of memory.
    """
    table, rows = context.table, context.cluster.rows
    enforced, least = ~table.observe_only[rows.app], rows.memory_usage_bytes + MARGIN_BYTES
    cpu, memory = (AppSpec.initial_quota_us, None), (AppSpec.initial_memory_bytes, least)
    return PendingCapacity(
        _pending(context, short_of_cpu & enforced, table.initial_quota_us, cpu),
        _pending(context, short_of_memory & enforced, table.initial_memory_bytes, memory),
    )


def _pending(
    context: StepContext,
    short: BoolArray,
    announced_share: IntArray,
    of: tuple[Callable[[AppSpec, int], int], IntArray | None],
) -> IntArray:
    """Of one resource, shape (A,); ``of``: a share by the number of containers, and what each row needs at least."""
    cluster, table, holdings, (share, least) = context.cluster, context.table, context.holdings, of
    app, held = cluster.rows.app, holdings.quota_us if least is None else holdings.limit_bytes
    joined = per_app(app, cluster.rows.admitted & ~short, len(table.known))
    missing = np.maximum(table.announced - joined, 0)
    needed: IntArray = missing * announced_share
    rows = np.flatnonzero(short)
    for index in np.unique(app[rows]).tolist():
        spec, mine = cluster.specs[cluster.apps[index]], rows[app[rows] == index]
        count = max(int(joined[index]) + len(mine), int(table.announced[index]))
        more = needed[index] + max(len(mine) - int(missing[index]), 0) * share(spec, count)
        if least is not None:
            more = max(more, least[mine].sum())
        # Limits that they have are committed already.
        needed[index] = max(more - held[mine].sum(), 0)
    return needed


@dataclass(frozen=True, slots=True)
class Reservation:
    """What may be ordered of one resource's targets, shape (N,)."""

    ordered: IntArray
    deferred: IntArray
    """Targets of which less could be ordered; 0 elsewhere."""


def reserve(app: IntArray, ordered: IntArray, target: IntArray, free: IntArray, holding: IntArray) -> Reservation:
    """How much of each target may be ordered now.

    A target up to what the row has committed is ordered in full. Increases beyond that share the application's free
    capacity in proportion. (Beyond what is committed, not beyond what was ordered: after a lost reply the kernel may
    hold less.)

    Args:
        app: of each row.
        ordered: per row, as it stands.
        target: per row; equal to the ordered value where nothing is to change.
        free: per application, limit - sum(committed) less what is withheld; negative: none.
        holding: per row, by `committed`.

    Returns:
        The values to order. Where no target differs, `Reservation.ordered` is ``ordered`` itself.
    """
    if np.array_equal(target, ordered):
        return Reservation(ordered, np.zeros_like(ordered))
    ask = np.where(target != ordered, np.maximum(target - holding, 0), 0)
    room = np.maximum(free, 0)
    asked = np.bincount(app, ask, len(free))
    share = np.divide(room, asked, out=np.ones(len(free)), where=asked > room)
    granted = np.floor(ask * share[app]).astype(np.int64)
    granted = np.where(ask > 0, holding + granted, target)
    result = np.where(target > ordered, np.maximum(granted, ordered), granted)
    return Reservation(result, np.where(result < target, target, 0))


def _fair_shares(table: AppTable, holdings: Holdings) -> IntArray:
    return fair_shares(table.memory_limit_bytes, np.maximum(holdings.pools.containers, table.announced))


def assign_quotas(context: StepContext, targets: IntArray) -> Reservation:
    """Quotas to order: the targets as far as eligible applications, and the nodes, have free capacity; shape (N,)."""
    rows = context.cluster.rows
    free = np.where(context.eligible, context.free_us - context.pending.quota_us, 0)
    before, holding = rows.quota_ordered_us, context.holdings.quota_us
    targets = np.clip(targets, *bounds(rows, QUOTA, context.time.now_ns))
    reserved = reserve(rows.app, before, targets, free, holding)
    if reserved.ordered is before:
        return reserved
    ask = np.where(reserved.ordered > before, np.maximum(reserved.ordered - holding, 0), 0)
    got = scale_to_fit(rows.node, ask, context.node_cpu_headroom)
    partly = np.where(got < LEAST_RAISE_US, before, np.maximum(before, holding + got))
    return replace(reserved, ordered=np.where(got < ask, partly, reserved.ordered))


def assign_limits(context: StepContext, targets: IntArray) -> Reservation:
    """Limits to order: the targets as far as eligible applications, and the nodes, have free memory; shape (N,)."""
    rows = context.cluster.rows
    to_reserve = np.maximum(context.withheld_bytes - context.holdings.pools.reserved_bytes, 0)
    free = np.where(context.eligible, context.free_bytes - context.pending.limit_bytes - to_reserve, 0)
    before = rows.limit_ordered_bytes
    targets = np.clip(targets, *bounds(rows, LIMIT, context.time.now_ns))
    reserved = reserve(rows.app, before, targets, free, context.holdings.limit_bytes)
    if reserved.ordered is before:
        return reserved
    within = fit_to_nodes(rows, before, _whole_pages(before, reserved.ordered), context.node_headroom)
    return replace(reserved, ordered=within)


def _whole_pages(ordered: IntArray, granted: IntArray) -> IntArray:
    """Whole pages, as the kernel rounds, and no raise below RECLAIM_BYTES."""
    pages = granted // PAGE_BYTES * PAGE_BYTES
    raised = np.where(pages - ordered < RECLAIM_BYTES, ordered, pages)
    return np.where(granted > ordered, raised, granted)


_GIB = 1 << 30


def held_beside_baseline(context: StepContext, admitted: BoolArray) -> Holding:
    """What applications hold at the beginning of a step, and what they would hold without Turnbuckle.

    Args:
        context: of the beginning; what was reported is still the same.
        admitted: rows that were admitted then, shape (N,).
    """
    cluster, table, pools = context.cluster, context.table, context.holdings.pools
    configured = cluster.configured_limits()
    unknown = np.isnan(configured)
    limits = pools.limit_committed_bytes - pools.reserved_bytes
    amounts = np.array(
        [
            np.where(unknown[0], table.cpu_limit_us, configured[0]) / PERIOD_US,
            pools.quota_committed_us / PERIOD_US,
            np.where(unknown[1], table.memory_limit_bytes, configured[1]) / _GIB,
            (limits + np.maximum(pools.reserved_bytes, context.withheld_bytes)) / _GIB,
        ]
    )
    kind = 4 * ~table.observe_only + 2 * ~unknown[0] + ~unknown[1]
    return Holding(_measured(context, admitted), kind, amounts, cluster.usage.counts(len(cluster.apps)))


def _measured(context: StepContext, admitted: BoolArray) -> BoolArray:
    """A: applications of which every container's limits are known now."""
    rows, count = context.cluster.rows, len(context.cluster.apps)
    limited = (rows.quota_us >= 0) & (rows.limit_bytes >= 0) & ~rows.observe_only
    missing = ~(admitted | limited) | rows.unreported | ~context.node_seen[rows.node]
    present = np.bincount(rows.app, minlength=count) > 0
    measured: BoolArray = context.table.known & context.eligible & present & ~any_per_app(rows.app, missing, count)
    return measured

"""Step context: lease state, node liveness, committed limits and free capacity, computed once a step. A value."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np

from services.allocator.budget import ledger
from services.allocator.budget.fair_share import FairShares
from services.allocator.columns import BoolArray, IntArray, per_app
from services.allocator.state.app_parameters import AppTable
from services.allocator.state.cluster_state import ClusterState
from services.allocator.state.node_memory import node_headroom


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
    lost: set[str] = field(default_factory=set)
    """Applications of which an agent has reported a newer epoch."""

    def acquire(self, app: str, epoch: int, now_ns: int) -> None:
        """Acquire an application."""
        self.epochs[app], self.warm_up_ends_ns[app] = epoch, now_ns + self.warm_up_ns

    def release(self, app: str) -> bool:
        """Release an application; returns whether it was owned."""
        self.lost.discard(app)
        self.warm_up_ends_ns.pop(app, None)
        return self.epochs.pop(app, None) is not None

    def owned_apps(self) -> set[str]:
        """Owned applications that are not lost."""
        return self.epochs.keys() - self.lost

    def epoch_array(self, apps: Sequence[str]) -> IntArray:
        """Epoch by application index; 0: not owned."""
        return np.array([self.epochs.get(app, 0) for app in apps], dtype=np.int64)

    def warmed_up(self, apps: Sequence[str], now_ns: int) -> BoolArray:
        """By application index: whether its warm-up is over."""
        ends_ns = np.array([self.warm_up_ends_ns.get(app, 0) for app in apps], dtype=np.int64)
        over: BoolArray = ends_ns <= now_ns
        return over


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
    """By `ledger.committed`, shape (N,)."""
    limit_bytes: IntArray
    pools: Pools

    @classmethod
    def of(cls, cluster: ClusterState, table: AppTable) -> Self:
        """Committed limits now."""
        rows, apps, node_reserves = cluster.rows, len(cluster.apps), cluster.reserves
        quota_us, limit_bytes = ledger.committed_limits(rows, table.observe_only[rows.app])
        reserved = np.where(table.observe_only, 0, per_app(node_reserves.app, node_reserves.committed_bytes, apps))
        pools = Pools(
            per_app(rows.app, quota_us, apps),
            per_app(rows.app, limit_bytes, apps) + reserved,
            reserved,
            per_app(rows.app, rows.admitted, apps),
        )
        return cls(quota_us, limit_bytes, pools)


@dataclass(frozen=True, slots=True)
class PendingCapacity:
    """Capacity reserved for pending containers per application, shape (A,)."""

    quota_us: IntArray
    limit_bytes: IntArray


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
    reachable: BoolArray
    """N: reported by a live agent that has acknowledged the epoch, or need not (mode `observe`)."""
    eligible: BoolArray
    """A: limits may be raised: every node that may hold containers has reported and acknowledged the epoch."""
    holdings: Holdings
    fair: FairShares
    """Of the containers admitted or announced, whichever are more."""
    node_headroom: IntArray
    """M, bytes."""
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
        """The context of a step, before it orders anything."""
        rows, holdings = cluster.rows, Holdings.of(cluster, table)
        last_seen_ns = np.array([state.last_seen_ns for state in cluster.nodes], dtype=np.int64)
        node_seen = time.now_ns - last_seen_ns <= time.stale_after_ns
        seen, obeyed = node_seen[rows.node], rows.fenced | table.observe_only[rows.app]
        # A live agent that has not acknowledged the epoch may still act on a previous owner's updates.
        acknowledged = np.bincount(rows.app, seen & ~obeyed, len(cluster.apps)) == 0
        return cls(
            cluster=cluster,
            table=table,
            time=time,
            epochs=leases.epoch_array(cluster.apps),
            node_seen=node_seen,
            reachable=seen & obeyed & ~rows.unreported,
            eligible=acknowledged & leases.warmed_up(cluster.apps, time.now_ns),
            holdings=holdings,
            fair=_fair_shares(table, holdings),
            node_headroom=_headroom(cluster),
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
        return replace(
            self,
            holdings=holdings,
            fair=_fair_shares(self.table, holdings),
            node_headroom=_headroom(self.cluster),
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


def _fair_shares(table: AppTable, holdings: Holdings) -> FairShares:
    containers = np.maximum(holdings.pools.containers, table.announced)
    return FairShares.of(table.memory_limit_bytes, table.withheld_bytes, containers)


def _headroom(cluster: ClusterState) -> IntArray:
    reported = np.array([state.headroom_bytes for state in cluster.nodes], dtype=np.int64)
    return node_headroom(reported, cluster.rows, cluster.reserves)

"""Per-step state: leases, node liveness, committed and free capacity per application."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from services.allocator.budget import ledger
from services.allocator.cpu.policy_api import per_app
from services.allocator.messages import Pools
from services.allocator.state.app_parameters import AppTable
from services.allocator.state.cluster_state import ClusterState
from services.allocator.state.container_columns import BoolArray, IntArray


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
        warm_up_ends_ns = np.array([self.warm_up_ends_ns.get(app, 0) for app in apps], dtype=np.int64)
        over: BoolArray = warm_up_ends_ns <= now_ns
        return over


@dataclass(frozen=True, slots=True)
class Holdings:
    """Committed limits: reported values and everything in flight."""

    per_row: tuple[IntArray, IntArray]
    """Quota and memory limit (`ledger.committed`), shape (N,)."""
    pools: Pools


def current_holdings(cluster: ClusterState, table: AppTable) -> Holdings:
    """Committed limits now."""
    rows, apps, book = cluster.rows, len(cluster.apps), cluster.reserves
    virtual = table.observe_only[rows.app]
    quota, limit = (ledger.committed(rows, account, virtual) for account in ledger.ACCOUNTS)
    reserved = np.where(table.observe_only, 0, per_app(book.app, book.committed_bytes, apps))
    pools = Pools(
        per_app(rows.app, quota, apps),
        per_app(rows.app, limit, apps) + reserved,
        reserved,
        per_app(rows.app, rows.admitted, apps),
    )
    return Holdings((quota, limit), pools)


def free_capacity(held: Pools, table: AppTable) -> tuple[IntArray, IntArray]:
    """Limit - committed per application; CPU, memory. Negative: over the limit."""
    return table.cpu_limit_us - held.quota_committed_us, table.memory_limit_bytes - held.limit_committed_bytes


def recently_seen(cluster: ClusterState, node: IntArray, time: StepTime) -> BoolArray:
    """Whether these nodes (by index) have reported within `StepTime.stale_after_ns`."""
    last_seen_ns = np.array([state.last_seen_ns for state in cluster.nodes], dtype=np.int64)
    seen: BoolArray = time.now_ns - last_seen_ns[node] <= time.stale_after_ns
    return seen


def reachable(cluster: ClusterState, table: AppTable, time: StepTime) -> BoolArray:
    """Rows that may be decided: reported by a live agent that has acknowledged the epoch (or mode `observe`)."""
    rows = cluster.rows
    return recently_seen(cluster, rows.node, time) & (rows.fenced | table.observe_only[rows.app]) & ~rows.unreported


def eligible_apps(cluster: ClusterState, table: AppTable, leases: LeaseState, time: StepTime) -> BoolArray:
    """Applications that may raise limits: no live agent may still act on a previous owner's updates."""
    rows, apps = cluster.rows, len(cluster.apps)
    unfenced = recently_seen(cluster, rows.node, time) & ~rows.fenced & ~table.observe_only[rows.app]
    settled: BoolArray = np.bincount(rows.app, unfenced, apps) == 0
    return settled & leases.warmed_up(cluster.apps, time.now_ns)

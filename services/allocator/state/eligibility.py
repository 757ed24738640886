"""What stands at a moment: who decides, who was heard, what every application holds and may still hand out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from services.allocator.budget import ledger
from services.allocator.cpu.policy_api import per_app
from services.allocator.messages import Pools
from services.allocator.state.app_parameters import AppTable
from services.allocator.state.cluster_state import Roster
from services.allocator.state.container_columns import BoolArray, IntArray


@dataclass(frozen=True, slots=True)
class Moment:
    """When a step happens."""

    now_ns: int
    """Monotonic."""
    wall_ns: int
    """Since the epoch."""
    reclaim_memory: bool = False
    """Whether the periodic reclaim is due (thesis 2.4.3)."""
    stale_after_ns: int = 2_000_000_000
    """A node not heard for this long is not decided about; its containers keep their share."""


@dataclass(slots=True)
class Tenure:
    """Which applications this replica owns, under which epoch, and from when on it may hand out room."""

    warm_up_ns: int
    epochs: dict[str, int] = field(default_factory=dict)
    opens_ns: dict[str, int] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)
    """An agent said that they belong to a newer epoch."""

    def take(self, app: str, epoch: int, now_ns: int) -> None:
        """Own it from now on."""
        self.epochs[app], self.opens_ns[app] = epoch, now_ns + self.warm_up_ns

    def give_up(self, app: str) -> bool:
        """Own it no longer; returns whether it was ours."""
        self.lost.discard(app)
        self.opens_ns.pop(app, None)
        return self.epochs.pop(app, None) is not None

    def decided(self) -> set[str]:
        """Applications to decide for."""
        return self.epochs.keys() - self.lost

    def epoch_array(self, apps: Sequence[str]) -> IntArray:
        """Epoch by application index; 0: not ours."""
        return np.array([self.epochs.get(app, 0) for app in apps], dtype=np.int64)

    def opened(self, apps: Sequence[str], now_ns: int) -> BoolArray:
        """By application index: whether its nodes have had their time to be heard."""
        opens_ns = np.array([self.opens_ns.get(app, 0) for app in apps], dtype=np.int64)
        open_now: BoolArray = opens_ns <= now_ns
        return open_now


@dataclass(frozen=True, slots=True)
class Stock:
    """What is held, counted with everything in flight."""

    per_row: tuple[IntArray, IntArray]
    """Quota and memory limit (`ledger.held`), shape (N,)."""
    pools: Pools


def take_stock(roster: Roster, table: AppTable) -> Stock:
    """What is held now."""
    rows, apps, book = roster.rows, len(roster.apps), roster.reserves
    virtual = table.virtual[rows.app]
    quota, limit = (ledger.held(rows, account, virtual) for account in ledger.ACCOUNTS)
    reserved = np.where(table.virtual, 0, per_app(book.app, book.held_bytes, apps))
    pools = Pools(
        per_app(rows.app, quota, apps),
        per_app(rows.app, limit, apps) + reserved,
        reserved,
        per_app(rows.app, rows.admitted, apps),
    )
    return Stock((quota, limit), pools)


def free(held: Pools, table: AppTable) -> tuple[IntArray, IntArray]:
    """Limit - held per application; CPU, memory. Negative: over the limit."""
    return table.cpu_limit_us - held.quota_held_us, table.memory_limit_bytes - held.limit_held_bytes


def heard(roster: Roster, node: IntArray, moment: Moment) -> BoolArray:
    """Whether these nodes (by index) were heard lately."""
    heard_ns = np.array([state.heard_ns for state in roster.nodes], dtype=np.int64)
    lately: BoolArray = moment.now_ns - heard_ns[node] <= moment.stale_after_ns
    return lately


def reachable(roster: Roster, table: AppTable, moment: Moment) -> BoolArray:
    """Rows whose agent was heard lately, names them, and has acknowledged the epoch (or need not: nothing is sent)."""
    rows = roster.rows
    return heard(roster, rows.node, moment) & (rows.fenced | table.virtual[rows.app]) & ~rows.absent


def open_apps(roster: Roster, table: AppTable, tenure: Tenure, moment: Moment) -> BoolArray:
    """Applications that may hand out room: no live agent may still act on an older owner's orders."""
    rows, apps = roster.rows, len(roster.apps)
    unfenced = heard(roster, rows.node, moment) & ~rows.fenced & ~table.virtual[rows.app]
    settled: BoolArray = np.bincount(rows.app, unfenced, apps) == 0
    return settled & tenure.opened(roster.apps, moment.now_ns)

"""Orders for the nodes' reserves, and what is on its way back into the pool."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from schemas.limits import LimitUpdate
from services.allocator.budget import ledger
from services.allocator.budget.fairness import FairShares, kept
from services.allocator.budget.node_room import node_rooms
from services.allocator.memory import reserves
from services.allocator.messages import Lent, Order, Pools, reserve_update
from services.allocator.state import eligibility as standing
from services.allocator.state.app_parameters import AppTable
from services.allocator.state.cluster_state import Roster
from services.allocator.state.container_columns import BoolArray, IntArray, grouped
from services.allocator.state.eligibility import Moment, Tenure

PLAN_AGAIN_NS = 500_000_000
"""Containers that move between nodes, and nodes that come back, change the plan but not the sums."""


@dataclass(slots=True)
class Asker:
    """The container that a request for memory is for."""

    spared: list[int]
    """Rows whose limits are not cut for its sake: its own, where it has been heard of."""
    within_bytes: int
    """What it lacks to its fair share; one that is not heard of is taken to have nothing."""
    floor_bytes: IntArray
    """Per row: below it nobody's limit is cut for its sake."""
    remark: str = ""
    """Why it gets nothing of what is kept, where it is above its share."""


class Lending:
    """Gives nodes memory of their applications to grant by themselves."""

    def __init__(self, roster: Roster, tenure: Tenure) -> None:
        self._roster = roster
        self._tenure = tenure
        self.seq = 0
        """Of the newest order of any kind."""
        self._planned: IntArray = np.zeros(0, dtype=np.int64)
        self._plan_again_ns = 0

    def next_order(self, epoch: int, moment: Moment) -> Order:
        """Identity of an order; sequences rise over all applications and epochs."""
        self.seq += 1
        return Order(epoch, self.seq, moment.wall_ns)

    def orders(
        self, table: AppTable, held: Pools, kept_bytes: IntArray, open_apps: BoolArray, moment: Moment
    ) -> tuple[LimitUpdate, ...]:
        """What brings the reserves to what the applications can spare; see `reserves`.

        Args:
            table: parameters per application.
            held: what they hold.
            kept_bytes: per application, kept for newcomers.
            open_apps: applications that may hand out room.
            moment: now.
        """
        rows, book = self._roster.rows, self._roster.reserves
        if not book.live.any():
            return ()
        free_bytes = standing.free(held, table)[1]
        fair = self.fair_shares(table, held)
        if not self._is_due(np.concatenate((free_bytes, held.reserved_bytes, kept_bytes, open_apps)), moment):
            return ()
        count = len(book.app)
        shares = rows.admitted & table.known[rows.app] & ~table.virtual[rows.app]
        unfenced = np.bincount(rows.reserve, ~rows.fenced, count) > 0
        view = reserves.ReserveView(
            pool_bytes=free_bytes + held.reserved_bytes,
            free_bytes=free_bytes,
            kept_bytes=kept_bytes,
            withheld_bytes=table.withheld_bytes,
            guaranteed_bytes=np.bincount(rows.reserve, self.claims(table, fair) * shares, count).astype(np.int64),
            share_bytes=fair.share_bytes[book.app],
            weight=np.bincount(rows.reserve, shares, count).astype(np.int64),
            reachable=open_apps[book.app] & ~unfenced & standing.heard(self._roster, book.node, moment),
            node_room_bytes=node_rooms(self._roster),
            now_ns=moment.now_ns,
        )
        return self.send(table, fair, reserves.plan(book, view), moment)

    @staticmethod
    def fair_shares(table: AppTable, held: Pools) -> FairShares:
        """Of the containers that have joined or are announced, whichever are more."""
        containers = np.maximum(held.containers, table.announced)
        return FairShares.of(table.memory_limit_bytes, table.withheld_bytes, containers)

    def guaranteed(self, fair: FairShares) -> IntArray:
        """What each container may always have as its limit, shape (N,)."""
        rows = self._roster.rows
        used = np.maximum(rows.memory_usage_bytes - rows.memory_reclaimable_bytes, 0)
        return fair.guaranteed(rows.app, used)

    def claims(self, table: AppTable, fair: FairShares) -> IntArray:
        """What each container may claim beyond the limit that it holds, shape (N,)."""
        rows = self._roster.rows
        return kept(self.guaranteed(fair), ledger.held(rows, ledger.MEMORY, table.virtual[rows.app]))

    def _is_due(self, sums: IntArray, moment: Moment) -> bool:
        """Whether a plan may differ from the one before: its sums moved, somebody asks, or a while has passed."""
        book = self._roster.reserves
        same = np.array_equal(sums, self._planned) and moment.now_ns < self._plan_again_ns
        if same and book.settled[book.live].all() and not book.needy(moment.now_ns).any():
            return False
        self._planned, self._plan_again_ns = sums, moment.now_ns + PLAN_AGAIN_NS
        return True

    def asker(self, table: AppTable, held: Pools, found: list[int | None], app: int) -> Asker:
        """Who needs memory most, as its agent says, beside its fair share."""
        rows, fair = self._roster.rows, self.fair_shares(table, held)
        spared, share_bytes = [row for row in found if row is not None], int(fair.share_bytes[app])
        nobody = np.zeros(rows.count, dtype=np.int64)
        limits = ledger.held(rows, ledger.MEMORY, table.virtual[rows.app])[spared]
        limit_bytes = int(limits.sum())
        if limit_bytes < share_bytes:
            return Asker(spared, share_bytes - limit_bytes, nobody)
        guaranteed, others = self.guaranteed(fair), (rows.app == app) & rows.admitted
        others[spared] = False
        kept_bytes = int(kept(guaranteed, rows.memory_usage_bytes)[others].sum())
        return Asker(spared, 0, guaranteed, above_share(limit_bytes, share_bytes, kept_bytes))

    def send(
        self, table: AppTable, fair: FairShares, wanted: tuple[IntArray, IntArray], moment: Moment
    ) -> tuple[LimitUpdate, ...]:
        """Orders for rows of `Reserves`, one for each node and epoch; ``wanted``: the rows, and what they are given."""
        index, given_bytes = wanted
        book, updates = self._roster.reserves, []
        given_of = dict(zip(index.tolist(), given_bytes.tolist(), strict=True))
        epochs = self._tenure.epoch_array(self._roster.apps)[book.app]
        for node, of_node in grouped(index, book.node):
            for epoch, mine in grouped(of_node, epochs):
                order = self.next_order(epoch, moment)
                given = [given_of[row] for row in mine.tolist()]
                lent = Lent(mine, given, table.max_memory_bytes, fair)
                updates.append(reserve_update(self._roster, node, lent, order))
                book.record(mine, np.array(given, dtype=np.int64), order.seq, moment.now_ns)
                book.share_bytes[mine] = fair.share_bytes[book.app[mine]]
        return tuple(updates)

    def coming_back(self, table: AppTable, app: int, group: int, node: int | None = None) -> int:
        """Bytes on their way into the pool: cuts and lower reserves that are ordered and not yet reported.

        ``group`` is the row of `Reserves` that waits for them; its own does not count. With ``node`` only of that one.
        """
        rows, book = self._roster.rows, self._roster.reserves
        holding = ledger.held(rows, ledger.MEMORY, table.virtual[rows.app])
        mine = (rows.app == app) & rows.admitted & ~rows.settled & ((node is None) | (rows.node == node))
        cuts = np.maximum(holding - rows.limit_ordered_bytes, 0)[mine]
        lowered = book.live & ~book.settled & (book.app == app) & ((node is None) | (book.node == node))
        lowered[group] = False
        returned = np.maximum(book.given_bytes - book.inflight_bytes, 0)[lowered]
        return int(cuts.sum()) + int(returned.sum())


def nothing_left(app: str, limit_bytes: int, index: int, held: Pools) -> str:
    """Why a request for memory is refused."""
    reserved = int(held.reserved_bytes[index])
    return (
        f"{app} may use {limit_bytes >> 20} MiB: its {int(held.containers[index])} containers hold "
        f"{(int(held.limit_held_bytes[index]) - reserved) >> 20} MiB and use it, {reserved >> 20} MiB are reserves"
    )


def above_share(limit_bytes: int, share_bytes: int, kept_bytes: int) -> str:
    """What a refusal says to a container above its fair share; empty where nothing is kept for others."""
    if kept_bytes < 1 << 20:
        return ""
    return (
        f"; it has {limit_bytes >> 20} MiB, its fair share is {share_bytes >> 20} MiB: "
        f"{kept_bytes >> 20} MiB are kept for containers below theirs"
    )

"""Orders for the nodes' reserves, and what is on its way back into the pool."""

from __future__ import annotations

import numpy as np

from schemas.limits import LimitUpdate
from services.allocator.core import ledger, reserves, standing
from services.allocator.core.app_table import AppTable
from services.allocator.core.messages import Order, Pools, reserve_update
from services.allocator.core.node_room import node_rooms
from services.allocator.core.roster import Roster
from services.allocator.core.rows import BoolArray, IntArray, grouped
from services.allocator.core.standing import Moment, Tenure

PLAN_AGAIN_NS = 500_000_000
"""Containers that move between nodes, and nodes that come back, change the plan but not the sums."""


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
            weight=np.bincount(rows.reserve, shares, count).astype(np.int64),
            reachable=open_apps[book.app] & ~unfenced & standing.heard(self._roster, book.node, moment),
            node_room_bytes=node_rooms(self._roster),
            now_ns=moment.now_ns,
        )
        return self.send(table, *reserves.plan(book, view), moment)

    def _is_due(self, sums: IntArray, moment: Moment) -> bool:
        """Whether a plan may differ from the one before: its sums moved, somebody asks, or a while has passed."""
        book = self._roster.reserves
        same = np.array_equal(sums, self._planned) and moment.now_ns < self._plan_again_ns
        if same and book.settled[book.live].all() and not book.needy(moment.now_ns).any():
            return False
        self._planned, self._plan_again_ns = sums, moment.now_ns + PLAN_AGAIN_NS
        return True

    def send(self, table: AppTable, index: IntArray, given_bytes: IntArray, moment: Moment) -> tuple[LimitUpdate, ...]:
        """Orders for rows ``index`` of `Reserves`, one for each node and epoch."""
        book, updates = self._roster.reserves, []
        given_of = dict(zip(index.tolist(), given_bytes.tolist(), strict=True))
        epochs = self._tenure.epoch_array(self._roster.apps)[book.app]
        for node, of_node in grouped(index, book.node):
            for epoch, mine in grouped(of_node, epochs):
                order = self.next_order(epoch, moment)
                given = [given_of[row] for row in mine.tolist()]
                updates.append(reserve_update(self._roster, table, (node, mine), given, order))
                book.record(mine, np.array(given, dtype=np.int64), order.seq, moment.now_ns)
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

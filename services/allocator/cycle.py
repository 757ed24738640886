"""One step: batches in, orders and decisions out, for all applications of this replica at once.

Order of work: take in the truth, admit newcomers, let the policies wish, grant what the ledger has room for, set the
nodes' reserves, send.
Pure: times come in as arguments, messages go out as values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from schemas.apps import AppSpec
from schemas.cfs import CfsBatch
from schemas.limits import LimitDecisions, LimitReply, LimitUpdate, RowStatus
from schemas.oom import MemoryReply, MemoryRequest
from services.allocator import messages
from services.allocator.budget import ledger
from services.allocator.budget.budgets import Granting
from services.allocator.budget.node_room import node_is_full, node_rooms
from services.allocator.cpu.policies import Policies, WantedBack
from services.allocator.memory.reserve_updates import Asker, Lending, nothing_left
from services.allocator.messages import Ordered, Pools, Reasons, StepResult
from services.allocator.state import eligibility as standing
from services.allocator.state.admit_pending import Refused, Waiting, admit_newcomers, room_to_keep
from services.allocator.state.app_parameters import AppTable, build_table
from services.allocator.state.cluster_state import Roster, sane_rows
from services.allocator.state.container_columns import BoolArray, IntArray, grouped, runs
from services.allocator.state.eligibility import Moment, Tenure
from services.allocator.state.node_inventory import Attendance

_IS_LOST = np.zeros(256, dtype=np.bool_)
"""By `RowStatus`: whether the order is void. (A look-up, because `np.isin` takes ten times as long.)"""
_IS_LOST[[RowStatus.FAILED, RowStatus.UNKNOWN_CONTAINER, RowStatus.STALE_EPOCH, RowStatus.STALE_SEQ]] = True
_IS_LOST[RowStatus.NODE_BUDGET] = True
_NO_ROWS = np.zeros(0, dtype=np.int64)
POOLS_EVERY_STEPS = 10
"""Pools are published at least once a second, changes or not."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A container that an application has no room for."""

    app: str
    node: str
    container: str
    reason: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step wants done."""

    updates: tuple[LimitUpdate, ...] = ()
    decisions: tuple[LimitDecisions, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    """New ones only."""


class Allocation:
    """The applications that one allocator replica owns."""

    def __init__(self, warm_up_ns: int = 0) -> None:
        """After taking over an application nothing of it is raised for ``warm_up_ns``: nodes are still to be heard."""
        self.roster = Roster()
        self.step_count = 0
        self.refusals: dict[tuple[str, str], str] = {}
        """Why (node, container) is not admitted."""
        self.attendance = Attendance()
        self._tenure = Tenure(warm_up_ns)
        self._lending = Lending(self.roster, self._tenure)
        self._policies = Policies(self.roster)
        self._table: AppTable | None = None
        self._reasons = (Reasons.none(0), Reasons.none(0))
        self._kept = Waiting(np.zeros(0, np.int64), np.zeros(0, np.int64))

    # -- the outside tells -------------------------------------------------------------------------------------

    def own(self, app: str, epoch: int, now_ns: int) -> None:
        """Decide for an application from now on; ``epoch`` fences out its earlier owners."""
        self.disown(app)
        self.roster.app_index(app)
        self._tenure.take(app, epoch, now_ns)
        self.attendance.expect(app)
        self._table = None
        self._follow_rows()

    def disown(self, app: str) -> None:
        """Another replica decides for it; its containers keep their limits."""
        self.attendance.forget(app)
        if self._tenure.give_up(app):
            self.roster.forget_app(app)
        self._table = None

    def end_warm_up(self, app: str) -> None:
        """All nodes of the application have been heard."""
        self._tenure.opens_ns[app] = 0
        self.attendance.forget(app)

    def epoch_of(self, app: str) -> int:
        """Epoch of an application; 0: it is not ours."""
        return self._tenure.epochs.get(app, 0)

    def take_lost(self) -> set[str]:
        """Applications that an agent said belong to a newer epoch; they are no longer ours."""
        lost = set(self._tenure.lost)
        for app in lost:
            self.disown(app)
        return lost

    def set_spec(self, app: str, spec: AppSpec | None) -> None:
        """An application was announced, changed or (None) withdrawn; its containers keep their limits."""
        index, old = self.roster.app_index(app), self.roster.specs.get(app)
        self._follow_rows()
        if spec is None:
            self.roster.specs.pop(app, None)
        else:
            self.roster.specs[app] = spec
        self._table = None
        if spec is None or old is None or old.mode != spec.mode:
            rows = self.roster.rows
            mine = np.flatnonzero(rows.app == index)
            ledger.adopt(rows, mine)
            rows.admitted[mine] = False

    def withdraw(self, app: str, moment: Moment) -> tuple[LimitUpdate, ...]:
        """An application is no longer announced: take its nodes' reserves back and give it up."""
        book = self.roster.reserves
        self.set_spec(app, None)
        index = np.flatnonzero(book.live & (book.app == self.roster.app_index(app)))
        nothing, fair = np.zeros(len(index), dtype=np.int64), self._lending.fair_shares(self.table, self.pools())
        updates = self._lending.send(self.table, fair, (index, nothing), moment) if self.epoch_of(app) else ()
        self.disown(app)
        return updates

    def fences_due(self, moment: Moment) -> tuple[LimitUpdate, ...]:
        """Fences for nodes that have not acknowledged an epoch and hold containers of ours, or may hold some."""
        table, rows = self.table, self.roster.rows
        due = []
        for index, node in enumerate(self.roster.nodes):
            apps = np.unique(rows.app[rows.node == index])
            names = [self.roster.apps[app] for app in apps if table.known[app] and not table.virtual[app]]
            absent = self.roster.absent_apps(index)
            missing = [name for name in names if name not in node.fenced or name in absent]
            for epoch in sorted({self.epoch_of(name) for name in missing}):
                mine = tuple(name for name in names if self.epoch_of(name) == epoch)
                due.append(messages.fence(node, mine, self._lending.next_order(epoch, moment)))
        for state, asked, epoch in self.attendance.questions(self._tenure.epochs):
            due.append(messages.fence(state, asked, self._lending.next_order(epoch, moment)))
        return tuple(due)

    def take_reply(self, reply: LimitReply, update: LimitUpdate, moment: Moment) -> None:
        """An agent says what was applied and what is true now; `fund` then hands out the room that came free."""
        ours = [app for app in update.apps if self.epoch_of(app) == update.epoch]
        self.attendance.take_answer(self.roster, reply, () if update.row_count else ours)
        node = self.roster.node_index(reply.node)
        if node is None or self.roster.nodes[node].incarnation != reply.incarnation or reply.refusal is not None:
            return
        stale = set(reply.stale_apps).intersection(ours)
        if stale:
            self._tenure.lost |= stale
            self._table = None
            return
        self.roster.nodes[node].take_headroom(reply.node_headroom_bytes, reply.report_seq)
        self.roster.fence_acknowledged(node, ours, reply.report_seq)
        found = self.roster.known_rows(node, reply.keys)
        known = np.array([row is not None for row in found], dtype=np.bool_)
        quota_us, limit_bytes, order_seq = (reply.column(name) for name in ("quota_us", "limit_bytes", "order_seq"))
        sane = sane_rows(("quota_us", "memory_limit_bytes", "order_seq"), np.array((quota_us, limit_bytes, order_seq)))
        self.roster.counts.absurd_rows += int(np.count_nonzero(~sane))
        known &= sane
        index = np.array([row for row, usable in zip(found, known.tolist(), strict=True) if usable], dtype=np.int64)
        report = ledger.Report(
            index,
            np.full(len(index), reply.report_seq, dtype=np.int64),
            quota_us[known],
            limit_bytes[known],
            order_seq[known],
            np.zeros(len(index), dtype=np.bool_),
        )
        ledger.settle(self.roster.rows, report, moment.now_ns)
        self._give_up(index[_IS_LOST[reply.column("status")[known]]], reply.seq)
        if reply.inventory_complete:
            self.roster.settle_reserves_of(reply, node)
            if not update.row_count:
                self.roster.drop_absent(node, ours, found)

    def take_loss(self, update: LimitUpdate) -> None:
        """No reply came: the orders may or may not act later, so they stay in flight; the wish starts afresh."""
        node = self.roster.node_index(update.node)
        if node is not None:
            rows = self.roster.known_rows(node, update.keys)
            self._give_up(np.array([row for row in rows if row is not None], dtype=np.int64), update.seq)

    # -- the step ----------------------------------------------------------------------------------------------

    def step(self, batches: Sequence[CfsBatch], moment: Moment) -> Outcome:
        """Decide for everything that has arrived since the last step."""
        self.step_count += 1
        ours = [batch for batch in batches if self.epoch_of(batch.app)]
        taken = self.roster.ingest(ours, moment.now_ns, moment.wall_ns)
        self.attendance.expect_again(self.roster.take_unsure())
        self.attendance.take_batches(self.roster, taken)
        rows, before = self.roster.rows, self._ordered()
        self._reasons = (Reasons.none(rows.count), Reasons.none(rows.count))
        if not rows.count:
            return self._send(before, moment)
        reachable, open_apps = standing.reachable(self.roster, self.table, moment), self._open_apps(moment)
        applying = ~rows.admitted & self.table.known[rows.app] & open_apps[rows.app] & reachable
        waiting = applying & rows.fresh
        stock, refused = standing.take_stock(self.roster, self.table), []
        if waiting.any():
            refused = admit_newcomers(self.roster, self.table, stock, np.flatnonzero(waiting), self._reasons)
            stock = standing.take_stock(self.roster, self.table)
        # Also for those whose node has not spoken in this step: else it would be given away between two of its batches.
        self._kept = room_to_keep(self.roster, self.table, stock, applying & ~rows.admitted)
        # A newcomer keeps its initial limits for a step: there is only one sample of it.
        decidable = rows.admitted & ~waiting & self.table.known[rows.app] & reachable
        granting = Granting(self.roster, self.table, stock, self._kept)
        budgets = granting.budgets(decidable)
        quota_us = self._policies.cpu(self.table, decidable, budgets[0], self._reasons[0])
        limit_bytes = self._policies.memory(
            self.table, decidable, budgets[1], self._reasons[1], reclaim=moment.reclaim_memory
        )
        rows.fresh[:] = False
        granting.grant((quota_us, limit_bytes), open_apps)
        return self._send(before, moment, self._new_refusals(refused), stock.pools)

    def request_memory(self, request: MemoryRequest, moment: Moment) -> tuple[MemoryReply, Outcome]:
        """A node's reserve runs out (thesis 2.4.4.2): refill it, take back from others, or say why not."""
        roster, app, table = self.roster, request.app, self.table
        reply = MemoryReply(app=app, epoch=self.epoch_of(app), granted_bytes=0, reclaiming_bytes=0)
        node = roster.node_index(request.node)
        if node is None or not self.epoch_of(app):
            return reply, Outcome()
        index, group = roster.app_index(app), roster.reserve_row(app, node)
        if group is None or not table.known[index] or not self._open_apps(moment)[index]:
            return reply, Outcome()  # just taken over: the agent asks again
        if table.virtual[index]:
            return reply.model_copy(update={"refusal": f"{app} is only observed"}), Outcome()
        self._follow_rows()
        before, given_before = self._ordered(), int(roster.reserves.given_held_bytes[group])
        asker = self._lending.asker(table, self.pools(), roster.known_rows(node, [request.container]), index)
        roster.reserves.need(group, request.wanted_bytes, asker.within_bytes, moment.now_ns)
        refills = self._order_reserves(self.pools(), moment)
        granted = int(roster.reserves.given_held_bytes[group]) - given_before
        room = int(node_rooms(roster)[node])
        where = node if room < request.wanted_bytes - granted else None  # what comes back elsewhere is of no use
        missing = request.wanted_bytes - granted - self._lending.coming_back(table, index, group, where)
        if missing > 0:
            asker.spared += [] if where is None else self._not_on(where)
            self._take_back(index, missing, asker, moment)
        outcome = self._send(before, moment, quiet=True)
        coming = self._lending.coming_back(table, index, group, where)
        refusal = ""
        if not granted and not coming and roster.reserves.settled[group]:  # an order under way may bring it
            refusal = nothing_left(app, int(table.memory_limit_bytes[index]), index, self.pools()) + asker.remark
            if where is not None:
                refusal = node_is_full(request.node, room, request.wanted_bytes)
        reply = reply.model_copy(update={"granted_bytes": granted, "reclaiming_bytes": coming, "refusal": refusal})
        return reply, replace(outcome, updates=refills + outcome.updates)

    def _not_on(self, node: int) -> list[int]:
        rows: list[int] = np.flatnonzero(self.roster.rows.node != node).tolist()
        return rows

    def _take_back(self, app: int, missing_bytes: int, asker: Asker, moment: Moment) -> None:
        """Order cuts of the application's containers but those that are spared, as far as they have slack."""
        rows, table = self.roster.rows, self.table
        missing = np.zeros(len(self.roster.apps), dtype=np.int64)
        missing[app] = missing_bytes
        needy = np.zeros(rows.count, dtype=np.bool_)
        needy[asker.spared] = True
        decidable = rows.admitted & table.known[rows.app] & standing.reachable(self.roster, table, moment)
        wanted = WantedBack(missing, needy, asker.floor_bytes)
        targets = self._policies.take_memory_back(table, decidable, wanted, self._reasons[1])
        cut = targets < rows.limit_ordered_bytes
        rows.limit_ordered_bytes[cut] = targets[cut]
        rows.limit_wanted_bytes[cut] = 0

    @property
    def table(self) -> AppTable:
        """Application parameters, rebuilt when they or the applications have changed."""
        if self._table is None or len(self._table.known) != len(self.roster.apps):
            ours, specs = self._tenure.decided(), self.roster.specs
            self._table = build_table(self.roster.apps, {app: spec for app, spec in specs.items() if app in ours})
        return self._table

    def pools(self) -> Pools:
        """What is held per application, counted with everything in flight."""
        return standing.take_stock(self.roster, self.table).pools

    def _ordered(self) -> Ordered:
        """What holds by order; for containers that are not admitted, what they came with."""
        rows = self.roster.rows
        return Ordered(
            np.where(rows.admitted, rows.quota_ordered_us, rows.quota_us),
            np.where(rows.admitted, rows.limit_ordered_bytes, rows.limit_bytes),
        )

    def _give_up(self, index: IntArray, seq: int) -> None:
        """Rows whose order failed or was lost start again from what the kernel holds, unless a newer one is out."""
        ledger.adopt(self.roster.rows, index[self.roster.rows.order_seq[index] == seq])

    def _open_apps(self, moment: Moment) -> BoolArray:
        """Applications that may hand out room: every node that may hold a part of them is known and obeys us."""
        open_now = standing.open_apps(self.roster, self.table, self._tenure, moment)
        for app in self.attendance.missing:
            open_now[self.roster.app_index(app)] = False
        return open_now

    def _order_reserves(self, held: Pools, moment: Moment) -> tuple[LimitUpdate, ...]:
        return self._lending.orders(self.table, held, self._kept.limit_bytes, self._open_apps(moment), moment)

    def fund(self, moment: Moment) -> Outcome:
        """Order what waited for room, now that some may have come free."""
        rows = self.roster.rows
        needy = self.roster.reserves.needy(moment.now_ns).any()
        if not (needy or rows.quota_wanted_us.any() or rows.limit_wanted_bytes.any()):
            return Outcome()
        self._follow_rows()
        before = self._ordered()
        quota_us = np.where(rows.quota_wanted_us > 0, rows.quota_wanted_us, rows.quota_ordered_us)
        limit_bytes = np.where(rows.limit_wanted_bytes > 0, rows.limit_wanted_bytes, rows.limit_ordered_bytes)
        refills = self._order_reserves(self.pools(), moment) if needy else ()
        granting = Granting(self.roster, self.table, standing.take_stock(self.roster, self.table), self._kept)
        granting.grant((quota_us, limit_bytes), self._open_apps(moment))
        outcome = self._send(before, moment, quiet=True)
        return replace(outcome, updates=refills + outcome.updates)

    def _new_refusals(self, refused: list[Refused]) -> tuple[Refusal, ...]:
        """Remember who is refused; tell each once."""
        roster, told = self.roster, []
        for case in refused:
            node, key = roster.nodes[int(roster.rows.node[case.row])].name, roster.keys[case.row]
            if case.tell and (node, key) not in self.refusals:
                told.append(Refusal(roster.apps[int(roster.rows.app[case.row])], node, key, case.reason))
                self.refusals[node, key] = case.reason
        if self.refusals:
            waiting = np.flatnonzero(~roster.rows.admitted).tolist()
            names = {(roster.nodes[int(roster.rows.node[row])].name, roster.keys[row]) for row in waiting}
            self.refusals = {name: reason for name, reason in self.refusals.items() if name in names}
        return tuple(told)

    def _send(
        self,
        before: Ordered,
        moment: Moment,
        refusals: tuple[Refusal, ...] = (),
        held: Pools | None = None,
        *,
        quiet: bool = False,
    ) -> Outcome:
        """Orders for the rows that changed, and decisions to watch. ``quiet``: no pools without a change.

        ``held`` is what was held before the rows were ordered anew.
        """
        rows, table, epochs = self.roster.rows, self.table, self._tenure.epoch_array(self.roster.apps)
        changed = (rows.quota_ordered_us != before.quota_us) | (rows.limit_ordered_bytes != before.limit_bytes)
        to_send = np.flatnonzero(changed & rows.admitted & ~table.virtual[rows.app])
        updates = self._orders(to_send, epochs, before, moment) if len(to_send) else []
        any_changed = bool(changed.any())
        held = self.pools() if any_changed or held is None else held
        if not quiet and (refills := self._order_reserves(held, moment)):
            updates += refills
            held = self.pools()
        tell_pools = not quiet and self.step_count % POOLS_EVERY_STEPS == 0
        if not (tell_pools or any_changed):
            return Outcome(tuple(updates), (), refusals)
        result = StepResult(table, held, epochs, moment.wall_ns, self.step_count, before, *self._reasons)
        told = dict(grouped(np.flatnonzero(changed), rows.app))
        decisions = [
            messages.limit_decisions(self.roster, app, told.get(app, _NO_ROWS), result)
            for app in np.flatnonzero(table.known).tolist()
            if tell_pools or app in told
        ]
        return Outcome(tuple(updates), tuple(decisions), refusals)

    def _orders(self, index: IntArray, epochs: IntArray, before: Ordered, moment: Moment) -> list[LimitUpdate]:
        """One message per node and epoch."""
        rows = self.roster.rows
        index = index[np.lexsort((epochs[rows.app[index]], rows.node[index]))]
        epoch, sending = epochs[rows.app[index]], messages.Sending.of(rows, index, before)
        seq, updates = np.empty(len(index), dtype=np.int64), []
        for part in runs(rows.node[index], epoch):
            order = self._lending.next_order(int(epoch[part.start]), moment)
            seq[part] = order.seq
            updates.append(messages.limit_update(self.roster, sending, part, order))
        ledger.record_orders(rows, index, (sending.quota_us, sending.limit_bytes), seq)
        return updates

    def _follow_rows(self) -> None:
        """Rows and applications may have come and gone since the last step."""
        if len(self._reasons[0].reason) != self.roster.rows.count:
            self._reasons = (Reasons.none(self.roster.rows.count), Reasons.none(self.roster.rows.count))
        if new := len(self.roster.apps) - len(self._kept.quota_us):
            self._kept.quota_us = np.append(self._kept.quota_us, np.zeros(new, np.int64))
            self._kept.limit_bytes = np.append(self._kept.limit_bytes, np.zeros(new, np.int64))

"""One step: batches in, orders and decisions out, for all applications at once.

Order of work: take in the truth, admit newcomers, let the policies wish, grant what the ledger has room for, send.
Pure: times come in as arguments, messages go out as values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from schemas.apps import AppSpec
from schemas.cfs import CfsBatch
from schemas.limits import LimitDecisions, LimitReply, LimitUpdate, RowStatus
from services.allocator.core import ledger, messages
from services.allocator.core.app_table import AppTable, build_table
from services.allocator.core.messages import Order, Ordered, Pools, Reasons, StepResult
from services.allocator.core.newcomers import Refused, Waiting, admit_newcomers, room_to_keep
from services.allocator.core.roster import Roster, sane_rows
from services.allocator.core.rows import BoolArray, IntArray, grouped
from services.allocator.core.targets import Policies

_IS_LOST = np.zeros(256, dtype=np.bool_)
"""By `RowStatus`: whether the order is void. (A look-up, because `np.isin` takes ten times as long.)"""
_IS_LOST[[RowStatus.FAILED, RowStatus.UNKNOWN_CONTAINER, RowStatus.STALE_EPOCH, RowStatus.OLD_ORDER]] = True
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


@dataclass(frozen=True, slots=True)
class Moment:
    """When a step happens."""

    now_ns: int
    """Monotonic."""
    wall_ns: int
    """Since the epoch."""
    reclaim_memory: bool = False
    """Whether the periodic reclaim is due (thesis 2.4.3)."""
    warming_up: bool = False
    """Shortly after start nodes may not have been heard yet: nothing is raised, nobody admitted."""
    stale_after_ns: int = 2_000_000_000
    """A node not heard for this long is not decided about; its containers keep their share."""


class Allocation:
    """All applications of one allocator."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        """Fences out earlier owners; see `schemas.limits.LimitUpdate`."""
        self.roster = Roster()
        self.step_count = 0
        self.superseded = False
        """A newer epoch has been seen: this allocator must fall silent."""
        self.refusals: dict[tuple[str, str], str] = {}
        """Why (node, container) is not admitted."""
        self._seq = 0
        self._policies = Policies(self.roster)
        self._table: AppTable | None = None
        self._reasons = (Reasons.none(0), Reasons.none(0))
        self._kept = Waiting(np.zeros(0, np.int64), np.zeros(0, np.int64))

    # -- the outside tells -------------------------------------------------------------------------------------

    def set_spec(self, app: str, spec: AppSpec | None) -> None:
        """An application was announced, changed or (None) withdrawn; its containers keep their limits."""
        index, old = self.roster.app_index(app), self.roster.specs.get(app)
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

    def fences_due(self, moment: Moment) -> tuple[LimitUpdate, ...]:
        """Fences for nodes that have not acknowledged this epoch and hold containers of ours to enforce."""
        table, rows = self.table, self.roster.rows
        due = []
        for index, node in enumerate(self.roster.nodes):
            apps = np.unique(rows.app[rows.node == index])
            names = tuple(self.roster.apps[app] for app in apps if table.known[app] and not table.virtual[app])
            if not self.superseded and set(names) - node.fenced:
                due.append(messages.fence(node, names, self._next_order(moment)))
        return tuple(due)

    def take_reply(self, reply: LimitReply, update: LimitUpdate, moment: Moment) -> None:
        """An agent says what was applied and what is true now; `fund` then hands out the room that came free."""
        node = self.roster.node_index(reply.node)
        if node is None or self.roster.nodes[node].incarnation != reply.incarnation or reply.refusal is not None:
            return
        if reply.stale_apps:
            self.superseded = True
            return
        self.roster.fence_acknowledged(node, update.apps)
        found = self.roster.known_rows(node, reply.keys)
        known = np.array([row is not None for row in found], dtype=np.bool_)
        quota_us, limit_bytes, order_seq = (reply.column(name) for name in ("quota_us", "limit_bytes", "order_seq"))
        sane = sane_rows({"quota_us": quota_us, "memory_limit_bytes": limit_bytes, "order_seq": order_seq})
        self.roster.counts.absurd_rows += int(np.count_nonzero(~sane))
        known &= sane
        index = np.array([row for row, usable in zip(found, known.tolist(), strict=True) if usable], dtype=np.int64)
        report = ledger.Report(
            index,
            np.full(len(index), reply.report_seq, dtype=np.int64),
            quota_us[known],
            limit_bytes[known],
            order_seq[known],
        )
        ledger.settle(self.roster.rows, report, moment.now_ns)
        self._give_up(index[_IS_LOST[reply.column("status")[known]]], reply.seq)

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
        self.roster.ingest(batches, moment.now_ns)
        rows, before = self.roster.rows, self._ordered()
        self._reasons = (Reasons.none(rows.count), Reasons.none(rows.count))
        if self.superseded or not rows.count:
            return self._send(before, moment)
        reachable, open_apps = self._reachable(moment), self._open_apps(moment)
        waiting = ~rows.admitted & self.table.known[rows.app] & open_apps[rows.app] & reachable & rows.fresh
        refused = admit_newcomers(self.roster, self.table, np.flatnonzero(waiting), self._free(), self._reasons)
        self._kept = room_to_keep(self.roster, self.table, self.pools().containers, waiting & ~rows.admitted)
        # A newcomer keeps its initial limits for a step: there is only one sample of it.
        decidable = rows.admitted & ~waiting & self.table.known[rows.app] & reachable
        budgets = self._budgets(decidable)
        quota_us = self._policies.cpu(self.table, decidable, budgets[0], self._reasons[0])
        limit_bytes = self._policies.memory(
            self.table, decidable, budgets[1], self._reasons[1], reclaim=moment.reclaim_memory
        )
        rows.fresh[:] = False
        self._grant(quota_us, limit_bytes, open_apps)
        return self._send(before, moment, self._new_refusals(refused))

    @property
    def table(self) -> AppTable:
        """Application parameters, rebuilt when they or the applications have changed."""
        if self._table is None or len(self._table.known) != len(self.roster.apps):
            self._table = build_table(self.roster.apps, self.roster.specs)
        return self._table

    def pools(self) -> Pools:
        """What is held per application, counted with everything in flight."""
        rows, apps = self.roster.rows, len(self.roster.apps)
        virtual = self.table.virtual[rows.app]
        quota, limit = (ledger.held(rows, account, virtual) for account in ledger.ACCOUNTS)
        return Pools(
            _sum(rows.app, quota, apps), _sum(rows.app, limit, apps), _sum(rows.app, rows.admitted.astype(int), apps)
        )

    def _next_order(self, moment: Moment) -> Order:
        self._seq += 1
        return Order(self.epoch, self._seq, moment.wall_ns)

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

    def _heard(self, moment: Moment) -> BoolArray:
        """Rows whose agent was heard lately."""
        heard_ns = np.array([node.heard_ns for node in self.roster.nodes], dtype=np.int64)
        lately: BoolArray = moment.now_ns - heard_ns[self.roster.rows.node] <= moment.stale_after_ns
        return lately

    def _reachable(self, moment: Moment) -> BoolArray:
        """Rows whose agent was heard lately and has acknowledged this epoch (or need not: nothing is sent)."""
        rows = self.roster.rows
        return self._heard(moment) & (rows.fenced | self.table.virtual[rows.app])

    def _open_apps(self, moment: Moment) -> BoolArray:
        """Applications that may hand out room: no live agent may still act on an older owner's orders."""
        rows, apps = self.roster.rows, len(self.roster.apps)
        unfenced = self._heard(moment) & ~rows.fenced & ~self.table.virtual[rows.app]
        settled: BoolArray = (np.bincount(rows.app, unfenced, apps) == 0) & (not moment.warming_up)
        return settled

    def _free(self) -> tuple[IntArray, IntArray]:
        """Limit - held per application; CPU, memory. Negative: over the limit."""
        pools, table = self.pools(), self.table
        return table.cpu_limit_us - pools.quota_held_us, table.memory_limit_bytes - pools.limit_held_bytes

    def _budgets(self, decidable: BoolArray) -> tuple[IntArray, IntArray]:
        """What the decidable rows of each application may hold together. CPU, memory."""
        rows, table, apps = self.roster.rows, self.table, len(self.roster.apps)
        virtual = table.virtual[rows.app]
        quota, limit = (
            _sum(rows.app, np.where(decidable, 0, ledger.held(rows, account, virtual)), apps)
            for account in ledger.ACCOUNTS
        )
        return (
            table.cpu_limit_us - quota - self._kept.quota_us,
            table.memory_limit_bytes - limit - self._kept.limit_bytes,
        )

    def _grant(self, quota_us: IntArray, limit_bytes: IntArray, open_apps: BoolArray) -> None:
        rows = self.roster.rows
        virtual = self.table.virtual[rows.app]
        kept = (self._kept.quota_us, self._kept.limit_bytes)
        for account, target, free, keep in zip(
            ledger.ACCOUNTS, (quota_us, limit_bytes), self._free(), kept, strict=True
        ):
            room = np.where(open_apps, free - keep, 0)
            account.of(rows, "ordered")[:] = ledger.commit(rows, account, target, room, virtual)

    def fund(self, moment: Moment) -> Outcome:
        """Order what waited for room, now that some may have come free."""
        rows = self.roster.rows
        if (
            self.superseded
            or not (rows.quota_wanted_us.any() or rows.limit_wanted_bytes.any())
            or len(self._reasons[0].reason) != rows.count
        ):
            return Outcome()
        before = self._ordered()
        quota_us = np.where(rows.quota_wanted_us > 0, rows.quota_wanted_us, rows.quota_ordered_us)
        limit_bytes = np.where(rows.limit_wanted_bytes > 0, rows.limit_wanted_bytes, rows.limit_ordered_bytes)
        self._grant(quota_us, limit_bytes, self._open_apps(moment))
        return self._send(before, moment, quiet=True)

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
        self, before: Ordered, moment: Moment, refusals: tuple[Refusal, ...] = (), *, quiet: bool = False
    ) -> Outcome:
        """Orders for the rows that changed, and decisions to watch. ``quiet``: no pools without a change."""
        rows, table = self.roster.rows, self.table
        changed = (rows.quota_ordered_us != before.quota_us) | (rows.limit_ordered_bytes != before.limit_bytes)
        to_send = np.flatnonzero(changed & rows.admitted & ~table.virtual[rows.app])
        updates = []
        for node, index in grouped(to_send, rows.node):
            order = self._next_order(moment)
            update = messages.limit_update(self.roster, node, index, before, order)
            updates.append(update)
            ledger.record_orders(rows, index, (update.column("quota_us"), update.column("limit_bytes")), order.seq)
        result = StepResult(
            table, self.pools(), Order(self.epoch, 0, moment.wall_ns), self.step_count, before, *self._reasons
        )
        tell_pools = not quiet and self.step_count % POOLS_EVERY_STEPS == 0
        told = dict(grouped(np.flatnonzero(changed), rows.app))
        decisions = [
            messages.limit_decisions(self.roster, app, told.get(app, _NO_ROWS), result)
            for app in np.flatnonzero(table.known).tolist()
            if tell_pools or app in told
        ]
        return Outcome(tuple(updates), tuple(decisions), refusals)


def _sum(app: IntArray, values: IntArray, apps: int) -> IntArray:
    """Exact sums per application: bincount's float64 holds integers up to 2**53."""
    return np.bincount(app, values, apps).astype(np.int64)

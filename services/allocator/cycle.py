"""Allocation cycle: batches in, limit updates and decisions out, for all applications of this replica at once.

Order of work: apply reports, admit pending containers, let the policies compute targets, assign what the ledger has
capacity for, plan the nodes' reserves, send.
Pure: times are arguments, messages are return values.
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
from services.allocator.budget.budgets import BudgetAssignment
from services.allocator.budget.node_headroom import node_headroom, node_is_full
from services.allocator.cpu.policies import Policies, ReclaimRequest
from services.allocator.memory.reserve_updates import MemoryRequester, ReservePlanner, explain_exhausted
from services.allocator.messages import Ordered, Pools, Reasons, StepResult
from services.allocator.state import eligibility
from services.allocator.state.app_parameters import AppTable, build_table
from services.allocator.state.cluster_state import ClusterState, valid_rows
from services.allocator.state.container_columns import BoolArray, IntArray, grouped, runs
from services.allocator.state.eligibility import LeaseState, StepTime
from services.allocator.state.node_inventory import NodeInventory
from services.allocator.state.pending_containers import (
    PendingCapacity,
    PendingRefusal,
    admit_pending,
    capacity_for_pending,
)

_IS_LOST = np.zeros(256, dtype=np.bool_)
"""By `RowStatus`: whether the update is void. (A look-up, because `np.isin` takes ten times as long.)"""
_IS_LOST[[RowStatus.FAILED, RowStatus.UNKNOWN_CONTAINER, RowStatus.STALE_EPOCH, RowStatus.STALE_SEQ]] = True
_IS_LOST[RowStatus.NODE_BUDGET] = True
_NO_ROWS = np.zeros(0, dtype=np.int64)
POOLS_EVERY_STEPS = 10
"""Pools are published at least once a second."""


@dataclass(frozen=True, slots=True)
class RefusedContainer:
    """A container for which its application has no capacity."""

    app: str
    node: str
    container: str
    reason: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """Results of a step."""

    updates: tuple[LimitUpdate, ...] = ()
    decisions: tuple[LimitDecisions, ...] = ()
    refusals: tuple[RefusedContainer, ...] = ()
    """New ones only."""


class AllocationCycle:
    """Allocation for the applications that one replica owns."""

    def __init__(self, warm_up_ns: int = 0) -> None:
        """After acquiring an application nothing of it is raised for ``warm_up_ns``: nodes have to report first."""
        self.cluster = ClusterState()
        self.step_count = 0
        self.refusals: dict[tuple[str, str], str] = {}
        """Why (node, container) is not admitted."""
        self.inventory = NodeInventory()
        self._leases = LeaseState(warm_up_ns)
        self._reserve_planner = ReservePlanner(self.cluster, self._leases)
        self._policies = Policies(self.cluster)
        self._table: AppTable | None = None
        self._reasons = (Reasons.none(0), Reasons.none(0))
        self._pending = PendingCapacity(np.zeros(0, np.int64), np.zeros(0, np.int64))

    # -- leases, specs, replies --------------------------------------------------------------------------------

    def acquire(self, app: str, epoch: int, now_ns: int) -> None:
        """Own an application from now on; ``epoch`` fences out its previous owners."""
        self.release(app)
        self.cluster.app_index(app)
        self._leases.acquire(app, epoch, now_ns)
        self.inventory.await_reports(app)
        self._table = None
        self._resize()

    def release(self, app: str) -> None:
        """Release an application; its containers keep their limits."""
        self.inventory.release(app)
        if self._leases.release(app):
            self.cluster.remove_app(app)
        self._table = None

    def end_warm_up(self, app: str) -> None:
        """All nodes of the application have reported."""
        self._leases.warm_up_ends_ns[app] = 0
        self.inventory.release(app)

    def epoch_of(self, app: str) -> int:
        """Epoch of an application; 0: not owned."""
        return self._leases.epochs.get(app, 0)

    def drain_lost(self) -> set[str]:
        """Release the applications of which an agent has reported a newer epoch; returns them."""
        lost = set(self._leases.lost)
        for app in lost:
            self.release(app)
        return lost

    def set_spec(self, app: str, spec: AppSpec | None) -> None:
        """Apply a new, changed or (None) withdrawn spec; containers keep their limits."""
        index, old = self.cluster.app_index(app), self.cluster.specs.get(app)
        self._resize()
        if spec is None:
            self.cluster.specs.pop(app, None)
        else:
            self.cluster.specs[app] = spec
        self._table = None
        if spec is None or old is None or old.mode != spec.mode:
            rows = self.cluster.rows
            mine = np.flatnonzero(rows.app == index)
            ledger.resync(rows, mine)
            rows.admitted[mine] = False

    def withdraw(self, app: str, time: StepTime) -> tuple[LimitUpdate, ...]:
        """Release an unannounced application after taking its nodes' reserves back."""
        node_reserves = self.cluster.reserves
        self.set_spec(app, None)
        index = np.flatnonzero(node_reserves.in_use & (node_reserves.app == self.cluster.app_index(app)))
        nothing, fair = (
            np.zeros(len(index), dtype=np.int64),
            self._reserve_planner.fair_shares(self.table, self.pools()),
        )
        updates = (
            self._reserve_planner.build_updates(self.table, fair, (index, nothing), time) if self.epoch_of(app) else ()
        )
        self.release(app)
        return updates

    def fences_due(self, time: StepTime) -> tuple[LimitUpdate, ...]:
        """Fences for nodes that have not acknowledged an epoch and hold, or may hold, containers of its application."""
        table, rows = self.table, self.cluster.rows
        due = []
        for index, node in enumerate(self.cluster.nodes):
            apps = np.unique(rows.app[rows.node == index])
            names = [self.cluster.apps[app] for app in apps if table.known[app] and not table.observe_only[app]]
            absent = self.cluster.apps_with_unreported(index)
            missing = [name for name in names if name not in node.fenced or name in absent]
            for epoch in sorted({self.epoch_of(name) for name in missing}):
                mine = tuple(name for name in names if self.epoch_of(name) == epoch)
                due.append(messages.fence(node, mine, self._reserve_planner.next_update(epoch, time)))
        for state, asked, epoch in self.inventory.fence_requests(self._leases.epochs):
            due.append(messages.fence(state, asked, self._reserve_planner.next_update(epoch, time)))
        return tuple(due)

    def record_reply(self, reply: LimitReply, update: LimitUpdate, time: StepTime) -> None:
        """Record what an agent applied and now holds; `redistribute` then assigns what came free."""
        ours = [app for app in update.apps if self.epoch_of(app) == update.epoch]
        self.inventory.record_fence_reply(self.cluster, reply, () if update.row_count else ours)
        node = self.cluster.node_index(reply.node)
        if node is None or self.cluster.nodes[node].incarnation != reply.incarnation or reply.refusal is not None:
            return
        stale = set(reply.stale_apps).intersection(ours)
        if stale:
            self._leases.lost |= stale
            self._table = None
            return
        self.cluster.nodes[node].record_headroom(reply.node_headroom_bytes, reply.report_seq)
        self.cluster.fence_acknowledged(node, ours, reply.report_seq)
        found = self.cluster.find_rows(node, reply.keys)
        known = np.array([row is not None for row in found], dtype=np.bool_)
        quota_us, limit_bytes, order_seq = (reply.column(name) for name in ("quota_us", "limit_bytes", "order_seq"))
        sane = valid_rows(("quota_us", "memory_limit_bytes", "order_seq"), np.array((quota_us, limit_bytes, order_seq)))
        self.cluster.counts.invalid_samples += int(np.count_nonzero(~sane))
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
        ledger.ack(self.cluster.rows, report, time.now_ns)
        self._resync(index[_IS_LOST[reply.column("status")[known]]], reply.seq)
        if reply.inventory_complete:
            self.cluster.ack_reserves(reply, node)
            if not update.row_count:
                self.cluster.drop_unreported(node, ours, found)

    def record_timeout(self, update: LimitUpdate) -> None:
        """Record a timeout: the update may or may not act later, so it stays in flight; its rows are resynced."""
        node = self.cluster.node_index(update.node)
        if node is not None:
            rows = self.cluster.find_rows(node, update.keys)
            self._resync(np.array([row for row in rows if row is not None], dtype=np.int64), update.seq)

    # -- the step ----------------------------------------------------------------------------------------------

    def step(self, batches: Sequence[CfsBatch], time: StepTime) -> Outcome:
        """Decide for everything received since the last step."""
        self.step_count += 1
        ours = [batch for batch in batches if self.epoch_of(batch.app)]
        taken = self.cluster.ingest(ours, time.now_ns, time.wall_ns)
        self.inventory.await_reports_again(self.cluster.drain_unconfirmed())
        self.inventory.record_batches(self.cluster, taken)
        rows, before = self.cluster.rows, self._ordered()
        self._reasons = (Reasons.none(rows.count), Reasons.none(rows.count))
        if not rows.count:
            return self._send(before, time)
        reachable, eligible_apps = eligibility.reachable(self.cluster, self.table, time), self._eligible_apps(time)
        applying = ~rows.admitted & self.table.known[rows.app] & eligible_apps[rows.app] & reachable
        waiting = applying & rows.fresh
        holdings, refused = eligibility.current_holdings(self.cluster, self.table), []
        if waiting.any():
            refused = admit_pending(self.cluster, self.table, holdings, np.flatnonzero(waiting), self._reasons)
            holdings = eligibility.current_holdings(self.cluster, self.table)
        # Also for nodes without a batch in this step: else their share would be assigned between two of their batches.
        self._pending = capacity_for_pending(self.cluster, self.table, holdings, applying & ~rows.admitted)
        # A container admitted in this step keeps its initial limits: there is only one sample of it.
        decidable = rows.admitted & ~waiting & self.table.known[rows.app] & reachable
        assignment = BudgetAssignment(self.cluster, self.table, holdings, self._pending)
        budgets = assignment.budgets(decidable)
        quota_us = self._policies.cpu(self.table, decidable, budgets[0], self._reasons[0])
        limit_bytes = self._policies.memory(
            self.table, decidable, budgets[1], self._reasons[1], reclaim=time.reclaim_memory
        )
        rows.fresh[:] = False
        assignment.assign((quota_us, limit_bytes), eligible_apps)
        return self._send(before, time, self._new_refusals(refused), holdings.pools)

    def request_memory(self, request: MemoryRequest, time: StepTime) -> tuple[MemoryReply, Outcome]:
        """Answer a memory request (thesis 2.4.4.2): refill the reserve, reclaim from others, or say why not."""
        cluster, app, table = self.cluster, request.app, self.table
        reply = MemoryReply(app=app, epoch=self.epoch_of(app), granted_bytes=0, reclaiming_bytes=0)
        node = cluster.node_index(request.node)
        if node is None or not self.epoch_of(app):
            return reply, Outcome()
        index, group = cluster.app_index(app), cluster.reserve_row(app, node)
        if group is None or not table.known[index] or not self._eligible_apps(time)[index]:
            return reply, Outcome()  # just acquired: the agent retries
        if table.observe_only[index]:
            return reply.model_copy(update={"refusal": f"{app} is only observed"}), Outcome()
        self._resize()
        before, given_before = self._ordered(), int(cluster.reserves.grant_committed_bytes[group])
        requester = self._reserve_planner.requester(
            table, self.pools(), cluster.find_rows(node, [request.container]), index
        )
        cluster.reserves.record_request(group, request.wanted_bytes, requester.within_bytes, time.now_ns)
        refills = self._plan_reserves(self.pools(), time)
        granted = int(cluster.reserves.grant_committed_bytes[group]) - given_before
        room = int(node_headroom(cluster)[node])
        where = (
            node if room < request.wanted_bytes - granted else None
        )  # what is reclaimed on other nodes does not help
        missing = request.wanted_bytes - granted - self._reserve_planner.reclaim_in_flight(table, index, group, where)
        if missing > 0:
            requester.exempt += [] if where is None else self._not_on(where)
            self._reclaim(index, missing, requester, time)
        outcome = self._send(before, time, quiet=True)
        reclaiming = self._reserve_planner.reclaim_in_flight(table, index, group, where)
        refusal = ""
        if not granted and not reclaiming and cluster.reserves.acked[group]:  # an update in flight may bring it
            refusal = (
                explain_exhausted(app, int(table.memory_limit_bytes[index]), index, self.pools()) + requester.remark
            )
            if where is not None:
                refusal = node_is_full(request.node, room, request.wanted_bytes)
        reply = reply.model_copy(update={"granted_bytes": granted, "reclaiming_bytes": reclaiming, "refusal": refusal})
        return reply, replace(outcome, updates=refills + outcome.updates)

    def _not_on(self, node: int) -> list[int]:
        rows: list[int] = np.flatnonzero(self.cluster.rows.node != node).tolist()
        return rows

    def _reclaim(self, app: int, missing_bytes: int, requester: MemoryRequester, time: StepTime) -> None:
        """Reclaim from the application's containers but the exempt ones, as far as they have slack."""
        rows, table = self.cluster.rows, self.table
        missing = np.zeros(len(self.cluster.apps), dtype=np.int64)
        missing[app] = missing_bytes
        pending_requests = np.zeros(rows.count, dtype=np.bool_)
        pending_requests[requester.exempt] = True
        decidable = rows.admitted & table.known[rows.app] & eligibility.reachable(self.cluster, table, time)
        wanted = ReclaimRequest(missing, pending_requests, requester.floor_bytes)
        targets = self._policies.reclaim_memory_of(table, decidable, wanted, self._reasons[1])
        cut = targets < rows.limit_ordered_bytes
        rows.limit_ordered_bytes[cut] = targets[cut]
        rows.limit_deferred_bytes[cut] = 0

    @property
    def table(self) -> AppTable:
        """Application parameters, rebuilt when specs or leases have changed."""
        if self._table is None or len(self._table.known) != len(self.cluster.apps):
            ours, specs = self._leases.owned_apps(), self.cluster.specs
            self._table = build_table(self.cluster.apps, {app: spec for app, spec in specs.items() if app in ours})
        return self._table

    def pools(self) -> Pools:
        """Committed sums per application."""
        return eligibility.current_holdings(self.cluster, self.table).pools

    def _ordered(self) -> Ordered:
        """Ordered values; for containers that are not admitted, the reported ones."""
        rows = self.cluster.rows
        return Ordered(
            np.where(rows.admitted, rows.quota_ordered_us, rows.quota_us),
            np.where(rows.admitted, rows.limit_ordered_bytes, rows.limit_bytes),
        )

    def _resync(self, index: IntArray, seq: int) -> None:
        """Resync rows whose update failed or was lost, unless a newer one is in flight."""
        ledger.resync(self.cluster.rows, index[self.cluster.rows.order_seq[index] == seq])

    def _eligible_apps(self, time: StepTime) -> BoolArray:
        """Applications that may raise limits: every node that may hold containers has reported and acknowledged."""
        eligible = eligibility.eligible_apps(self.cluster, self.table, self._leases, time)
        for app in self.inventory.not_reported:
            eligible[self.cluster.app_index(app)] = False
        return eligible

    def _plan_reserves(self, held: Pools, time: StepTime) -> tuple[LimitUpdate, ...]:
        return self._reserve_planner.plan_updates(
            self.table, held, self._pending.limit_bytes, self._eligible_apps(time), time
        )

    def redistribute(self, time: StepTime) -> Outcome:
        """Order deferred targets, now that capacity may have come free."""
        rows = self.cluster.rows
        requested = self.cluster.reserves.pending_requests(time.now_ns).any()
        if not (requested or rows.quota_deferred_us.any() or rows.limit_deferred_bytes.any()):
            return Outcome()
        self._resize()
        before = self._ordered()
        quota_us = np.where(rows.quota_deferred_us > 0, rows.quota_deferred_us, rows.quota_ordered_us)
        limit_bytes = np.where(rows.limit_deferred_bytes > 0, rows.limit_deferred_bytes, rows.limit_ordered_bytes)
        refills = self._plan_reserves(self.pools(), time) if requested else ()
        assignment = BudgetAssignment(
            self.cluster, self.table, eligibility.current_holdings(self.cluster, self.table), self._pending
        )
        assignment.assign((quota_us, limit_bytes), self._eligible_apps(time))
        outcome = self._send(before, time, quiet=True)
        return replace(outcome, updates=refills + outcome.updates)

    def _new_refusals(self, refused: list[PendingRefusal]) -> tuple[RefusedContainer, ...]:
        """Record refusals; returns the new ones."""
        cluster, new = self.cluster, []
        for case in refused:
            node, key = cluster.nodes[int(cluster.rows.node[case.row])].name, cluster.keys[case.row]
            if case.report and (node, key) not in self.refusals:
                new.append(RefusedContainer(cluster.apps[int(cluster.rows.app[case.row])], node, key, case.reason))
                self.refusals[node, key] = case.reason
        if self.refusals:
            waiting = np.flatnonzero(~cluster.rows.admitted).tolist()
            names = {(cluster.nodes[int(cluster.rows.node[row])].name, cluster.keys[row]) for row in waiting}
            self.refusals = {name: reason for name, reason in self.refusals.items() if name in names}
        return tuple(new)

    def _send(
        self,
        before: Ordered,
        time: StepTime,
        refusals: tuple[RefusedContainer, ...] = (),
        held: Pools | None = None,
        *,
        quiet: bool = False,
    ) -> Outcome:
        """Limit updates for the changed rows, and decisions to publish. ``quiet``: no pools without a change.

        ``held`` is what was committed before the rows were ordered anew.
        """
        rows, table, epochs = self.cluster.rows, self.table, self._leases.epoch_array(self.cluster.apps)
        changed = (rows.quota_ordered_us != before.quota_us) | (rows.limit_ordered_bytes != before.limit_bytes)
        to_send = np.flatnonzero(changed & rows.admitted & ~table.observe_only[rows.app])
        updates = self._limit_updates(to_send, epochs, before, time) if len(to_send) else []
        any_changed = bool(changed.any())
        held = self.pools() if any_changed or held is None else held
        if not quiet and (refills := self._plan_reserves(held, time)):
            updates += refills
            held = self.pools()
        publish_pools = not quiet and self.step_count % POOLS_EVERY_STEPS == 0
        if not (publish_pools or any_changed):
            return Outcome(tuple(updates), (), refusals)
        result = StepResult(table, held, epochs, time.wall_ns, self.step_count, before, *self._reasons)
        new = dict(grouped(np.flatnonzero(changed), rows.app))
        decisions = [
            messages.limit_decisions(self.cluster, app, new.get(app, _NO_ROWS), result)
            for app in np.flatnonzero(table.known).tolist()
            if publish_pools or app in new
        ]
        return Outcome(tuple(updates), tuple(decisions), refusals)

    def _limit_updates(self, index: IntArray, epochs: IntArray, before: Ordered, time: StepTime) -> list[LimitUpdate]:
        """One limit update per node and epoch."""
        rows = self.cluster.rows
        index = index[np.lexsort((epochs[rows.app[index]], rows.node[index]))]
        epoch, sending = epochs[rows.app[index]], messages.ChangedRows.of(rows, index, before)
        seq, updates = np.empty(len(index), dtype=np.int64), []
        for part in runs(rows.node[index], epoch):
            order = self._reserve_planner.next_update(int(epoch[part.start]), time)
            seq[part] = order.seq
            updates.append(messages.limit_update(self.cluster, sending, part, order))
        ledger.record_updates(rows, index, (sending.quota_us, sending.limit_bytes), seq)
        return updates

    def _resize(self) -> None:
        """Adapt to rows and applications added or removed since the last step."""
        if len(self._reasons[0].reason) != self.cluster.rows.count:
            self._reasons = (Reasons.none(self.cluster.rows.count), Reasons.none(self.cluster.rows.count))
        if new := len(self.cluster.apps) - len(self._pending.quota_us):
            self._pending.quota_us = np.append(self._pending.quota_us, np.zeros(new, np.int64))
            self._pending.limit_bytes = np.append(self._pending.limit_bytes, np.zeros(new, np.int64))

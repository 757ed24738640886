"""Allocation cycle: batches in, limit updates and decisions out, for all applications of this replica at once.

Order of work: apply reports, admit pending containers, let the policies compute targets, assign what the budget has
capacity for, send, plan the nodes' reserves, send; then what others are told, and savings.
Pure: times are arguments, messages are return values, or arguments of a callback where they are urgent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from schemas.apps import AppSpec
from schemas.cfs import CfsBatch
from schemas.limits import LimitDecisions, LimitReply, LimitUpdate, RowStatus
from schemas.oom import MemoryReply, MemoryRequest
from services.allocator.columns import (
    NO_BOUND,
    Bools,
    IntArray,
    Reasons,
    Report,
    ack,
    grouped,
    record_updates,
    resync,
    runs,
)
from services.allocator.cpu import escra, waterfill
from services.allocator.cpu import pipeline as cpu
from services.allocator.memory import policy as memory
from services.allocator.memory import reserves
from services.allocator.state import kernel_bounds
from services.allocator.state.admission import (
    SHARE_SAMPLES,
    Admitted,
    admit_pending,
    apply_admissions,
)
from services.allocator.state.app_parameters import AppTable, build_table
from services.allocator.state.budget import (
    Holdings,
    LeaseState,
    PendingCapacity,
    Pools,
    StepContext,
    StepTime,
    assign_limits,
    assign_quotas,
    capacity_for_pending,
    held_beside_baseline,
    unacknowledged,
)
from services.allocator.state.cluster_state import ClusterState, NodeState, valid_rows
from services.allocator.state.node_inventory import NodeInventory
from services.allocator.state.totals import SavingsSums

_IS_LOST = np.zeros(256, dtype=np.bool_)
"""By `RowStatus`: whether the update is void. (A look-up, because `np.isin` takes ten times as long.)"""
_IS_LOST[[RowStatus.FAILED, RowStatus.UNKNOWN_CONTAINER, RowStatus.STALE_EPOCH, RowStatus.STALE_SEQ]] = True
_IS_LOST[RowStatus.NODE_BUDGET] = True
_NO_ROWS = np.zeros(0, dtype=np.int64)
_NO_CHANGES: tuple[list[str], dict[str, Any]] = ([], {"quota_us": [], "limit_bytes": []})
REASON_CHARACTERS = 500
"""Of an agent's sentence that is kept: it names a control group or two."""
DEFIED = 30
"""So many decreases of a container in a row that are not carried out make its node's reports of the application
unsupported: each takes half a second (five reports) to a second (a reply that does not come)."""
POOLS_EVERY_STEPS = 10
"""Pools are published at least once a second."""


@dataclass(frozen=True, slots=True)
class RefusedContainer:
    """A container that has no more than its floor, because its application has no capacity."""

    app: str
    node: str
    container: str
    reason: str
    ended: bool = False
    """It has more now."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Results of a step."""

    updates: tuple[LimitUpdate, ...] = ()
    decisions: tuple[LimitDecisions, ...] = ()
    refusals: tuple[RefusedContainer, ...] = ()
    """New ones, and those that have ended."""


Send = Callable[[tuple[LimitUpdate, ...]], None]


def keep(_updates: tuple[LimitUpdate, ...]) -> None:
    """The outcome has them, too."""


@dataclass(frozen=True, slots=True)
class Ordered:
    """Ordered values per row before and after a step; quotas in us per period, limits in bytes."""

    quota_us: IntArray
    limit_bytes: IntArray


class AllocationCycle:
    """Allocation for the applications that one replica owns."""

    def __init__(self, warm_up_ns: int = 0, longest_wait_s: float = 30.0) -> None:
        """After acquiring an application nothing of it is raised before its nodes have reported.

        Args:
            warm_up_ns: the least time for which nothing is raised then.
            longest_wait_s: for a node that does not report.
        """
        self.cluster = ClusterState()
        self.step_count = 0
        self.refusals: dict[tuple[str, str], str] = {}
        """Why (node, container) has no more than its floor."""
        self.kernel_reasons: dict[tuple[str, str, str], str] = {}
        """Why the kernel refuses a limit, by (node, container, ``cpu`` or ``memory``)."""
        self.inventory = NodeInventory(longest_wait_s)
        self.leases = LeaseState(warm_up_ns)
        self.savings = SavingsSums()
        self._newest_seq = 0
        """Of limit updates; it rises over all applications and epochs."""
        self._reserves = reserves.ReservePlanner()
        self.cpu = cpu.CpuPipeline(
            cpu.CpuPolicy(waterfill.WaterfillState(0), waterfill.step), cpu.CpuPolicy(escra.EscraState(0), escra.step)
        )
        self.memory = memory.MemoryPipeline()
        self._slot_capacity = 0
        """Slots that the pipelines have estimates for."""
        self._table: AppTable | None = None
        self._reasons = (Reasons.none(0), Reasons.none(0))
        self._pending = PendingCapacity(np.zeros(0, np.int64), np.zeros(0, np.int64))

    # -- leases, specs, replies --------------------------------------------------------------------------------

    def acquire(self, app: str, epoch: int, now_ns: int) -> None:
        """Own an application from now on; ``epoch`` fences out its previous owners."""
        self.release(app)
        self.cluster.app_index(app)
        self.leases.acquire(app, epoch, now_ns)
        self.inventory.await_reports(app)
        self._table = None

    def release(self, app: str) -> None:
        """Release an application; its containers keep their limits."""
        self.inventory.release(app)
        if self.leases.release(app):
            self.cluster.remove_app(app)
            self.savings.release(self.cluster.app_index(app))
        self._table = None

    def epoch_of(self, app: str) -> int:
        """Epoch of an application; 0: not owned."""
        return self.leases.epochs.get(app, 0)

    def drain_lost(self) -> dict[str, int]:
        """Release the applications of which an agent has reported a newer epoch; returns them with that epoch."""
        lost = dict(self.leases.lost)
        for app in lost:
            self.release(app)
        return lost

    def set_spec(self, app: str, spec: AppSpec | None) -> None:
        """Apply a new, changed or (None) withdrawn spec; containers keep their limits."""
        index, old = self.cluster.app_index(app), self.cluster.specs.get(app)
        if spec is None:
            self.cluster.specs.pop(app, None)
        else:
            self.cluster.specs[app] = spec
        self._table = None
        if spec is None or old is None or old.mode != spec.mode:
            rows = self.cluster.rows
            mine = np.flatnonzero(rows.app == index)
            resync(rows, mine)
            rows.admitted[mine], rows.observe_only[mine] = False, self.cluster.is_observed(app)

    def withdraw(self, app: str, time: StepTime) -> tuple[LimitUpdate, ...]:
        """Release an unannounced application after taking its nodes' reserves back."""
        self.set_spec(app, None)
        updates: tuple[LimitUpdate, ...] = ()
        if self.epoch_of(app):
            granted = self.cluster.reserves
            index = np.flatnonzero(granted.in_use & (granted.app == self.cluster.app_index(app)))
            updates = self._grant(self._context(time), (index, np.zeros(len(index), dtype=np.int64)))
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
                due.append(self._update(node, epoch, mine, time))
        for state, asked, epoch in self.inventory.fence_requests(self.leases.epochs):
            due.append(self._update(state, epoch, asked, time))
        return tuple(due)

    def record_reply(self, reply: LimitReply, update: LimitUpdate, time: StepTime) -> None:
        """Record what an agent applied and now holds; `redistribute` then assigns what came free."""
        claimed = [app for app in update.apps if self.epoch_of(app) == update.epoch]
        is_fence = not update.row_count
        if is_fence:
            self.inventory.record_fence_reply(self.cluster, reply, claimed)
        node = self.cluster.node_index(reply.node)
        if node is None or self.cluster.nodes[node].incarnation != reply.incarnation or reply.rejection is not None:
            return
        stale = {app: epoch for app, epoch in reply.newer_epochs().items() if app in claimed}
        if stale:
            now_s = time.now_ns / 1e9
            believed = [app for app in stale if self.inventory.believe_claim(app, reply.node, now_s)]
            self.leases.lost |= {app: max(stale[app], self.leases.lost.get(app, 0)) for app in believed}
            self._table = None
            if len(believed) < len(stale):
                self.record_timeout(update)
            return
        self.cluster.nodes[node].record_headroom(reply)
        self.cluster.fence_acknowledged(node, claimed, reply.report_seq)
        quota_us, limit_bytes = reply.column("quota_us"), reply.column("limit_bytes")
        limit_update_seq, status = reply.column("limit_update_seq"), reply.column("status")
        found = self.cluster.find_rows(node, reply.keys)
        sane = valid_rows(
            ("quota_us", "memory_limit_bytes", "limit_update_seq"), np.array((quota_us, limit_bytes, limit_update_seq))
        )
        self.cluster.counts.invalid_samples += int(np.count_nonzero(~sane))
        known = np.array([row is not None for row in found], dtype=np.bool_) & sane
        index = np.array([row for row, usable in zip(found, known.tolist(), strict=True) if usable], dtype=np.int64)
        report = Report(
            index,
            np.full(len(index), reply.report_seq, dtype=np.int64),
            quota_us[known],
            limit_bytes[known],
            limit_update_seq[known],
            np.zeros(len(index), dtype=np.bool_),
        )
        ack(self.cluster.rows, report, time.now_ns)
        if reply.keys == update.keys:
            self._record_refusals((reply, update), index, known, time.now_ns)
        lost = index[_IS_LOST[status[known]]]
        if len(lost):
            self._resync(lost, reply.seq)
        if reply.inventory_complete and reply.apps:
            self.cluster.ack_reserves(reply, node)
        if reply.inventory_complete and is_fence:
            self.cluster.drop_unreported(node, claimed, found)

    def record_timeout(self, update: LimitUpdate) -> None:
        """Record a timeout: the update may or may not act later, so it stays in flight; its rows are resynced."""
        node = self.cluster.node_index(update.node)
        if node is not None:
            rows = self.cluster.find_rows(node, update.keys)
            self._resync(np.array([row for row in rows if row is not None], dtype=np.int64), update.seq)

    # -- the step ----------------------------------------------------------------------------------------------

    def step(self, batches: Sequence[CfsBatch], time: StepTime, send: Send = keep) -> Outcome:
        """Decide for everything received since the last step.

        Args:
            batches: received since.
            time: now.
            send: called with limit updates as soon as they are decided; what is only told or counted comes after.
        """
        self.step_count += 1
        self._apply_batches(batches, time)
        rows = self.cluster.rows
        self._reasons = (Reasons.none(rows.count), Reasons.none(rows.count))
        before = self._ordered()
        self._follow_slots()
        waiting = self.cluster.pairs_of(unacknowledged(self.cluster, self.table, time))
        self.inventory.charge_waits(waiting, time.now_ns / 1e9)
        self._bound_claims()
        context, admitted = self._context(time), rows.admitted.copy()
        outcome = self._decide(context, before, send) if rows.count else self._send(context, before, send=send)
        self.savings.add(held_beside_baseline(context, admitted), time.now_ns, time.wall_ns, time.stale_after_ns)
        return outcome

    def _decide(self, context: StepContext, before: Ordered, send: Send) -> Outcome:
        """Admit, decide and assign, in a step with containers."""
        rows = self.cluster.rows
        rows.admitted[kernel_bounds.retry_due(rows, context.time.now_ns)] = False
        rows.short_of_cpu &= rows.quota_refusals == 0  # the kernel's word binds it, and the policies know
        rows.short_of_memory &= rows.limit_refusals == 0
        may_decide = context.decidable
        applying = may_decide & (~rows.admitted | rows.short) & context.eligible[rows.app]
        # At once where it was just found, else once a sample: others are decreased, or updates were lost.
        ready = applying & (rows.fresh | (~rows.admitted & (rows.sampled_ns == 0)))
        first = [ready & (~rows.admitted | short) for short in (rows.short_of_cpu, rows.short_of_memory)]
        admitted = []
        if ready.any():
            admitted = admit_pending(context, np.flatnonzero(ready))
            apply_admissions(rows, admitted, self._reasons)
            context = context.updated()
        # Also for nodes without a batch in this step: else their share would be assigned between two of their batches.
        lacking = [applying & (~rows.admitted | short) for short in (rows.short_of_cpu, rows.short_of_memory)]
        self._pending = capacity_for_pending(context, *lacking)
        context = replace(context, pending=self._pending)
        # A first limit is kept in this step: no sample is of it.
        cpu_rows, memory_rows = (
            may_decide & rows.admitted & ~(new | lacks) for new, lacks in zip(first, lacking, strict=True)
        )
        defying = self.cluster.rows_of(self.inventory.defying)
        quota_us = self.cpu.targets(context, cpu_rows & ~defying, self._reasons[0])
        if defying.any():
            # They ask for what they claim to use: within a policy that would be taken from the others.
            mine = cpu_rows & defying
            quota_us[mine] = np.minimum(quota_us, self._equal_parts(context))[mine]
        limit_bytes = self.memory.targets(context, memory_rows, self._reasons[1])
        refusals = self._new_refusals(admitted)
        rows.fresh[:] = False
        self._assign(context, quota_us, limit_bytes)
        return self._send(context, before, refusals, send=send)

    def request_memory(self, request: MemoryRequest, time: StepTime) -> tuple[MemoryReply, Outcome]:
        """Answer a memory request (thesis 2.4.4.2): refill the reserve, reclaim from others, or say why not."""
        cluster, app = self.cluster, request.app
        reply = MemoryReply(app=app, epoch=self.epoch_of(app), granted_bytes=0, reclaiming_bytes=0)
        node = cluster.node_index(request.node)
        if node is None or not self.epoch_of(app):
            return reply, Outcome()
        index, group, context = cluster.app_index(app), cluster.reserve_row(app, node), self._context(time)
        if group is None or not context.table.known[index] or not context.eligible[index]:
            return reply, Outcome()  # just acquired: the agent retries
        if context.table.observe_only[index]:
            return reply.model_copy(update={"denial": f"{app} is only observed"}), Outcome()
        requester = reserves.requester(context, cluster.find_rows(node, [request.container]), index)
        given_before = int(cluster.reserves.grant_committed_bytes[group])
        cluster.reserves.record_request(group, request.wanted_bytes, requester.within_bytes, time.now_ns)
        refills = self._grant(context, self._reserves.plan_due(context))
        granted = int(cluster.reserves.grant_committed_bytes[group]) - given_before
        context = context.updated()
        headroom, before = int(context.node_headroom[node]), self._ordered()
        # What is reclaimed on other nodes does not help where this one is full.
        where = node if headroom < request.wanted_bytes - granted else None
        missing = request.wanted_bytes - granted - reserves.reclaim_in_flight(context, index, group, where)
        if missing > 0:
            requester.exempt += [] if where is None else np.flatnonzero(cluster.rows.node != where).tolist()
            self._reclaim(context, index, missing, requester)
        outcome = self._send(context, before, quiet=True)
        context = context.updated()
        reclaiming = reserves.reclaim_in_flight(context, index, group, where)
        refusal: dict[str, Any] = {}
        own = requester.rows
        rising = (cluster.rows.limit_inflight_bytes[own] > cluster.rows.limit_bytes[own]).any()
        # An update in flight may bring it: to the reserve, or to the container itself.
        if not granted and not reclaiming and not rising and cluster.reserves.acked[group]:
            refusal = {"denial": reserves.explain_exhausted(context, index) + requester.remark}
            if where is not None:
                denial = reserves.node_is_full(request.node, headroom, request.wanted_bytes)
                refusal = {"denial": denial, "node_is_full": True}
        answer = {"granted_bytes": granted, "reclaiming_bytes": reclaiming} | refusal
        return reply.model_copy(update=answer), replace(outcome, updates=refills + outcome.updates)

    def redistribute(self, time: StepTime) -> Outcome:
        """Order deferred targets, now that capacity may have come free."""
        rows = self.cluster.rows
        requested = self.cluster.reserves.pending_requests(time.now_ns).any()
        if not (requested or rows.quota_deferred_us.any() or rows.limit_deferred_bytes.any()):
            return Outcome()
        context, before = self._context(time), self._ordered()
        refills = self._grant(context, self._reserves.plan_due(context)) if requested else ()
        context = context.updated() if refills else context
        quota_us = np.where(rows.quota_deferred_us > 0, rows.quota_deferred_us, rows.quota_ordered_us)
        limit_bytes = np.where(rows.limit_deferred_bytes > 0, rows.limit_deferred_bytes, rows.limit_ordered_bytes)
        self._assign(context, quota_us, limit_bytes)
        outcome = self._send(context, before, quiet=True)
        return replace(outcome, updates=refills + outcome.updates)

    @property
    def table(self) -> AppTable:
        """Application parameters, rebuilt when specs or leases have changed."""
        if self._table is None or len(self._table.known) != len(self.cluster.apps):
            owned, specs = self.leases.owned_apps(), self.cluster.specs
            self._table = build_table(self.cluster.apps, {app: spec for app, spec in specs.items() if app in owned})
        return self._table

    def pools(self) -> Pools:
        """Committed sums per application."""
        return Holdings.of(self.cluster, self.table).pools

    # -- parts of a step ---------------------------------------------------------------------------------------

    def _apply_batches(self, batches: Sequence[CfsBatch], time: StepTime) -> None:
        owned = [batch for batch in batches if self.epoch_of(batch.app)]
        applied = self.cluster.ingest(owned, time.now_ns, time.wall_ns)
        if self.cluster.unconfirmed:
            self.inventory.await_reports_again(self.cluster.drain_unconfirmed())
        if self.inventory.not_reported:
            self.inventory.record_batches(self.cluster, applied)

    def _bound_claims(self) -> None:
        """Nodes that disregard this owner's orders do not count beyond what is supported."""
        cluster = self.cluster
        self.inventory.defying = cluster.pairs_of(cluster.rows.defied >= DEFIED)
        cluster.claim_bounds = {
            (cluster.app_index(app), index): self.inventory.claim_bound(cluster, app, node)
            for app, node in self.inventory.set_aside | self.inventory.defying
            if app in cluster.specs and (index := cluster.node_index(node)) is not None
        }

    def _equal_parts(self, context: StepContext) -> IntArray:
        """Per row, us per period: its part of what its node may count, and no less than the minimum; shape (N,)."""
        rows, table = self.cluster.rows, context.table
        parts = np.full(rows.count, NO_BOUND)
        for (app, node), (bound_us, _) in self.cluster.claim_bounds.items():
            mine = (rows.app == app) & (rows.node == node)
            parts[mine] = max(bound_us // max(int(mine.sum()), 1), int(table.min_quota_us[app]))
        return parts

    def _context(self, time: StepTime) -> StepContext:
        """What holds now, before anything is ordered."""
        self._follow_rows()
        context = StepContext.of(self.cluster, self.table, self.leases, self._pending, time)
        waiting = unacknowledged(self.cluster, self.table, time)
        if waiting.any() and self.inventory.set_aside:
            waiting &= ~self.cluster.rows_of(self.inventory.set_aside)
        apps = {self.cluster.app_index(app) for app in self.inventory.awaiting_apps()}
        apps |= set(self.cluster.rows.app[waiting].tolist())
        return context.without(apps) if apps else context

    def _ordered(self) -> Ordered:
        """Ordered values; for containers that are not admitted, the reported ones."""
        rows = self.cluster.rows
        return Ordered(
            np.where(rows.admitted, rows.quota_ordered_us, rows.quota_us),
            np.where(rows.admitted, rows.limit_ordered_bytes, rows.limit_bytes),
        )

    def _assign(self, context: StepContext, quota_us: IntArray, limit_bytes: IntArray) -> None:
        """Order targets as far as there is free capacity; what remains is deferred."""
        rows = self.cluster.rows
        quotas, limits = assign_quotas(context, quota_us), assign_limits(context, limit_bytes)
        rows.quota_ordered_us[:], rows.quota_deferred_us[:] = quotas.ordered, quotas.deferred
        rows.limit_ordered_bytes[:], rows.limit_deferred_bytes[:] = limits.ordered, limits.deferred

    def _reclaim(self, context: StepContext, app: int, missing_bytes: int, requester: reserves.MemoryRequester) -> None:
        """Reclaim from the application's containers but the exempt ones, as far as they have slack."""
        rows = self.cluster.rows
        missing, exempt = np.zeros(len(self.cluster.apps), dtype=np.int64), np.zeros(rows.count, dtype=np.bool_)
        missing[app], exempt[requester.exempt] = missing_bytes, True
        wanted = memory.ReclaimRequest(missing, exempt, requester.floor_bytes)
        targets = self.memory.reclaim(context, wanted, self._reasons[1])
        cut = targets < context.holdings.limit_bytes
        rows.limit_ordered_bytes[cut] = targets[cut]
        rows.limit_deferred_bytes[cut] = 0

    def _record_refusals(
        self, exchange: tuple[LimitReply, LimitUpdate], index: IntArray, known: Bools, now_ns: int
    ) -> None:
        """Record what the kernel refused, and accepted again, of the rows ``index``, the ``known`` ones of a reply."""
        reply, update = exchange
        rows, keys = self.cluster.rows, [self.cluster.keys[row] for row in index.tolist()]
        answers = [
            kernel_bounds.Answer(
                update.column(name)[known],
                reply.column(name)[known],
                np.array([key in refused for key in keys], dtype=np.bool_),
            )
            for name, refused in (("quota_us", reply.refused_cpu), ("limit_bytes", reply.refused_memory))
        ]
        if self.kernel_reasons or any(answer.refused.any() for answer in answers):
            kernel_bounds.record(rows, index, (answers[0], answers[1]), update.seq, now_ns)
            for resource, refused in (("cpu", reply.refused_cpu), ("memory", reply.refused_memory)):
                reasons = {(reply.node, key, resource): why[:REASON_CHARACTERS] for key, why in refused.items()}
                self.kernel_reasons |= reasons
            self.kernel_reasons = {of: why for of, why in self.kernel_reasons.items() if self._is_refused(*of)}

    def _is_refused(self, node_name: str, key: str, resource: str) -> bool:
        node, rows = self.cluster.node_index(node_name), self.cluster.rows
        [row] = self.cluster.find_rows(node, [key]) if node is not None else [None]
        return row is not None and bool((rows.quota_refusals if resource == "cpu" else rows.limit_refusals)[row])

    def kernel_refusal(self, row: int, now_ns: int) -> str:
        """What the kernel refuses of a container at present, and why; empty: nothing that is known."""
        rows, cluster = self.cluster.rows, self.cluster
        name = cluster.nodes[int(rows.node[row])].name, cluster.keys[row]
        known = [
            self.kernel_reasons.get((*name, resource), "")
            for resource, names in (("cpu", kernel_bounds.QUOTA), ("memory", kernel_bounds.LIMIT))
            if kernel_bounds.current(rows, names, now_ns)[row]
        ]
        return "; ".join(filter(None, known))

    def _resync(self, index: IntArray, seq: int) -> None:
        """Resync rows whose update failed or was lost, unless a newer one is in flight."""
        resync(self.cluster.rows, index[self.cluster.rows.limit_update_seq[index] == seq])

    def _new_refusals(self, admitted: list[Admitted]) -> tuple[RefusedContainer, ...]:
        """Record which containers have no more than their floor, and why; returns what is new, or has ended."""
        rows, cluster, known = self.cluster.rows, self.cluster, self.refusals
        new = {case.row: case.limits.shortages for case in admitted if case.limits.shortages}
        if not (new or known):
            return ()
        self.refusals, changes = {}, []
        for row in np.flatnonzero(rows.short).tolist():
            name, shortages = (cluster.nodes[int(rows.node[row])].name, cluster.keys[row]), new.get(row, [])
            if rows.short_samples[row] >= SHARE_SAMPLES or any(each.permanent for each in shortages):
                reason = "; ".join(each.reason for each in shortages) or known.get(name, "")
                self.refusals[name] = reason
                if name not in known:
                    changes.append(RefusedContainer(cluster.apps[int(rows.app[row])], *name, reason))
        for node_name, key in known.keys() - self.refusals.keys():
            node = cluster.node_index(node_name)
            [place] = cluster.find_rows(node, [key]) if node is not None else [None]
            if place is not None:
                app, reason = cluster.apps[int(rows.app[place])], f"there is room, after: {known[node_name, key]}"
                changes.append(RefusedContainer(app, node_name, key, reason, ended=True))
        return tuple(changes)

    def _send(
        self,
        context: StepContext,
        before: Ordered,
        refusals: tuple[RefusedContainer, ...] = (),
        *,
        quiet: bool = False,
        send: Send = keep,
    ) -> Outcome:
        """Limit updates for the changed rows, and decisions to publish. ``quiet``: no pools without a change."""
        rows, table = self.cluster.rows, context.table
        changed = (rows.quota_ordered_us != before.quota_us) | (rows.limit_ordered_bytes != before.limit_bytes)
        changed &= rows.admitted  # nothing is ordered for others
        to_send = np.flatnonzero(changed & ~table.observe_only[rows.app])
        updates = self._limit_updates(context, to_send, before) if len(to_send) else []
        if updates:
            send(tuple(updates))
        any_changed = bool(changed.any())
        context = context.updated() if any_changed else context
        if not quiet and (refills := self._grant(context, self._reserves.plan_due(context))):
            send(refills)
            updates += refills
            context = context.updated()
        publish_pools = not quiet and self.step_count % POOLS_EVERY_STEPS == 0
        if not (publish_pools or any_changed):
            return Outcome(tuple(updates), (), refusals)
        new = dict(grouped(np.flatnonzero(changed), rows.app))
        decisions = [
            self._decisions(context, app, new.get(app, _NO_ROWS), before)
            for app in np.flatnonzero(table.known).tolist()
            if publish_pools or app in new
        ]
        return Outcome(tuple(updates), tuple(decisions), refusals)

    def _limit_updates(self, context: StepContext, index: IntArray, before: Ordered) -> list[LimitUpdate]:
        """One limit update per node and epoch."""
        cluster, rows, epochs = self.cluster, self.cluster.rows, context.epochs
        index = index[np.lexsort((epochs[rows.app[index]], rows.node[index]))]
        epoch, quota_us, limit_bytes = (
            epochs[rows.app[index]],
            rows.quota_ordered_us[index],
            rows.limit_ordered_bytes[index],
        )
        changed = {
            "quota_us": np.where(quota_us == before.quota_us[index], 0, quota_us),
            "limit_bytes": np.where(limit_bytes == before.limit_bytes[index], 0, limit_bytes),
        }
        seq, updates = np.empty(len(index), dtype=np.int64), []
        for part in runs(rows.node[index], epoch):
            mine = index[part]
            apps = tuple(cluster.apps[app] for app in sorted(set(rows.app[mine].tolist())))
            columns = {name: column[part] for name, column in changed.items()}
            keys = [cluster.keys[row] for row in mine.tolist()]
            node = cluster.nodes[int(rows.node[mine[0]])]
            updates.append(self._update(node, int(epoch[part.start]), apps, context.time, (keys, columns)))
            seq[part] = updates[-1].seq
        record_updates(rows, index, (changed["quota_us"], changed["limit_bytes"]), seq)
        return updates

    def _grant(self, context: StepContext, plan: tuple[IntArray, IntArray] | None) -> tuple[LimitUpdate, ...]:
        """Fences with cumulative reserve grants, and the bounds for granting from them, one per node and epoch."""
        if plan is None:
            return ()
        cluster, node_reserves, shares, updates = self.cluster, self.cluster.reserves, context.share_bytes, []
        given_of = dict(zip(plan[0].tolist(), plan[1].tolist(), strict=True))
        epochs = context.epochs[node_reserves.app]
        for node, of_node in grouped(plan[0], node_reserves.node):
            for epoch, mine in grouped(of_node, epochs):
                given, app = [given_of[row] for row in mine.tolist()], node_reserves.app[mine]
                update = self._update(
                    cluster.nodes[node],
                    epoch,
                    tuple(cluster.apps[each] for each in app.tolist()),
                    context.time,
                    reserve_given_bytes=tuple(given),
                    container_max_bytes=tuple(context.table.max_memory_bytes[app].tolist()),
                    fair_share_bytes=tuple(shares[app].tolist()),
                    fair_growth_bytes=(0,) * len(app),
                )
                updates.append(update)
                total = np.array(given, dtype=np.int64)
                node_reserves.record_update(mine, total, shares[app], update.seq, context.time.now_ns)
        return tuple(updates)

    def _update(
        self,
        node: NodeState,
        epoch: int,
        apps: tuple[str, ...],
        time: StepTime,
        rows: tuple[list[str], dict[str, Any]] | None = None,
        **fields: Any,
    ) -> LimitUpdate:
        """The next update; without ``rows`` (keys and columns) a fence: it claims applications and requests state."""
        self._newest_seq += 1
        keys, columns = rows or _NO_CHANGES
        identity = {"node": node.name, "incarnation": node.incarnation, "epoch": epoch, "seq": self._newest_seq}
        return LimitUpdate.build(keys, columns, **identity, time_ns=time.wall_ns, apps=apps, **fields)

    def _decisions(self, context: StepContext, app: int, index: IntArray, before: Ordered) -> LimitDecisions:
        """Changes of one application in one step; with an empty ``index`` only its pools."""
        cluster, table, pools = context.cluster, context.table, context.holdings.pools
        rows = cluster.rows
        quota_us, limit_bytes = rows.quota_ordered_us[index], rows.limit_ordered_bytes[index]
        quota_before, limit_before = before.quota_us[index], before.limit_bytes[index]
        sent = index[rows.admitted[index] & ~table.observe_only[app]]
        columns: dict[str, Any] = {
            "quota_from_us": quota_before,
            "quota_to_us": np.where(quota_us != quota_before, quota_us, 0),
            "limit_from_bytes": limit_before,
            "limit_to_bytes": np.where(limit_bytes != limit_before, limit_bytes, 0),
        }
        for prefix, why in zip(("quota", "limit"), self._reasons, strict=True):
            columns |= {
                f"{prefix}_reason": why.reason[index],
                f"{prefix}_measured": why.measured[index],
                f"{prefix}_threshold": why.threshold[index],
            }
        return LimitDecisions.build(
            [cluster.keys[row] for row in index.tolist()],
            columns,
            app=cluster.apps[app],
            mode="observe" if table.observe_only[app] else "enforce",
            policy="waterfill" if table.waterfill[app] else "escra",
            epoch=int(context.epochs[app]),
            step=self.step_count,
            time_ns=context.time.wall_ns,
            container_count=int(pools.containers[app]),
            cpu_limit_us=int(table.cpu_limit_us[app]),
            cpu_allocated_us=int(pools.quota_committed_us[app]),
            memory_limit_bytes=int(table.memory_limit_bytes[app]),
            memory_allocated_bytes=int(pools.limit_committed_bytes[app]),
            memory_reserved_bytes=int(pools.reserved_bytes[app]),
            node_warnings=self.inventory.warnings(cluster, cluster.apps[app]),
            **_update_seqs(rows.limit_update_seq[sent]),
        )

    def _follow_slots(self) -> None:
        """Estimates follow the containers that were added and removed since the last step."""
        capacity = self.cluster.slot_capacity
        if capacity == self._slot_capacity and not self.cluster.released_slots:
            return
        self._slot_capacity = capacity
        released = np.array(self.cluster.drain_released_slots(), dtype=np.int64)
        for pipeline in (self.cpu, self.memory):
            pipeline.follow(capacity, released)

    def _follow_rows(self) -> None:
        """Reasons and pending capacity follow rows and applications added or removed since the last step."""
        if len(self._reasons[0].reason) != self.cluster.rows.count:
            self._reasons = (Reasons.none(self.cluster.rows.count), Reasons.none(self.cluster.rows.count))
        if new := len(self.cluster.apps) - len(self._pending.quota_us):
            zeros = np.zeros(new, np.int64)
            pending = self._pending
            self._pending = PendingCapacity(np.append(pending.quota_us, zeros), np.append(pending.limit_bytes, zeros))


def _update_seqs(seq: IntArray) -> dict[str, int]:
    """Fields that name the limit updates which carry the rows of a decision."""
    return {"update_seq_first": int(seq.min()), "update_seq_last": int(seq.max())} if len(seq) else {}

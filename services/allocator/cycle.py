"""Allocation cycle: batches in, limit updates and decisions out, for all applications of this replica at once.

Order of work: apply reports, admit pending containers, let the policies compute targets, assign what the budget has
capacity for, send, plan the nodes' reserves, send; then what others are told, and savings. What holds for all of a step
is its `StepContext`; what is free is a `StepBudget`, of which there is another one after each of these orders.
Pure: times are arguments, messages are return values, or arguments of a callback where they are urgent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from schemas.apps import AppSpec
from schemas.cfs import CfsBatch
from schemas.limits import LimitDecisions, LimitUpdate
from schemas.oom import MemoryReply, MemoryRequest
from services.allocator.arrays.array_types import IntArray
from services.allocator.arrays.grouping import grouped
from services.allocator.arrays.limit_values import NO_BOUND
from services.allocator.arrays.reasons import Reasons
from services.allocator.budget.admission import admit_pending, apply_admissions
from services.allocator.budget.assignment import assign_limits, assign_quotas
from services.allocator.budget.committed import Committed, Pools
from services.allocator.budget.eligibility import node_seen, unacknowledged
from services.allocator.budget.pending_capacity import PendingCapacity, capacity_for_pending
from services.allocator.budget.refused_containers import RefusedContainer, RefusedContainers
from services.allocator.budget.step_budget import StepBudget
from services.allocator.budget.step_context import StepContext, StepTime
from services.allocator.cpu import escra, waterfill
from services.allocator.cpu.pipeline import CpuPipeline
from services.allocator.cpu.policy_interface import CpuPolicy
from services.allocator.decisions import DecidedStep
from services.allocator.limit_updates import LimitUpdates
from services.allocator.memory import memory_request
from services.allocator.memory.pipeline import MemoryPipeline, ReclaimRequest
from services.allocator.memory.reserve_plan import ReservePlanner
from services.allocator.savings import SavingsSums, held_beside_baseline
from services.allocator.state import kernel_bounds
from services.allocator.state.acknowledgement import resync
from services.allocator.state.agent_restart import apps_with_unreported
from services.allocator.state.app_parameters import AppTable, build_table
from services.allocator.state.batch_ingestion import ingest
from services.allocator.state.cluster_state import ClusterState
from services.allocator.state.kernel_refusals import KernelRefusals
from services.allocator.state.node_inventory import NodeInventory
from services.allocator.state.owned_applications import OwnedApplications
from services.allocator.state.replies import Replies
from services.allocator.state.rows import Ordered

_NO_ROWS = np.zeros(0, dtype=np.int64)
DEFIED = 30
"""So many decreases of a container in a row that are not carried out make its node's reports of the application
unsupported: each takes half a second (five reports) to a second (a reply that does not come)."""
POOLS_EVERY_STEPS = 10
"""Pools are published at least once a second."""


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
        self.refused = RefusedContainers()
        self.kernel_refusals = KernelRefusals(self.cluster)
        self.inventory = NodeInventory(longest_wait_s)
        self.owned = OwnedApplications(warm_up_ns)
        self.replies = Replies(self.cluster, self.inventory, self.owned, self.kernel_refusals)
        self.savings = SavingsSums()
        self._updates = LimitUpdates(self.cluster)
        self._reserves = ReservePlanner()
        self.cpu = CpuPipeline(
            CpuPolicy(waterfill.WaterfillState(0), waterfill.step), CpuPolicy(escra.EscraState(0), escra.step)
        )
        self.memory = MemoryPipeline()
        self._slot_capacity = 0
        """Slots that the pipelines have estimates for."""
        self._table: AppTable | None = None
        self._table_revision = 0
        """Of the owned applications, as the table has them."""
        self._reasons = (Reasons.none(0), Reasons.none(0))
        self._pending = PendingCapacity(np.zeros(0, np.int64), np.zeros(0, np.int64))

    # -- ownership, specs ----------------------------------------------------------------------------------------

    def acquire(self, app: str, epoch: int, now_ns: int) -> None:
        """Own an application from now on; ``epoch`` fences out its previous owners."""
        self.release(app)
        self.cluster.app_index(app)
        self.owned.acquire(app, epoch, now_ns)
        self.inventory.await_reports(app)

    def release(self, app: str) -> None:
        """Release an application; its containers keep their limits."""
        self.inventory.release(app)
        if self.owned.release(app):
            self.cluster.remove_app(app)
            self.savings.release(self.cluster.app_index(app))

    def drain_lost(self) -> dict[str, int]:
        """Release the applications of which an agent has reported a newer epoch; returns them with that epoch."""
        lost = dict(self.owned.lost)
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
        if self.owned.epoch_of(app):
            granted, (context, budget) = self.cluster.reserves, self._begin(time)
            index = np.flatnonzero(granted.in_use & (granted.app == self.cluster.app_index(app)))
            nothing = index, np.zeros(len(index), dtype=np.int64)
            updates = self._updates.of_reserves(context, budget.share_bytes, nothing)
        self.release(app)
        return updates

    def fences_due(self, time: StepTime) -> tuple[LimitUpdate, ...]:
        """Fences for nodes that have not acknowledged an epoch and hold, or may hold, containers of its application."""
        table, rows = self.table, self.cluster.rows
        due = []
        for index, node in enumerate(self.cluster.nodes):
            apps = np.unique(rows.app[rows.node == index])
            names = [self.cluster.apps[app] for app in apps if table.known[app] and not table.observe_only[app]]
            absent = apps_with_unreported(self.cluster, index)
            missing = [name for name in names if name not in node.fenced or name in absent]
            for epoch in sorted({self.owned.epoch_of(name) for name in missing}):
                mine = tuple(name for name in names if self.owned.epoch_of(name) == epoch)
                due.append(self._updates.fence(node, epoch, mine, time))
        for state, asked, epoch in self.inventory.fence_requests(self.owned.epochs):
            due.append(self._updates.fence(state, epoch, asked, time))
        return tuple(due)

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
        before = Ordered.of(rows)
        self._follow_slots()
        seen = node_seen(self.cluster, time.now_ns, time.stale_after_ns)
        waiting = self.cluster.pairs_of(unacknowledged(rows, self.table, seen))
        self.inventory.charge_waits(waiting, time.now_ns / 1e9)
        self._bound_claims()
        (context, budget), admitted = self._begin(time), rows.admitted.copy()
        if rows.count:
            outcome = self._decide(context, budget, before, send)
        else:
            outcome = self._send(context, budget, before, send=send)
        holding = held_beside_baseline(self.cluster, context, budget, admitted)
        self.savings.add(holding, time.now_ns, time.wall_ns, time.stale_after_ns)
        return outcome

    def _decide(self, context: StepContext, budget: StepBudget, before: Ordered, send: Send) -> Outcome:
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
            admitted = admit_pending(self.cluster, budget, np.flatnonzero(ready))
            apply_admissions(rows, admitted, self._reasons)
            budget = self._budget()
        # Also for nodes without a batch in this step: else their share would be assigned between two of their batches.
        lacking = applying & (~rows.admitted | rows.short_of_cpu), applying & (~rows.admitted | rows.short_of_memory)
        self._pending = capacity_for_pending(self.cluster, context.table, budget.committed, lacking)
        budget = replace(budget, pending=self._pending)
        # A first limit is kept in this step: no sample is of it.
        cpu_rows, memory_rows = (
            may_decide & rows.admitted & ~(new | lacks) for new, lacks in zip(first, lacking, strict=True)
        )
        defying = self.cluster.rows_of(self.inventory.defying)
        quota_us = self.cpu.targets(rows, context, budget, cpu_rows & ~defying, self._reasons[0])
        if defying.any():
            # They ask for what they claim to use: within a policy that would be taken from the others.
            mine = cpu_rows & defying
            quota_us[mine] = np.minimum(quota_us, self._equal_parts())[mine]
        limit_bytes = self.memory.targets(rows, context, budget, memory_rows, self._reasons[1])
        refusals = self.refused.record(self.cluster, admitted)
        rows.fresh[:] = False
        self._assign(context, budget, quota_us, limit_bytes)
        return replace(self._send(context, budget, before, send=send), refusals=refusals)

    def request_memory(self, request: MemoryRequest, time: StepTime) -> tuple[MemoryReply, Outcome]:
        """Answer a memory request (thesis 2.4.4.2): refill the reserve, reclaim from others, or say why not."""
        cluster, app = self.cluster, request.app
        reply = MemoryReply(app=app, epoch=self.owned.epoch_of(app), granted_bytes=0, reclaiming_bytes=0)
        node = cluster.node_index(request.node)
        if node is None or not self.owned.epoch_of(app):
            return reply, Outcome()
        index, group = cluster.app_index(app), cluster.reserve_row(app, node)
        context, budget = self._begin(time)
        if group is None or not context.table.known[index] or not context.eligible[index]:
            return reply, Outcome()  # just acquired: the agent retries
        if context.table.observe_only[index]:
            return reply.model_copy(update={"denial": f"{app} is only observed"}), Outcome()
        found = cluster.find_rows(node, [request.container])
        requester = memory_request.requester(cluster.rows, budget, found, index)
        given_before = int(cluster.reserves.grant_committed_bytes[group])
        cluster.reserves.record_request(group, request.wanted_bytes, requester.within_bytes, time.now_ns)
        refills = self._grant(context, budget)
        granted = int(cluster.reserves.grant_committed_bytes[group]) - given_before
        budget = self._budget()
        headroom, before = int(budget.node_headroom_bytes[node]), Ordered.of(cluster.rows)
        # What is reclaimed on other nodes does not help where this one is full.
        where = node if headroom < request.wanted_bytes - granted else None
        missing = request.wanted_bytes - granted
        missing -= memory_request.reclaim_in_flight(cluster, budget, index, group, where)
        if missing > 0:
            requester.exempt += [] if where is None else np.flatnonzero(cluster.rows.node != where).tolist()
            self._reclaim(context, budget, index, missing, requester)
        outcome = self._send(context, budget, before, quiet=True)
        budget = self._budget()
        reclaiming = memory_request.reclaim_in_flight(cluster, budget, index, group, where)
        refusal: dict[str, Any] = {}
        own = requester.rows
        rising = (cluster.rows.limit_inflight_bytes[own] > cluster.rows.limit_bytes[own]).any()
        # An update in flight may bring it: to the reserve, or to the container itself.
        if not granted and not reclaiming and not rising and cluster.reserves.acked[group]:
            refusal = {"denial": memory_request.explain_exhausted(app, budget, index) + requester.remark}
            if where is not None:
                denial = memory_request.node_is_full(request.node, headroom, request.wanted_bytes)
                refusal = {"denial": denial, "node_is_full": True}
        answer = {"granted_bytes": granted, "reclaiming_bytes": reclaiming} | refusal
        return reply.model_copy(update=answer), replace(outcome, updates=refills + outcome.updates)

    def redistribute(self, time: StepTime) -> Outcome:
        """Order deferred targets, now that capacity may have come free."""
        rows = self.cluster.rows
        requested = self.cluster.reserves.pending_requests(time.now_ns).any()
        if not (requested or rows.quota_deferred_us.any() or rows.limit_deferred_bytes.any()):
            return Outcome()
        (context, budget), before = self._begin(time), Ordered.of(rows)
        refills = self._grant(context, budget) if requested else ()
        budget = self._budget() if refills else budget
        quota_us = np.where(rows.quota_deferred_us > 0, rows.quota_deferred_us, rows.quota_ordered_us)
        limit_bytes = np.where(rows.limit_deferred_bytes > 0, rows.limit_deferred_bytes, rows.limit_ordered_bytes)
        self._assign(context, budget, quota_us, limit_bytes)
        outcome = self._send(context, budget, before, quiet=True)
        return replace(outcome, updates=refills + outcome.updates)

    @property
    def table(self) -> AppTable:
        """Application parameters, rebuilt when specs or what is owned have changed."""
        table, revision = self._table, self.owned.revision
        if table is None or self._table_revision != revision or len(table.known) != len(self.cluster.apps):
            owned, specs = self.owned.owned_apps(), self.cluster.specs
            table = build_table(self.cluster.apps, {app: spec for app, spec in specs.items() if app in owned})
            self._table, self._table_revision = table, revision
        return table

    def pools(self) -> Pools:
        """Committed sums per application."""
        return Committed.of(self.cluster, self.table).pools

    # -- parts of a step ---------------------------------------------------------------------------------------

    def _apply_batches(self, batches: Sequence[CfsBatch], time: StepTime) -> None:
        owned = [batch for batch in batches if self.owned.epoch_of(batch.app)]
        applied = ingest(self.cluster, owned, time.now_ns, time.wall_ns)
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

    def _equal_parts(self) -> IntArray:
        """Per row, us per period: its part of what its node may count, and no less than the minimum; shape (N,)."""
        rows, table = self.cluster.rows, self.table
        parts = np.full(rows.count, NO_BOUND)
        for (app, node), (bound_us, _) in self.cluster.claim_bounds.items():
            mine = (rows.app == app) & (rows.node == node)
            parts[mine] = max(bound_us // max(int(mine.sum()), 1), int(table.min_quota_us[app]))
        return parts

    def _begin(self, time: StepTime) -> tuple[StepContext, StepBudget]:
        """What holds, and is free, before anything is ordered."""
        self._follow_rows()
        context = StepContext.of(self.cluster, self.table, self.owned, self.inventory, time)
        return context, self._budget()

    def _budget(self) -> StepBudget:
        """What is free now, after what was ordered."""
        return StepBudget.of(self.cluster, self.table, self._pending)

    def _assign(self, context: StepContext, budget: StepBudget, quota_us: IntArray, limit_bytes: IntArray) -> None:
        """Order targets as far as there is free capacity; what remains is deferred."""
        rows = self.cluster.rows
        quotas = assign_quotas(rows, context, budget, quota_us)
        limits = assign_limits(rows, context, budget, limit_bytes)
        rows.quota_ordered_us[:], rows.quota_deferred_us[:] = quotas.ordered, quotas.deferred
        rows.limit_ordered_bytes[:], rows.limit_deferred_bytes[:] = limits.ordered, limits.deferred

    def _reclaim(
        self,
        context: StepContext,
        budget: StepBudget,
        app: int,
        missing_bytes: int,
        requester: memory_request.MemoryRequester,
    ) -> None:
        """Reclaim from the application's containers but the exempt ones, as far as they have slack."""
        rows = self.cluster.rows
        missing, exempt = np.zeros(len(self.cluster.apps), dtype=np.int64), np.zeros(rows.count, dtype=np.bool_)
        missing[app], exempt[requester.exempt] = missing_bytes, True
        wanted = ReclaimRequest(missing, exempt, requester.floor_bytes)
        targets = self.memory.reclaim(rows, context, budget, wanted, self._reasons[1])
        cut = targets < budget.committed.limit_bytes
        rows.limit_ordered_bytes[cut] = targets[cut]
        rows.limit_deferred_bytes[cut] = 0

    def _send(
        self, context: StepContext, budget: StepBudget, before: Ordered, *, quiet: bool = False, send: Send = keep
    ) -> Outcome:
        """Limit updates for the changed rows, and decisions to publish. ``quiet``: no pools without a change."""
        cluster, inventory, table = self.cluster, self.inventory, context.table
        rows = cluster.rows
        changed = (rows.quota_ordered_us != before.quota_us) | (rows.limit_ordered_bytes != before.limit_bytes)
        changed &= rows.admitted  # nothing is ordered for others
        to_send = np.flatnonzero(changed & ~table.observe_only[rows.app])
        updates = self._updates.of_rows(context, to_send, before) if len(to_send) else []
        if updates:
            send(tuple(updates))
        any_changed = bool(changed.any())
        budget = self._budget() if any_changed else budget
        if not quiet and (refills := self._grant(context, budget)):
            send(refills)
            updates += refills
            budget = self._budget()
        publish_pools = not quiet and self.step_count % POOLS_EVERY_STEPS == 0
        if not (publish_pools or any_changed):
            return Outcome(tuple(updates))
        new = dict(grouped(np.flatnonzero(changed), rows.app))
        step = DecidedStep(self.step_count, context, before, self._reasons, budget.committed.pools)
        decisions = [
            step.decisions(cluster, app, new.get(app, _NO_ROWS), inventory.warnings(cluster, cluster.apps[app]))
            for app in np.flatnonzero(table.known).tolist()
            if publish_pools or app in new
        ]
        return Outcome(tuple(updates), tuple(decisions))

    def _grant(self, context: StepContext, budget: StepBudget) -> tuple[LimitUpdate, ...]:
        """Grants that bring the nodes' reserves to what the applications can spare."""
        plan = self._reserves.plan_due(self.cluster, context, budget)
        return self._updates.of_reserves(context, budget.share_bytes, plan)

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

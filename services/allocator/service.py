"""Allocator service: ownership, batches in, one vectorised step, limit updates and decisions out."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import ClassVar

from schemas.apps import PERIOD_US, AppSpec
from schemas.cfs import CfsBatch
from schemas.containers import ContainerChange, ContainerEvent, ContainerSource, NodeInfo
from schemas.limits import LimitDecisions, LimitUpdate
from schemas.message import Message
from schemas.oom import MemoryRequest
from schemas.services.allocator import ALLOCATOR_EXPLAIN, ALLOCATOR_STATE
from schemas.streams import APPS, NODES, BucketSpec
from schemas.subjects import CONTAINER_EVENTS, LIMIT_DECISIONS, REPLICA_EXPLAIN, REPLICA_STATE, SAVINGS
from services._runtime.bus.api import Delivery, Entry, RequestRefusedError, Subscription
from services._runtime.service.app import Runtime
from services._runtime.service.settings import CommonSettings
from services._runtime.telemetry.tracing import MAX_APPS, NEW_TRACE, Begin, drop_span, span
from services.allocator import app_metrics
from services.allocator.agent_channel import BatchInbox, UpdateSender
from services.allocator.agent_subscriptions import AgentSubscriptions
from services.allocator.budget.refused_containers import RefusedContainer
from services.allocator.budget.step_context import StepTime
from services.allocator.cycle import AllocationCycle, Outcome
from services.allocator.flood_guard import Kind
from services.allocator.ownership.membership import Callbacks, Membership
from services.allocator.queries import Queries
from services.allocator.settings import AllocatorSettings

FENCE_EVERY_S = 0.25
MOST_SAVINGS_AT_ONCE = 100
"""Events per second: encoding more at once would delay the decisions of a period."""
ALL_SAVINGS = 1 << 30
MOST_NAMED = 5
"""Applications that a log line names."""
REMEMBERED_STEPS = 600
"""Remembered steps with changes per application, for `explain`: a minute at one per period."""


class Allocator:
    """Decides for the applications that this replica owns; replicas share the applications of a bus."""

    name: ClassVar[str] = "allocator"
    version: ClassVar[str] = version("turnbuckle")
    settings_class: ClassVar[type[CommonSettings]] = AllocatorSettings

    def __init__(self, runtime: Runtime[AllocatorSettings]) -> None:
        self._runtime = runtime
        self._settings = runtime.settings
        self._bus = runtime.bus
        self._clock = runtime.clock
        self._log = runtime.log
        self._allocation = allocation = AllocationCycle(
            int(self._settings.warm_up_s * 1e9), self._settings.node_expiry_s
        )
        expected = partial(getattr, allocation.cluster, "group_count")
        self._inbox = BatchInbox(self._step, expected)
        self._agents = AgentSubscriptions(runtime, self._inbox.take, self._on_memory_request)
        self._membership = Membership(runtime, Callbacks(self._acquire, self._release, self._agents.try_to_subscribe))
        self._sender = UpdateSender(runtime, allocation, self._step_time, self._after_replies, self._may_decide)
        self._history: defaultdict[str, deque[LimitDecisions]] = defaultdict(lambda: deque(maxlen=REMEMBERED_STEPS))
        self._queries = Queries(allocation, self._membership, self._clock, self._history)
        self._subscriptions: list[Subscription] = []
        self._reclaimed_s = self._fenced_s = self._paused_s = self._clock.monotonic()
        self._step_s = runtime.telemetry.histogram("turnbuckle_allocator_step_seconds")
        self._set_aside: set[str] = set()
        """Nodes, as last logged."""
        self.changes = 0
        self.memory_requests = 0
        self.refused_memory_requests = 0

    async def start(self) -> None:
        """Read applications and nodes, join the other replicas, serve queries."""
        self._register_metrics()
        for bucket, take in ((NODES, self._on_node_entry), (APPS, self._on_app_entry)):
            listed = asyncio.Event()
            self._runtime.spawn(self._watch(bucket, take, listed), name=f"bucket {bucket.name}")
            await listed.wait()  # an acquired application needs the specs and nodes
        replica, root = self._membership.id, self._bus.root
        self._subscriptions = [
            await self._bus.serve(REPLICA_STATE.subject(root, replica=replica), self._queries.own_state),
            await self._bus.serve(REPLICA_EXPLAIN.subject(root, replica=replica), self._queries.own_explain),
            await self._bus.serve_queries(
                self.name,
                self.version,
                "keeps the sum of limits under each application's limit",
                {ALLOCATOR_STATE: self._queries.state, ALLOCATOR_EXPLAIN: self._queries.explain},
            ),
        ]
        await self._membership.start()
        self._runtime.spawn(self._work_each_second(), name="node expiry and savings")
        self._log.info("allocator_started", replica=replica)

    async def stop(self) -> None:
        """Hand the applications over and stop deciding; limits stay as they are."""
        await self._membership.stop()
        self._sender.stop()
        self._inbox.stop()
        await self._agents.stop()
        self._publish_savings(0, ALL_SAVINGS)
        subscriptions, self._subscriptions = self._subscriptions, []
        for subscription in subscriptions:
            await subscription.stop()

    def not_ready(self) -> str | None:
        """Why this replica cannot decide, whether or not it owns anything; or None."""
        return self._membership.not_ready()

    # -- ownership ---------------------------------------------------------------------------------------------

    async def _acquire(self, app: str, epoch: int) -> None:
        self._allocation.acquire(app, epoch, self._clock.monotonic_ns())
        await self._agents.subscribe(app)

    def _release(self, app: str) -> None:
        self._allocation.release(app)
        self._history.pop(app, None)
        self._runtime.spawn(self._agents.unsubscribe(app), name=f"ignore {app}")

    def _release_lost(self) -> None:
        """Release applications of which an agent knows a newer epoch; the members' record is read again."""
        for app, epoch in self._allocation.drain_lost().items():
            self._log.warning("stale_epoch", app=app, epoch=self._membership.held.get(app), newer_epoch=epoch)
            self._membership.report_newer_epoch(app, epoch)

    # -- the step ----------------------------------------------------------------------------------------------

    def _step(self, batches: list[CfsBatch]) -> None:
        if not self._may_decide():
            return
        now_s = self._clock.monotonic()
        reclaim = now_s - self._reclaimed_s >= self._settings.reclaim_every_s
        if reclaim:
            self._reclaimed_s = now_s
        self._decide(batches, self._step_time(reclaim=reclaim))
        self._step_s.observe(self._clock.monotonic() - now_s)
        if now_s - self._fenced_s >= FENCE_EVERY_S:
            self._fenced_s = now_s
            self._order(self._allocation.fences_due(self._step_time()))

    def _may_decide(self) -> bool:
        """Whether this replica may decide for what it owns: it is a member, and has read and said so in time."""
        return self._membership.may_act()

    def _step_time(self, *, reclaim: bool = False) -> StepTime:
        return StepTime(
            self._clock.monotonic_ns(),
            self._clock.time_ns(),
            reclaim,
            int(self._settings.stale_after_s * 1e9),
        )

    def _decide(self, batches: list[CfsBatch], time: StepTime) -> None:
        """Send limit updates, then publish decisions, in one span; a step without updates has none."""
        with span("allocator.decide", Begin(NEW_TRACE), turnbuckle__batches=len(batches)) as current:
            outcome = self._allocation.step(batches, time, self._order)
            if outcome.updates:
                changes = {decisions.app: decisions.row_count for decisions in outcome.decisions}
                current.set(
                    turnbuckle__changes=sum(changes.values()),
                    turnbuckle__limit_updates=len(outcome.updates),
                    turnbuckle__apps=tuple(app for app, count in changes.items() if count)[:MAX_APPS],
                )
                self._publish(outcome)
                return
            drop_span()
        self._publish(outcome)  # an event of a refusal would keep the span

    def _act(self, outcome: Outcome) -> None:
        self._order(outcome.updates)
        self._publish(outcome)

    def _publish(self, outcome: Outcome) -> None:
        """Publish decisions and refusals."""
        if not self._may_decide():  # stopped (SIGSTOP, starved) meanwhile: a successor may have taken over
            return
        for decisions in outcome.decisions:
            changes = decisions.row_count
            self.changes += changes
            self._bus.publish(LIMIT_DECISIONS.subject(self._bus.root, app=decisions.app), decisions)
            if changes:
                self._history[decisions.app].append(decisions)
        for refusal in outcome.refusals:
            self._publish_refusal(refusal)

    def _order(self, updates: tuple[LimitUpdate, ...]) -> None:
        self._sender.send(updates)

    def _after_replies(self) -> None:
        """Redistribute what replies have freed."""
        self._release_lost()
        if self._may_decide():
            self._act(self._allocation.redistribute(self._step_time()))

    async def _on_memory_request(self, delivery: Delivery) -> Message:
        """Serve a memory request of an agent whose reserve runs out; an error reply means: retry."""
        request = delivery.message
        if not isinstance(request, MemoryRequest):
            raise RequestRefusedError(400, f"unexpected {request.type_name}")
        self.memory_requests += 1
        self._require_ownership(request.app)
        with span(
            "allocator.grant_memory",
            turnbuckle__app=request.app,
            turnbuckle__node=request.node,
            turnbuckle__container=request.container,
            turnbuckle__memory__wanted_bytes=request.wanted_bytes,
        ) as current:
            reply, outcome = self._allocation.request_memory(request, self._step_time())
            self.refused_memory_requests += bool(reply.denial)
            current.set(
                turnbuckle__memory__granted_bytes=reply.granted_bytes,
                turnbuckle__memory__reclaiming_bytes=reply.reclaiming_bytes,
                turnbuckle__limit_updates=len(outcome.updates),
                turnbuckle__rejection=reply.denial,
            )
            self._act(outcome)
        self._require_ownership(request.app)  # again: the process may have been stopped meanwhile
        return reply

    def _require_ownership(self, app: str) -> None:
        if not self._may_decide() or app not in self._membership.held:
            raise RequestRefusedError(503, f"{app} has no owner at present: retry")

    # -- applications and nodes --------------------------------------------------------------------------------

    async def _watch(
        self, bucket: BucketSpec, take: Callable[[str, Entry | None], None], listed: asyncio.Event
    ) -> None:
        """Follow a KV bucket; runs until cancelled."""
        async with self._bus.bucket(bucket).watch(take):
            listed.set()
            await asyncio.Event().wait()

    def _on_node_entry(self, node: str, entry: Entry | None) -> None:
        message = entry.message if entry is not None else None
        if isinstance(message, NodeInfo):
            self._allocation.inventory.register(
                node,
                message.incarnation,
                sources_pending=bool(message.sources_pending),
                capacity=(message.host_cpus * PERIOD_US, message.memory_bytes),
            )
        elif entry is None:
            self._allocation.inventory.deregister(node)
        self._set_nodes()

    def _set_nodes(self) -> None:
        """Receive what registered nodes send, and those with containers whose registration has just expired."""
        cluster = self._allocation.cluster
        with_containers = {cluster.nodes[index].name for index in set(cluster.rows.node.tolist())}
        self._agents.set_nodes(self._allocation.inventory.registered | with_containers)

    def _on_app_entry(self, app: str, entry: Entry | None) -> None:
        message = entry.message if entry is not None else None
        if entry is not None and not (isinstance(message, AppSpec) and message.name == app):
            self._log.warning("spec_rejected", app=app, remedy="announce it again with `turnbuckle apply`")
            if app not in self._allocation.cluster.specs:  # others may be able to read it
                self._membership.set_able(app, able=False)
            return
        self._membership.set_able(app, able=True)
        if isinstance(message, AppSpec):
            self._allocation.set_spec(app, message)
        else:
            updates = self._allocation.withdraw(app, self._step_time())
            self._order(updates if self._may_decide() else ())
        self._membership.set_announced(app, announced=message is not None)
        self._log.info("app_spec_changed", app=app, announced=message is not None)

    async def _work_each_second(self) -> None:
        while True:
            await self._clock.sleep_until(self._clock.monotonic() + 1.0)
            self._set_nodes()
            self._agents.refresh()
            self._allocation.inventory.quarantined = self._agents.quarantined
            self._expire_nodes()
            self._log_set_aside()
            self._publish_savings(int(self._settings.savings_every_s * 1e9), MOST_SAVINGS_AT_ONCE)

    def _expire_nodes(self) -> None:
        """Remove nodes that have not reported for `node_expiry_s`: their containers died with them.

        The timeout restarts while this replica may not decide: it receives no reports then. A quarantined node, of
        which nothing is received either, keeps its share.
        """
        cluster, inventory, after_s = self._allocation.cluster, self._allocation.inventory, self._settings.node_expiry_s
        now_s = self._clock.monotonic()
        if not self._may_decide():
            self._paused_s = now_s
        if now_s - self._paused_s < after_s:
            return
        for index, node in enumerate(cluster.nodes):
            silent = node.last_seen_ns < (now_s - after_s) * 1e9 and not inventory.has_pending_sources(node.name)
            if silent and node.name not in inventory.quarantined and cluster.remove_node(index):
                self._log.warning("node_expired", node=node.name, after_s=after_s)

    def _log_set_aside(self) -> None:
        """Log nodes that are not waited for any more, and those that count again."""
        before, self._set_aside = self._set_aside, {node for _, node in self._allocation.inventory.set_aside}
        for node in sorted(self._set_aside - before):
            apps = sorted(app for app, of in self._allocation.inventory.set_aside if of == node)
            self._log.warning(
                "node_set_aside",
                node=node,
                apps=apps[:MOST_NAMED],
                app_count=len(apps),
                after_s=self._settings.node_expiry_s,
                reason="it is registered, and neither reports nor acknowledges orders",
                remedy="examine its agent; if it is not yours, take its key away (docs/security.md)",
            )
        for node in sorted(before - self._set_aside):
            self._log.info("node_counts_again", node=node)

    def _publish_savings(self, every_ns: int, most: int) -> None:
        """Publish what has changed and was not published for ``every_ns``, ``most`` events of it."""
        settings = self._settings
        prices = {
            "core_hour_price": settings.core_hour_price,
            "gib_hour_price": settings.gib_hour_price,
            "currency": settings.price_currency or "",
        }
        for account in self._allocation.savings.take_due(self._clock.monotonic_ns(), every_ns, most):
            app = self._allocation.cluster.apps[account.app]
            event = account.event(app, self._membership.id, self._clock.time_ns(), prices)
            subject = SAVINGS.subject(self._bus.root, app=app, day=event.day.isoformat(), record=event.record)
            self._bus.publish_event(subject, event, message_id=f"savings-{app}-{event.record}-{event.time_ns}")

    def _publish_refusal(self, refusal: RefusedContainer) -> None:
        event = ContainerEvent(
            change=ContainerChange.LIMIT_ACCEPTED if refusal.ended else ContainerChange.REFUSED,
            app=refusal.app,
            node=refusal.node,
            container=refusal.container,
            name=refusal.container.rpartition("-")[0],
            source=ContainerSource.ALLOCATOR,
            time_ns=self._clock.time_ns(),
            incarnation=self._allocation.owned.epoch_of(refusal.app),
            reason=refusal.reason,
        )
        subject = CONTAINER_EVENTS.subject(self._bus.root, app=refusal.app, node=refusal.node)
        self._bus.publish_event(subject, event, message_id=f"refused-{refusal.container}-{event.time_ns}")
        log = self._log.info if refusal.ended else self._log.warning
        event_name = "container_has_room" if refusal.ended else "container_refused"
        log(event_name, app=refusal.app, container=refusal.container, reason=refusal.reason)

    def _register_metrics(self) -> None:
        cluster, allocation, membership = self._allocation.cluster, self._allocation, self._membership
        for name, read in {
            "applications": lambda: len(cluster.specs),
            "owned_applications": lambda: len(membership.held),
            "ownerless_applications": membership.ownerless,
            "members": lambda: len(membership.view.record.replicas),
            "containers": lambda: cluster.rows.count,
            "refused_containers": lambda: len(allocation.refused.reasons),
            "steps_total": lambda: allocation.step_count,
            "changes_total": lambda: self.changes,
            "limit_updates_total": lambda: self._sender.sent,
            "unacknowledged_limit_updates_total": lambda: self._sender.lost,
            "memory_requests_total": lambda: self.memory_requests,
            "refused_memory_requests_total": lambda: self.refused_memory_requests,
            "takeovers_total": lambda: membership.acquired,
            "lost_applications_total": lambda: membership.lost,
            "failed_renewals_total": lambda: membership.failed_renewals,
            "out_of_order_batches_total": lambda: cluster.counts.out_of_order,
            "stale_batches_total": lambda: cluster.counts.stale,
            "subject_mismatch_total": lambda: self._inbox.subject_mismatches,
            "nodes_not_reported": lambda: len(set().union(*allocation.inventory.not_reported.values())),
            "dropped_batches_total": lambda: self._agents.guard.dropped[Kind.BATCH],
            "dropped_memory_requests_total": lambda: self._agents.guard.dropped[Kind.REQUEST],
            "unregistered_batches_total": lambda: self._agents.unregistered,
            "quarantined_nodes": lambda: len(self._agents.guard.quarantined),
            "nodes_set_aside": lambda: len({node for _, node in allocation.inventory.set_aside}),
            "ignored_epochs_total": lambda: allocation.inventory.ignored_claims,
            "invalid_samples_total": lambda: cluster.counts.invalid_samples,
        }.items():
            self._runtime.telemetry.observe(f"turnbuckle_allocator_{name}", read)
        count = self._settings.metrics_applications
        self._runtime.telemetry.observe_rows(
            app_metrics.NAMES, "app", lambda: app_metrics.app_metrics(allocation, count)
        )

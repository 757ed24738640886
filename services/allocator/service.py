"""The allocator's wiring: own applications, batches in, one vectorised step, orders and decisions out."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import lru_cache
from importlib.metadata import version
from typing import ClassVar

from schemas.apps import AppSpec
from schemas.cfs import CfsBatch
from schemas.containers import ContainerChange, ContainerEvent, ContainerSource, NodeInfo
from schemas.limits import LimitUpdate
from schemas.message import Message
from schemas.oom import MemoryRequest
from schemas.registry import ALLOCATOR_EXPLAIN, ALLOCATOR_STATE
from schemas.streams import APPS, NODES, BucketSpec
from schemas.subjects import CONTAINER_EVENTS, LIMIT_DECISIONS, REPLICA_EXPLAIN, REPLICA_STATE, Subject
from services._runtime.bus.api import Delivery, Entry, RequestRefusedError, Subscription
from services._runtime.clock import monotonic_ns
from services._runtime.service.app import Runtime
from services._runtime.service.settings import CommonSettings
from services._runtime.telemetry.tracing import NEW_TRACE, Begin, span
from services.allocator.batch_inbox import Intake
from services.allocator.cycle import Allocation, Outcome, Refusal
from services.allocator.leases.membership import Callbacks, Replicas
from services.allocator.queries import Queries
from services.allocator.settings import AllocatorSettings
from services.allocator.state.eligibility import Moment
from services.allocator.update_sender import Orders

FENCE_EVERY_S = 0.25


class Allocator:
    """Decides for the applications that it owns; several replicas share all applications of a bus."""

    name: ClassVar[str] = "allocator"
    version: ClassVar[str] = version("turnbuckle")
    settings_class: ClassVar[type[CommonSettings]] = AllocatorSettings

    def __init__(self, runtime: Runtime[AllocatorSettings]) -> None:
        self._runtime = runtime
        self._settings = runtime.settings
        self._bus = runtime.bus
        self._clock = runtime.clock
        self._log = runtime.log
        self._allocation = allocation = Allocation(int(self._settings.warm_up_s * 1e9))
        self._replicas = Replicas(runtime, Callbacks(self._own, self._disown))
        self._intake = Intake(self._bus, self._step, self._take_request, lambda: allocation.roster.group_count)
        self._orders = Orders(runtime, allocation, self._moment, self._after_replies, self._replicas.may_decide)
        self._queries = Queries(allocation, self._replicas, self._clock)
        self._subscriptions: list[Subscription] = []
        self._reclaimed_s = self._fenced_s = self._paused_s = self._clock.monotonic()
        self.changes = 0
        self.memory_requests = 0
        self.refused_memory_requests = 0

    async def start(self) -> None:
        """Learn the applications, join the other replicas, answer queries."""
        self._register_metrics()
        for bucket, take in ((NODES, self._take_node), (APPS, self._take_spec)):
            listed = asyncio.Event()
            self._runtime.spawn(self._follow(bucket, take, listed), name=f"bucket {bucket.name}")
            await listed.wait()  # before others hand us what we would not know
        replica, root = self._replicas.id, self._bus.root
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
        await self._replicas.start()
        self._runtime.spawn(self._forget_silent_nodes(), name="silent nodes")
        self._log.info("allocator_started", replica=replica)

    async def stop(self) -> None:
        """Stop deciding; others take over, limits stay as they are."""
        await self._replicas.stop()
        self._orders.stop()
        await self._intake.stop()
        subscriptions, self._subscriptions = self._subscriptions, []
        for subscription in subscriptions:
            await subscription.stop()

    def not_ready(self) -> str | None:
        """Why this replica could not decide, whether or not it owns anything; or None."""
        return self._replicas.not_ready()

    # -- ownership ---------------------------------------------------------------------------------------------

    async def _own(self, app: str, epoch: int) -> None:
        self._allocation.own(app, epoch, monotonic_ns(self._clock))
        await self._intake.listen(app)

    def _disown(self, app: str) -> None:
        self._allocation.disown(app)
        self._queries.forget(app)
        self._runtime.spawn(self._intake.ignore(app), name=f"ignore {app}")

    def _follow_lost(self) -> None:
        """Agents know a newer epoch of these: the lease says whose they are."""
        for app in self._allocation.take_lost():
            self._log.warning("stale_epoch", app=app, epoch=self._replicas.held.get(app))
            self._replicas.refused(app)

    # -- the step ----------------------------------------------------------------------------------------------

    def _step(self, batches: list[CfsBatch]) -> None:
        if not self._replicas.may_decide():
            return
        now_s = self._clock.monotonic()
        reclaim = now_s - self._reclaimed_s >= self._settings.reclaim_every_s
        if reclaim:
            self._reclaimed_s = now_s
        begun_ns = self._clock.time_ns()
        self._act_traced(self._allocation.step(batches, self._moment(reclaim=reclaim)), begun_ns, len(batches))
        if now_s - self._fenced_s >= FENCE_EVERY_S:
            self._fenced_s = now_s
            self._order(self._allocation.fences_due(self._moment()))

    def _moment(self, *, reclaim: bool = False) -> Moment:
        return Moment(
            monotonic_ns(self._clock),
            self._clock.time_ns(),
            reclaim,
            int(self._settings.stale_after_s * 1e9),
        )

    def _act_traced(self, outcome: Outcome, begun_ns: int, batches: int) -> None:
        """A step that changes nothing is nothing to tell of."""
        if not outcome.updates:
            self._act(outcome)
            return
        with span(
            "allocator.decide",
            Begin(NEW_TRACE, begun_ns=begun_ns),
            turnbuckle__batches=batches,
            turnbuckle__changes=sum(decisions.row_count for decisions in outcome.decisions),
            turnbuckle__limit_updates=len(outcome.updates),
        ):
            self._act(outcome)

    def _act(self, outcome: Outcome) -> None:
        self._order(outcome.updates)
        if not self._replicas.may_decide():  # stopped (SIGSTOP, starved) while it decided: a successor may have begun
            return
        for decisions in outcome.decisions:
            self.changes += decisions.row_count
            self._bus.publish(_decisions_subject(self._bus.root, decisions.app), decisions)
            self._queries.remember(decisions)
        for refusal in outcome.refusals:
            self._tell_refusal(refusal)

    def _order(self, updates: tuple[LimitUpdate, ...]) -> None:
        self._orders.send(updates)

    def _after_replies(self) -> None:
        """Hand out what replies have freed."""
        self._follow_lost()
        if self._replicas.may_decide():
            self._act(self._allocation.fund(self._moment()))

    async def _take_request(self, delivery: Delivery) -> Message:
        """A node's reserve runs out; no answer but an error says: ask again."""
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
            reply, outcome = self._allocation.request_memory(request, self._moment())
            self.refused_memory_requests += bool(reply.refusal)
            current.set(
                turnbuckle__memory__granted_bytes=reply.granted_bytes,
                turnbuckle__memory__reclaiming_bytes=reply.reclaiming_bytes,
                turnbuckle__limit_updates=len(outcome.updates),
                turnbuckle__refusal=reply.refusal,
            )
            self._act(outcome)
        self._require_ownership(request.app)  # again: the process may have been stopped meanwhile
        return reply

    def _require_ownership(self, app: str) -> None:
        if not self._replicas.may_decide() or app not in self._replicas.held:
            raise RequestRefusedError(503, f"{app} has no owner at present: retry")

    # -- applications and nodes --------------------------------------------------------------------------------

    async def _follow(
        self, bucket: BucketSpec, take: Callable[[str, Entry | None], None], listed: asyncio.Event
    ) -> None:
        """Applications and nodes come and change through KV; runs until cancelled."""
        async with self._bus.bucket(bucket).watch(take):
            listed.set()
            await asyncio.Event().wait()

    def _take_node(self, node: str, entry: Entry | None) -> None:
        message = entry.message if entry is not None else None
        if isinstance(message, NodeInfo):
            pending = bool(message.sources_pending)
            self._allocation.attendance.present(node, message.incarnation, pending=pending)
        elif entry is None:
            self._allocation.attendance.gone(node)

    def _take_spec(self, app: str, entry: Entry | None) -> None:
        message = entry.message if entry is not None else None
        if entry is not None and not (isinstance(message, AppSpec) and message.name == app):
            self._log.warning("spec_rejected", app=app, remedy="announce it again with `turnbuckle apply`")
            return
        if isinstance(message, AppSpec):
            self._allocation.set_spec(app, message)
            epoch = self._replicas.held.get(app)
            if epoch is not None and not self._allocation.epoch_of(app):  # withdrawn and back before it was released
                self._allocation.own(app, epoch, monotonic_ns(self._clock))
        else:
            updates = self._allocation.withdraw(app, self._moment())
            self._order(updates if self._replicas.may_decide() else ())
        self._replicas.announce(app, announced=message is not None)
        self._log.info("app_spec_changed", app=app, announced=message is not None)

    async def _forget_silent_nodes(self) -> None:
        """A node that is silent for long has died with its containers; its share is given back.

        While nothing could be decided, nothing could be heard either: that time does not count.
        """
        roster, after_s = self._allocation.roster, self._settings.node_expiry_s
        while True:
            await self._clock.sleep_until(self._clock.monotonic() + 1.0)
            now_s = self._clock.monotonic()
            if not self._replicas.may_decide():
                self._paused_s = now_s
            if now_s - self._paused_s < after_s:
                continue
            attendance = self._allocation.attendance
            for index, node in enumerate(roster.nodes):
                silent = node.heard_ns < (now_s - after_s) * 1e9 and not attendance.is_pending(node.name)
                if silent and roster.forget_node(index):
                    self._log.warning("node_expired", node=node.name, after_s=after_s)

    def _tell_refusal(self, refusal: Refusal) -> None:
        event = ContainerEvent(
            change=ContainerChange.REFUSED,
            app=refusal.app,
            node=refusal.node,
            container=refusal.container,
            name=refusal.container.rpartition("-")[0],
            source=ContainerSource.ALLOCATOR,
            time_ns=self._clock.time_ns(),
            incarnation=self._allocation.epoch_of(refusal.app),
            reason=refusal.reason,
        )
        subject = CONTAINER_EVENTS.subject(self._bus.root, app=refusal.app, node=refusal.node)
        self._bus.publish_fact(subject, event, message_id=f"refused-{refusal.container}-{event.time_ns}")
        self._log.warning("container_refused", app=refusal.app, container=refusal.container, reason=refusal.reason)

    def _register_metrics(self) -> None:
        roster, allocation, replicas = self._allocation.roster, self._allocation, self._replicas
        for name, read in {
            "applications": lambda: len(roster.specs),
            "owned_applications": lambda: len(replicas.held),
            "containers": lambda: roster.rows.count,
            "refused_containers": lambda: len(allocation.refusals),
            "steps_total": lambda: allocation.step_count,
            "changes_total": lambda: self.changes,
            "limit_updates_total": lambda: self._orders.sent,
            "unacknowledged_limit_updates_total": lambda: self._orders.lost,
            "memory_requests_total": lambda: self.memory_requests,
            "refused_memory_requests_total": lambda: self.refused_memory_requests,
            "takeovers_total": lambda: replicas.takeovers,
            "lost_leases_total": lambda: replicas.lost_leases,
            "failed_renewals_total": lambda: replicas.failed_renewals,
            "out_of_order_batches_total": lambda: roster.counts.overtaken,
            "stale_batches_total": lambda: roster.counts.stale,
            "subject_mismatch_total": lambda: self._intake.misplaced,
            "nodes_not_reported": lambda: len(set().union(*allocation.attendance.missing.values())),
            "invalid_samples_total": lambda: roster.counts.absurd_rows,
        }.items():
            self._runtime.telemetry.observe(f"turnbuckle_allocator_{name}", read)


@lru_cache(maxsize=1 << 16)
def _decisions_subject(root: str, app: str) -> Subject:
    return LIMIT_DECISIONS.subject(root, app=app)

"""The allocator's wiring: batches in, one vectorised step, orders and decisions out, queries answered."""

from __future__ import annotations

import asyncio
import socket
from functools import lru_cache
from importlib.metadata import version
from typing import ClassVar

from schemas.apps import AppSpec
from schemas.cfs import CfsBatch
from schemas.containers import ContainerChange, ContainerEvent, ContainerSource
from schemas.leases import Lease
from schemas.limits import LimitReply, LimitUpdate
from schemas.message import Message
from schemas.registry import ALLOCATOR_EXPLAIN, ALLOCATOR_STATE
from schemas.streams import APPS, LEASES
from schemas.subjects import CFS, CONTAINER_EVENTS, LIMIT_DECISIONS, LIMIT_UPDATES, Subject, SubjectError
from services._runtime.app import Runtime
from services._runtime.bus import BusError, Delivery, Entry, RevisionConflictError, Subscription
from services._runtime.settings import CommonSettings
from services.allocator.core.allocation import Allocation, Moment, Outcome, Refusal
from services.allocator.queries import Queries
from services.allocator.settings import AllocatorSettings

GATHER_S = 0.003
"""How long the batches of a tick are waited for, to be decided in one step; when all are there, not at all."""
GATHER_WAITS = 8
"""Such waits in a row while batches keep coming."""
FUND_S = 0.005
"""Replies of many nodes come close together; one at a time, each would send a little to every node that waits."""
REPLY_TIMEOUT_S = 1.0
"""A reply comes within one period and a deadline (130 ms) unless it is lost."""
FENCE_EVERY_S = 0.25
LEASE_KEY = "allocator"


class Allocator:
    """Decides for all applications; one active allocator per bus (the newest epoch wins)."""

    name: ClassVar[str] = "allocator"
    version: ClassVar[str] = version("turnbuckle")
    settings_class: ClassVar[type[CommonSettings]] = AllocatorSettings

    def __init__(self, runtime: Runtime[AllocatorSettings]) -> None:
        self._runtime = runtime
        self._settings = runtime.settings
        self._bus = runtime.bus
        self._clock = runtime.clock
        self._log = runtime.log
        self._waiting: list[CfsBatch] = []
        self._gathering: asyncio.TimerHandle | None = None
        self._funding: asyncio.TimerHandle | None = None
        self._awaited = 0
        self._subscriptions: list[Subscription] = []
        self._allocation: Allocation | None = None
        self._started_s = 0.0
        self._reclaimed_s = 0.0
        self._fenced_s = 0.0
        self._queries: Queries | None = None
        self.lost_updates = 0
        self.orders = 0
        self.changes = 0
        self.misplaced = 0

    async def start(self) -> None:
        """Take an epoch, learn the applications, listen."""
        self._allocation = allocation = Allocation(await self._take_epoch())
        self._queries = Queries(allocation, self._clock)
        self._started_s = self._reclaimed_s = self._clock.monotonic()
        self._register_metrics(allocation)
        self._runtime.spawn(self._follow_specs(), name="application specs")
        self._subscriptions = [
            await self._bus.subscribe(CFS.pattern(self._bus.root), self._take_batch),
            await self._bus.serve_queries(
                self.name,
                self.version,
                "keeps the sum of limits under each application's limit",
                {ALLOCATOR_STATE: self._queries.state, ALLOCATOR_EXPLAIN: self._queries.explain},
            ),
        ]
        self._runtime.spawn(self._forget_silent_nodes(), name="silent nodes")
        self._runtime.spawn(self._watch_lease(), name="lease")
        self._log.info("allocator_started", epoch=allocation.epoch)

    async def stop(self) -> None:
        """Stop deciding; limits stay as they are."""
        for timer in (self._gathering, self._funding):
            if timer is not None:
                timer.cancel()
        await self._stop_listening()

    async def _stop_listening(self) -> None:
        subscriptions, self._subscriptions = self._subscriptions, []
        for subscription in subscriptions:
            await subscription.stop()

    def not_ready(self) -> str | None:
        """Why this allocator does not decide, or None."""
        if self._allocation is None:
            return "no epoch yet"
        if self._allocation.superseded:
            return f"a newer allocator has taken over from epoch {self._allocation.epoch}"
        return None

    # -- the step ----------------------------------------------------------------------------------------------

    def _take_batch(self, delivery: Delivery) -> None:
        batch = delivery.message
        # A server's permissions are by subject: what a batch says of its origin must agree with it.
        if not isinstance(batch, CfsBatch) or delivery.subject != _batch_subject(self._bus.root, batch.app, batch.node):
            self.misplaced += 1
            return
        self._waiting.append(batch)
        if self._allocation is not None and len(self._waiting) == self._allocation.roster.group_count:
            self._step()
        elif self._gathering is None:
            self._gather(0)

    def _gather(self, seen: int, waits: int = GATHER_WAITS) -> None:
        """Wait for more batches as long as they keep coming; a step costs as much for few of them as for many."""
        if len(self._waiting) > seen and waits:
            again = asyncio.get_running_loop().call_later
            self._gathering = again(GATHER_S, self._gather, len(self._waiting), waits - 1)
        else:
            self._step()

    def _step(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        batches, self._waiting = self._waiting, []
        if self._allocation is not None:
            now_s = self._clock.monotonic()
            reclaim = now_s - self._reclaimed_s >= self._settings.reclaim_every_s
            if reclaim:
                self._reclaimed_s = now_s
            self._act(self._allocation.step(batches, self._moment(reclaim=reclaim)))
            if now_s - self._fenced_s >= FENCE_EVERY_S:
                self._fenced_s = now_s
                self._order(self._allocation.fences_due(self._moment()))

    def _moment(self, *, reclaim: bool = False) -> Moment:
        now_s, settings = self._clock.monotonic(), self._settings
        return Moment(
            int(now_s * 1e9),
            self._clock.time_ns(),
            reclaim,
            now_s - self._started_s < settings.warm_up_s,
            int(settings.stale_after_s * 1e9),
        )

    def _act(self, outcome: Outcome) -> None:
        self._order(outcome.updates)
        for decisions in outcome.decisions:
            self.changes += decisions.row_count
            self._bus.publish(_decisions_subject(self._bus.root, decisions.app), decisions)
            if self._queries is not None:
                self._queries.remember(decisions)
        for refusal in outcome.refusals:
            self._tell_refusal(refusal)

    def _order(self, updates: tuple[LimitUpdate, ...]) -> None:
        for update in updates:
            self.orders += 1
            self._runtime.spawn(self._deliver(update), name=f"order {update.seq}")

    async def _deliver(self, update: LimitUpdate) -> None:
        """Send an order and take in its reply."""
        subject = _orders_subject(self._bus.root, update.node)
        allocation = self._allocation
        if allocation is None:
            return
        try:
            reply = await self._request(subject, update)
        except BusError as error:
            self.lost_updates += 1
            self._log.debug("order_lost", node=update.node, seq=update.seq, error=str(error))
            allocation.take_loss(update)
            return
        if not isinstance(reply, LimitReply):
            self.lost_updates += 1
            allocation.take_loss(update)
            return
        allocation.take_reply(reply, update, self._moment())
        self._fund_soon()
        if allocation.superseded:
            self._fall_silent(allocation)
        if reply.refusal:
            self._log.warning("order_refused", node=update.node, reason=reply.refusal)

    async def _request(self, subject: Subject, update: LimitUpdate) -> Message:
        self._awaited += 1
        try:
            return await self._bus.request(subject, update, timeout_s=REPLY_TIMEOUT_S)
        finally:
            self._awaited -= 1

    def _fund_soon(self) -> None:
        """Hand out what replies have freed: for all that come close together at once, at once where none is awaited."""
        if not self._awaited:
            self._fund()
        elif self._funding is None:
            self._funding = asyncio.get_running_loop().call_later(FUND_S, self._fund)

    def _fund(self) -> None:
        if self._funding is not None:
            self._funding.cancel()
            self._funding = None
        if self._allocation is not None:
            self._act(self._allocation.fund(self._moment()))

    def _register_metrics(self, allocation: Allocation) -> None:
        observe, roster = self._runtime.telemetry.observe, allocation.roster
        observe("turnbuckle_allocator_applications", lambda: len(roster.specs))
        observe("turnbuckle_allocator_containers", lambda: roster.rows.count)
        observe("turnbuckle_allocator_refused_containers", lambda: len(allocation.refusals))
        observe("turnbuckle_allocator_steps_total", lambda: allocation.step_count)
        observe("turnbuckle_allocator_changes_total", lambda: self.changes)
        observe("turnbuckle_allocator_orders_total", lambda: self.orders)
        observe("turnbuckle_allocator_lost_orders_total", lambda: self.lost_updates)
        observe("turnbuckle_allocator_overtaken_batches_total", lambda: roster.counts.overtaken)
        observe("turnbuckle_allocator_misplaced_messages_total", lambda: self.misplaced)
        observe("turnbuckle_allocator_absurd_rows_total", lambda: roster.counts.absurd_rows)

    async def _take_epoch(self) -> int:
        """A larger epoch than any allocator before, kept in KV; waits for the bus as long as it takes.

        Wall-clock milliseconds make it rise even where the bucket was lost with its server.
        """
        bucket = self._bus.bucket(LEASES)
        while True:
            now_ns = self._clock.time_ns()
            try:
                entry = await bucket.get(LEASE_KEY)
                lease = entry.message if entry is not None else None
                before = lease.epoch if isinstance(lease, Lease) else 0
                mine = Lease(owner=socket.gethostname(), epoch=max(before + 1, now_ns // 1_000_000), time_ns=now_ns)
                if entry is None:
                    await bucket.create(LEASE_KEY, mine)
                else:
                    await bucket.update(LEASE_KEY, mine, entry.revision)
            except RevisionConflictError:
                continue
            except BusError as error:
                self._log.info("waiting_for_the_bus", error=str(error))
                await self._clock.sleep_until(self._clock.monotonic() + 1.0)
            else:
                return mine.epoch

    async def _watch_lease(self) -> None:
        """An allocator that starts takes a larger epoch; an idle one would not notice by a refused order."""
        async with self._bus.bucket(LEASES).watch(self._take_lease):
            await asyncio.Event().wait()

    def _take_lease(self, key: str, entry: Entry | None) -> None:
        lease, allocation = entry.message if entry is not None else None, self._allocation
        if key == LEASE_KEY and allocation is not None and isinstance(lease, Lease) and lease.epoch > allocation.epoch:
            self._fall_silent(allocation)

    def _fall_silent(self, allocation: Allocation) -> None:
        """A newer allocator has taken over: decide nothing and leave the queries to it."""
        allocation.superseded = True
        if self._subscriptions:
            self._log.error("superseded", epoch=allocation.epoch)
            self._runtime.spawn(self._stop_listening(), name="falling silent")

    # -- applications and nodes --------------------------------------------------------------------------------

    async def _follow_specs(self) -> None:
        """Applications come and change through KV; runs until cancelled."""
        async with self._bus.bucket(APPS).watch(self._take_spec):
            await asyncio.Event().wait()

    def _take_spec(self, app: str, entry: Entry | None) -> None:
        if self._allocation is None:
            return
        message = entry.message if entry is not None else None
        if entry is not None and not (isinstance(message, AppSpec) and message.name == app):
            self._log.warning("spec_rejected", app=app, remedy="announce it again with `turnbuckle apply`")
            return
        self._allocation.set_spec(app, message if isinstance(message, AppSpec) else None)
        self._log.info("application", app=app, announced=message is not None)

    async def _forget_silent_nodes(self) -> None:
        """A node that is silent for long has died with its containers; its share is given back."""
        while True:
            await self._clock.sleep_until(self._clock.monotonic() + 1.0)
            allocation = self._allocation
            if allocation is None:
                continue
            deadline_ns = int((self._clock.monotonic() - self._settings.forget_node_after_s) * 1e9)
            for index, node in enumerate(allocation.roster.nodes):
                if node.heard_ns < deadline_ns and allocation.roster.forget_node(index):
                    self._log.warning("node_forgotten", node=node.name, after_s=self._settings.forget_node_after_s)

    def _tell_refusal(self, refusal: Refusal) -> None:
        event = ContainerEvent(
            change=ContainerChange.REFUSED,
            app=refusal.app,
            node=refusal.node,
            container=refusal.container,
            name=refusal.container.rpartition("-")[0],
            source=ContainerSource.ALLOCATOR,
            time_ns=self._clock.time_ns(),
            incarnation=self._allocation.epoch if self._allocation else 0,
            reason=refusal.reason,
        )
        subject = CONTAINER_EVENTS.subject(self._bus.root, app=refusal.app, node=refusal.node)
        self._bus.publish_fact(subject, event, message_id=f"refused-{refusal.container}-{event.time_ns}")
        self._log.warning("container_refused", app=refusal.app, container=refusal.container, reason=refusal.reason)


@lru_cache(maxsize=1 << 16)
def _batch_subject(root: str, app: str, node: str) -> str | None:
    """None where no subject can carry such names."""
    try:
        return CFS.subject(root, app=app, node=node).text
    except SubjectError:
        return None


@lru_cache(maxsize=1 << 16)
def _decisions_subject(root: str, app: str) -> Subject:
    return LIMIT_DECISIONS.subject(root, app=app)


@lru_cache(maxsize=1 << 16)
def _orders_subject(root: str, node: str) -> Subject:
    return LIMIT_UPDATES.subject(root, node=node)

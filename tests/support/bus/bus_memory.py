"""The bus in memory, for tests of services: same semantics as `bus_nats`, no server, faults on demand."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, Self

from schemas.message import Message
from schemas.service import Endpoint
from schemas.streams import BUCKETS, OBJECT_STORES, STREAMS, BucketSpec, ObjectStoreSpec, StreamSpec
from schemas.subjects import Subject
from services._runtime.bus.api import (
    BusError,
    BusUnavailableError,
    EventHandler,
    Handler,
    NoResponderError,
    PendingReply,
    RawMessage,
    RequestTimeoutError,
    Responder,
    Screen,
)
from services._runtime.bus.dispatch import Dispatch
from services._runtime.bus.outbox import DurableEvent, Outbox
from services._runtime.telemetry.tracing import Span, inject, message_span, trace_headers
from tests.support.bus.memory_broker import MemoryBroker, MemoryStream, MemorySubscription
from tests.support.bus.memory_kv import MemoryKeyValue, first_of
from tests.support.bus.memory_objects import MemoryObjects

_REDELIVERY_S: Final = 0.05
_PENDING_MESSAGES: Final = 8_192


class _Subscription:
    """Observations or commands."""

    def __init__(self, bus: MemoryBus, raws: list[MemorySubscription], tasks: set[asyncio.Task[None]]) -> None:
        self._bus = bus
        self._raws = raws
        self._tasks = tasks

    async def stop(self) -> None:
        """Stop receiving; what waits already is still handled."""
        self._bus.open.discard(self)
        for raw in self._raws:
            self._bus.broker.remove(raw)
            while raw.waiting:
                raw.hand_over_one()
        while self._tasks:
            await asyncio.wait(self._tasks)


class _Consumer:
    """Facts."""

    def __init__(
        self,
        bus: MemoryBus,
        stream: MemoryStream,
        handler: EventHandler,
        on_undecodable: Callable[[int], None] | None,
        after: int,
    ) -> None:
        self._bus = bus
        self._stream = stream
        self._next_index = after
        self._again: deque[int] = deque()
        self._handler = handler
        self._on_undecodable = on_undecodable
        self._stopping = asyncio.Event()
        self._to_come = len(stream.messages) - after
        self._caught_up = asyncio.Event()
        self._count_down(0)
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def caught_up(self) -> None:
        """Return once everything has been handled that was stored at the start."""
        await self._caught_up.wait()

    def _count_down(self, handled: int) -> None:
        self._to_come -= handled
        if self._to_come <= 0:
            self._caught_up.set()

    async def _run(self) -> None:
        while not self._stopping.is_set():
            index = self._take() if self._bus.connected else None
            if index is None:
                await first_of(self._stream.changed.wait(), self._stopping.wait(), self._bus.state_changed.wait())
                continue
            (subject, data), headers = self._stream.messages[index], self._stream.headers[index]
            raw = RawMessage(subject, data, headers, not self._caught_up.is_set(), index + 1)
            handled = await self._bus.dispatch.deliver_event(self._handler, raw)
            if handled is None and self._on_undecodable is not None:
                self._on_undecodable(raw.sequence)
            if handled is False:
                asyncio.get_running_loop().call_later(_REDELIVERY_S, self._give_back, index)
            else:
                self._count_down(1)

    def _take(self) -> int | None:
        """Index of the next message, or None."""
        if self._again:
            return self._again.popleft()
        if self._next_index < len(self._stream.messages):
            self._next_index += 1
            return self._next_index - 1
        return None

    def _give_back(self, index: int) -> None:
        """Deliver it again."""
        self._again.append(index)
        self._stream.wake()

    async def stop(self) -> None:
        """Finish the message under way and stop."""
        self._bus.open.discard(self)
        self._stopping.set()
        await self._task


class MemoryBus:
    """`services._runtime.bus.api.Bus` on a `MemoryBroker`. `disconnect` and `reconnect` provoke faults."""

    def __init__(
        self,
        broker: MemoryBroker,
        root: str = "tb",
        *,
        streams: tuple[StreamSpec, ...] = STREAMS,
        buckets: tuple[BucketSpec, ...] = BUCKETS,
    ) -> None:
        self.broker = broker
        self.root = root
        self.dispatch = Dispatch()
        self.open: set[_Subscription | _Consumer] = set()
        self.state_changed = asyncio.Event()
        """Replaced, and the old one set, whenever the connection comes or goes."""
        self._attached = True
        self._was_connected = broker.online
        self._callbacks: list[Callable[[], None]] = []
        self._outbox = Outbox(self._send_event, self.dispatch)
        self._requests: set[asyncio.Future[bytes]] = set()
        for stream in streams:
            broker.declare_stream(stream.stream_name(root), stream, stream.subjects(root))
        for bucket in buckets:
            broker.declare_bucket(bucket.bucket_name(root), bucket)
        for store in OBJECT_STORES:
            broker.declare_object_store(store.bucket_name(root), store)
        broker.on_online(lambda _online: self._update())
        self._sender: asyncio.Task[None] | None = None

    @classmethod
    async def connect(cls, broker: MemoryBroker, root: str = "tb") -> Self:
        """As `NatsBus.connect`."""
        return cls(broker, root)

    @property
    def connected(self) -> bool:
        """Whether the broker can be reached."""
        return self._attached and self.broker.online

    def disconnect(self) -> None:
        """Lose the connection."""
        self._attached = False
        self._update()

    def reconnect(self) -> None:
        """Get it back."""
        self._attached = True
        self._update()

    def _update(self) -> None:
        if self.connected == self._was_connected:
            return
        self._was_connected = self.connected
        self.state_changed.set()
        self.state_changed = asyncio.Event()
        if not self.connected:
            for future in self._requests:
                if not future.done():
                    future.set_exception(BusUnavailableError("the connection broke"))
            return
        self.dispatch.counts["reconnects"] += 1
        self._outbox.retry_now()
        for callback in self._callbacks:
            self.dispatch.call_back(callback)

    @property
    def counters(self) -> dict[str, int]:
        """Plain counts by name."""
        return dict(self.dispatch.counts) | {"events_pending": len(self._outbox)}

    def publish(self, subject: Subject, message: Message) -> None:
        """Send a lossy observation."""
        if not self.connected:
            self.dispatch.counts["dropped_disconnected"] += 1
            return
        _refuse_pattern(subject)
        self.broker.publish(subject.text, self.dispatch.encode(message))
        self.dispatch.counts["published"] += 1

    def write_now(self) -> None:
        """Nothing waits to be written."""

    def publish_event(self, subject: Subject, message: Message, *, message_id: str) -> None:
        """Queue a fact."""
        _refuse_pattern(subject)
        self._outbox.put(DurableEvent(subject.text, self.dispatch.encode(message), message_id, trace_headers()))
        if self._sender is None:
            self._sender = asyncio.get_running_loop().create_task(self._outbox.run())

    async def _send_event(self, fact: DurableEvent) -> None:
        self.require_connection()
        headers: dict[str, str] = {}
        with fact.span():
            inject(headers)
            stored = self.broker.publish_event(fact.subject, fact.data, fact.message_id, headers)
        if not stored:
            raise BusUnavailableError(f"no stream keeps {fact.subject}")

    def require_connection(self) -> None:
        """Raise `BusUnavailableError` while disconnected."""
        if not self.connected:
            raise BusUnavailableError("not connected")

    async def append(
        self, stream: StreamSpec, subject: Subject, message: Message, last_sequence: int, message_id: str | None = None
    ) -> int:
        """Store a fact if the stream's last sequence is still this one."""
        _refuse_pattern(subject)
        raw, found = RawMessage(subject.text, self.dispatch.encode(message)), self._stream(stream)
        self.broker.publish(subject.text, raw.data)
        return found.store(raw, message_id, self.broker.clock.monotonic(), last_sequence)

    async def subscribe(
        self, pattern: Subject, handler: Handler, *, queue: str | None = None, screen: Screen | None = None
    ) -> _Subscription:
        """Receive observations."""

        def receive(raw: RawMessage, _reply: asyncio.Future[bytes] | None) -> None:
            self.dispatch.deliver(handler, raw.subject, raw.data)

        raw = self._interest(pattern, queue, receive)
        raw.screen = screen
        return self._open([raw], set())

    def _interest(
        self,
        pattern: Subject,
        queue: str | None,
        receive: Callable[[RawMessage, asyncio.Future[bytes] | None], None],
    ) -> MemorySubscription:
        def overflow() -> None:
            self.dispatch.counts["dropped_slow"] += 1

        return MemorySubscription(pattern, queue, receive, lambda: self.connected, _PENDING_MESSAGES, overflow)

    def _open(self, raws: list[MemorySubscription], tasks: set[asyncio.Task[None]]) -> _Subscription:
        for raw in raws:
            self.broker.add(raw)
        subscription = _Subscription(self, raws, tasks)
        self.open.add(subscription)
        return subscription

    async def replay(
        self,
        stream: StreamSpec,
        handler: EventHandler,
        on_undecodable: Callable[[int], None] | None = None,
        *,
        after: int = 0,
    ) -> _Consumer:
        """Receive all facts, for this process alone."""
        consumer = _Consumer(self, self._stream(stream), handler, on_undecodable, after)
        self.open.add(consumer)
        return consumer

    async def read_stored(self, stream: StreamSpec, pattern: Subject, handler: Handler) -> None:
        """Call the handler with the stored facts."""
        for subject, data in tuple(self._stream(stream).messages):
            delivery = self.dispatch.decode(subject, data)
            if delivery is None or not pattern.matches(Subject(subject)):
                continue
            if stream.stored_by_host(self.root) is not None:
                (template,) = stream.templates
                if template.parse(self.root, subject)["node"] != getattr(delivery.message, "node", None):
                    self.dispatch.counts["undecodable_subject_mismatch"] += 1
                    continue
            self.dispatch.hand(handler, delivery)

    async def event_at(self, stream: StreamSpec, sequence: int) -> RawMessage | None:
        """One fact."""
        messages = self._stream(stream).messages
        if not 1 <= sequence <= len(messages):
            return None
        subject, data = messages[sequence - 1]
        return RawMessage(subject, data, sequence=sequence)

    async def is_stored(self, stream: StreamSpec, subject: Subject) -> bool:
        """Whether the stream holds a fact on this subject."""
        if stream.stored_by_host(self.root) is not None:
            raise BusError(f"stream {stream.name} keeps a host's events under one subject")
        return any(text == subject.text for text, _ in self._stream(stream).messages)

    def _stream(self, spec: StreamSpec) -> MemoryStream:
        self.require_connection()
        found = self.broker.stream(spec.stream_name(self.root))
        if found is None:
            raise BusError(f"stream {spec.name} was not declared")
        return found

    async def request(self, subject: Subject, message: Message, *, timeout_s: float) -> Message:
        """Send a command and wait for the reply."""
        return await self.send_request(subject, message, timeout_s=timeout_s)()

    def send_request(self, subject: Subject, message: Message, *, timeout_s: float) -> PendingReply:
        """Send a command."""
        self.require_connection()
        _refuse_pattern(subject)
        data = self.dispatch.encode(message)
        reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        current = message_span("bus.request", subject.text)
        receivers = self.broker.publish(subject.text, data, reply, current.carrier or None)
        if receivers:
            self._requests.add(reply)
        return partial(self._reply_to, subject, reply if receivers else None, current, timeout_s)

    async def _reply_to(
        self, subject: Subject, reply: asyncio.Future[bytes] | None, current: Span, timeout_s: float
    ) -> Message:
        with current:
            if reply is None:
                raise NoResponderError(f"no responders for {subject}")
            try:
                async with asyncio.timeout(timeout_s):
                    answer = await reply
            except TimeoutError as error:
                raise RequestTimeoutError(f"no reply from {subject} within {timeout_s:g} s") from error
            finally:
                self._requests.discard(reply)
            return self.dispatch.read_reply(subject.text, answer)

    async def serve(self, subject: Subject, responder: Responder, *, screen: Screen | None = None) -> _Subscription:
        """Answer commands on a subject."""
        tasks: set[asyncio.Task[None]] = set()
        raw = self._served(subject, None, responder, (None, tasks))
        raw.screen = screen
        return self._open([raw], tasks)

    async def serve_queries(
        self, service: str, version: str, description: str, endpoints: dict[Endpoint, Responder]
    ) -> _Subscription:
        """Register a micro service."""
        del description
        self.broker.services[service] = version
        tasks: set[asyncio.Task[None]] = set()
        raws = [
            self._served(endpoint.template.subject(self.root), "q", responder, (endpoint.request, tasks))
            for endpoint, responder in endpoints.items()
        ]
        return self._open(raws, tasks)

    def _served(
        self,
        subject: Subject,
        queue: str | None,
        responder: Responder,
        how: tuple[type[Message] | None, set[asyncio.Task[None]]],
    ) -> MemorySubscription:
        model, tasks = how

        async def answer(raw: RawMessage, reply: asyncio.Future[bytes]) -> None:
            encoded, _ = await self.dispatch.answer(responder, raw, model)
            if not self.connected:
                self.dispatch.counts["dropped_disconnected"] += 1
            elif not reply.done():
                reply.set_result(encoded)

        def receive(raw: RawMessage, reply: asyncio.Future[bytes] | None) -> None:
            if reply is None:
                self.dispatch.counts["undecodable_no_reply_subject"] += 1
                return
            task = asyncio.get_running_loop().create_task(answer(raw, reply))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        return self._interest(subject, queue, receive)

    def bucket(self, spec: BucketSpec) -> MemoryKeyValue:
        """A KV bucket, declared when the bus was made."""
        found = self.broker.bucket(spec.bucket_name(self.root))
        if found is None:
            raise BusError(f"bucket {spec.name} was not declared")
        return MemoryKeyValue(self, found)

    def objects(self, spec: ObjectStoreSpec) -> MemoryObjects:
        """An object store, declared when the bus was made."""
        found = self.broker.object_store(spec.bucket_name(self.root))
        if found is None:
            raise BusError(f"object store {spec.name} was not declared")
        return MemoryObjects(self, found)

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        """Call back each time the connection has come back."""
        self._callbacks.append(callback)

    async def flush(self, timeout_s: float) -> None:
        """Wait until facts are stored and observations have reached the broker."""
        if self._sender is not None and not await self._outbox.wait_empty(timeout_s):
            raise BusUnavailableError(f"{len(self._outbox)} events are not stored after {timeout_s:g} s")
        self.require_connection()
        await asyncio.sleep(0)

    async def close(self, timeout_s: float) -> dict[str, int]:
        """Stop everything; returns what could not be delivered, by kind."""
        undelivered: dict[str, int] = {}
        stops = [asyncio.ensure_future(subscription.stop()) for subscription in list(self.open)]
        if stops:
            _, unfinished = await asyncio.wait(stops, timeout=timeout_s)
            for stop in unfinished:
                stop.cancel()
            if unfinished:
                undelivered["subscriptions"] = len(unfinished)
        if self._sender is not None:
            await self._outbox.wait_empty(timeout_s if self.connected else 0.0)
            self._sender.cancel()
            await asyncio.wait({self._sender})
        if len(self._outbox):
            undelivered["events"] = len(self._outbox)
        self.disconnect()
        return undelivered


def _refuse_pattern(subject: Subject) -> None:
    if "*" in subject.text or ">" in subject.text:
        raise BusError(f"{subject} is a pattern: it can only be subscribed to")

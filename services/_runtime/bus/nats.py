"""The bus over NATS. Behaviour of nats-py that it depends on is described in `nats_connection` and at each use."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Self

import nats.errors
import nats.js.errors
from nats.js.api import Header

from schemas.codec import CodecError, encode
from schemas.message import Message
from schemas.service import Endpoint
from schemas.streams import BucketSpec, ObjectStoreSpec, StreamSpec
from schemas.subjects import Subject
from services._runtime.bus.api import (
    BusError,
    BusUnavailableError,
    EventHandler,
    Handler,
    NoResponderError,
    NotPermittedError,
    PendingReply,
    RawMessage,
    RequestTimeoutError,
    Responder,
    RevisionConflictError,
    Screen,
)
from services._runtime.bus.nats_connection import (
    ConnectionEvents,
    RefusedError,
    as_bus_errors,
    open_connection,
)
from services._runtime.bus.nats_failures import describe
from services._runtime.bus.nats_history import read_stored
from services._runtime.bus.nats_kv import NatsKeyValue
from services._runtime.bus.nats_objects import NatsObjects
from services._runtime.bus.nats_replay import NatsReplay
from services._runtime.bus.nats_session import NatsSession
from services._runtime.bus.nats_streams import declare
from services._runtime.bus.nats_subscriptions import (
    NatsBuffer,
    NatsMicroService,
    NatsServer,
    NatsSubscription,
)
from services._runtime.bus.options import BusOptions
from services._runtime.bus.outbox import DurableEvent, MessageIds, Outbox
from services._runtime.telemetry.logging import log_once
from services._runtime.telemetry.tracing import Span, inject, message_span, trace_headers

_JETSTREAM_TIMEOUT_S: Final = 5.0
_DECLARE_RETRY_S: Final = 1.0
_TOO_LONG: Final = 10054
"""Error of the server: the stream takes no message of this size."""
_OTHER_LAST_SEQUENCE: Final = 10071


class NatsBus(NatsSession):
    """`services._runtime.bus.api.Bus` on one NATS connection. Make it with `connect`."""

    def __init__(self, options: BusOptions) -> None:
        super().__init__(options)
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the connection is permanently closed (revoked credentials): the process has to restart.

        With an exception if the first connection, made in the background, failed.
        """
        self.undeclared: list[str] = []
        """Streams that are missing or differ, and that this user may not change."""
        self._message_ids: MessageIds | None = None
        self._outbox = Outbox(self._send_event, self.dispatch)
        self._callbacks: list[Callable[[], None]] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False

    @classmethod
    async def connect(cls, options: BusOptions, *, wait_s: float | None = None) -> Self:
        """Connect and declare streams and buckets; without a `connect_deadline_s` it retries for ever.

        Args:
            options: servers and credentials.
            wait_s: return after so many seconds even if not connected, and retry in the background. Until then
                everything behaves as while disconnected, and subscribing or serving raises `BusUnavailableError`.

        Raises:
            BusUnavailableError: the timeout has passed; the text names a remedy.
            BusError: the options are invalid.
        """
        bus = cls(options)
        connecting = bus._spawn(bus._connect(), "connect")
        try:
            await asyncio.wait({connecting}, timeout=wait_s)
        except asyncio.CancelledError:
            connecting.cancel()
            await asyncio.wait({connecting})
            raise
        if connecting.done():
            connecting.result()
        else:
            connecting.add_done_callback(bus._connected_late)
        return bus

    async def _connect(self) -> None:
        events = ConnectionEvents(self._on_disconnect, self._on_reconnect, self._on_close)
        self.connection = await open_connection(self.options, self.dispatch, events)
        self._message_ids = MessageIds(self.options)
        self._jetstream = self.connection.jetstream(timeout=_JETSTREAM_TIMEOUT_S)
        try:
            await self._declare_all()
        except BaseException:
            self._closing = True
            await self._close_connection(1.0)
            raise
        self._spawn(self._outbox.run(), "outbox")

    def _connected_late(self, connecting: asyncio.Task[None]) -> None:
        if connecting.cancelled() or self.lost.done():
            return
        if (error := connecting.exception()) is not None:
            self.lost.set_exception(error)
        else:
            self.dispatch.log.info("connected", servers=self.options.address)

    @property
    def counters(self) -> dict[str, int]:
        """Message counts by name."""
        return dict(self.dispatch.counts) | {"events_pending": len(self._outbox)}

    def publish(self, subject: Subject, message: Message) -> None:
        """Publish a lossy observation; dropped and counted while disconnected or while the send buffer is full."""
        counts = self.dispatch.counts
        connection = self.connection
        if not connection.is_connected:
            counts["dropped_disconnected"] += 1
            return
        if connection.pending_data_size > self.options.outbound_bytes:
            counts["dropped_slow"] += 1
            return
        _refuse_pattern(subject)
        try:
            connection.send_now(subject.text, encode(message))
        except (CodecError, nats.errors.Error) as error:  # as_bus_errors would cost a microsecond here
            raise BusError(f"publish to {subject}: {describe(error)}") from error
        counts["published"] += 1

    def write_now(self) -> None:
        """Write it without waiting for nats-py's task that does so."""
        self.connection.write_now()

    def publish_event(self, subject: Subject, message: Message, *, message_id: str) -> None:
        """Queue a durable event; see `Outbox`."""
        _refuse_pattern(subject)
        self._outbox.put(DurableEvent(subject.text, self.dispatch.encode(message), message_id, trace_headers()))

    async def _send_event(self, event: DurableEvent) -> None:
        if not self.connected or self._message_ids is None:  # no span for an attempt that cannot succeed
            raise BusUnavailableError("not connected")
        headers = {"Nats-Msg-Id": self._message_ids.wire_id(event.message_id)}
        with as_bus_errors(f"store an event on {event.subject}"), event.span():
            inject(headers)
            try:
                await self.jetstream.publish(event.subject, event.data, headers=headers)
            except nats.js.errors.APIError as error:
                if error.err_code != _TOO_LONG:
                    raise
                self.dispatch.counts["events_dropped"] += 1  # a retry would fail for ever and block the queue
                log_once(
                    self.dispatch.log.error,
                    self.dispatch.limiter,
                    "event_too_large",
                    subject=event.subject,
                    size_bytes=len(event.data),
                )

    async def append(
        self, stream: StreamSpec, subject: Subject, message: Message, last_sequence: int, message_id: str | None = None
    ) -> int:
        """Store an event if the stream's last sequence is still this one.

        The server looks at the sequence first, and only then for a duplicate id: whether it was this very event that
        was stored there is found out by its id.
        """
        _refuse_pattern(subject)
        data, name = self.dispatch.encode(message), stream.stream_name(self.root)
        headers: dict[str, str] = {Header.EXPECTED_LAST_SEQUENCE: str(last_sequence)}
        if message_id is not None and self._message_ids is not None:
            headers[Header.MSG_ID] = self._message_ids.wire_id(message_id)
        with as_bus_errors(f"append to stream {name}"), message_span("bus.append", subject.text):
            inject(headers)
            try:
                acknowledged = await self.jetstream.publish(subject.text, data, stream=name, headers=headers)
            except nats.js.errors.APIError as error:
                if error.err_code != _OTHER_LAST_SEQUENCE:
                    raise
                if not await self._is_stored_as(name, last_sequence + 1, headers.get(Header.MSG_ID)):
                    raise RevisionConflictError(f"stream {name} is not at sequence {last_sequence}") from error
                return last_sequence + 1
        return acknowledged.seq

    async def _is_stored_as(self, stream: str, sequence: int, wire_id: str | None) -> bool:
        """Whether the event of this sequence has this id."""
        if wire_id is None:
            return False
        try:
            stored = await self.jetstream.get_msg(stream, seq=sequence)
        except nats.js.errors.NotFoundError:
            return False
        return (stored.headers or {}).get(Header.MSG_ID) == wire_id

    async def subscribe(
        self, pattern: Subject, handler: Handler, *, queue: str | None = None, screen: Screen | None = None
    ) -> NatsSubscription:
        """Receive observations."""
        self._require_first_connection()
        subscription = NatsSubscription(self)
        await subscription.start(pattern.text, handler, queue, screen)
        return subscription

    async def subscribe_buffered(self, pattern: Subject, handler: Handler) -> NatsBuffer:
        """Receive observations, and handle them when `NatsBuffer.deliver` is called."""
        self._require_first_connection()
        buffer = NatsBuffer(self, handler)
        await buffer.start(pattern.text)
        return buffer

    async def replay(
        self,
        stream: StreamSpec,
        handler: EventHandler,
        on_undecodable: Callable[[int], None] | None = None,
        *,
        after: int = 0,
    ) -> NatsReplay:
        """Receive all stored and future events."""
        self._require_first_connection()
        made = NatsReplay(self, stream, handler, on_undecodable, after)
        await made.start()
        return made

    async def read_stored(self, stream: StreamSpec, pattern: Subject, handler: Handler) -> None:
        """Call the handler with the stored events."""
        if not self.connected:  # else the request would wait in the send buffer, and fail only seconds later
            raise BusUnavailableError(f"read stream {stream.stream_name(self.root)}: not connected")
        await read_stored(self, stream, pattern, 0.0, partial(self.dispatch.hand, handler))

    async def event_at(self, stream: StreamSpec, sequence: int) -> RawMessage | None:
        """One event, from the stream's leader: a replica may lag."""
        name = stream.stream_name(self.root)
        if sequence < 1:
            return None
        with as_bus_errors(f"read event {sequence} of stream {name}"):
            try:
                found = await self.jetstream.get_msg(name, seq=sequence)
            except nats.js.errors.NotFoundError:
                return None
        return RawMessage(found.subject or "", found.data or b"", sequence=sequence)

    async def is_stored(self, stream: StreamSpec, subject: Subject) -> bool:
        """Whether the stream holds an event on this subject."""
        name = stream.stream_name(self.root)
        if stream.stored_by_host(self.root) is not None:
            raise BusError(
                f"stream {name} keeps a host's events under one subject, and cannot tell {subject} from others"
            )
        with as_bus_errors(f"look for {subject} in stream {name}"):
            try:
                await self.jetstream.get_last_msg(name, subject.text)  # from the leader: a replica may lag
            except nats.js.errors.NotFoundError:
                return False
        return True

    async def request(self, subject: Subject, message: Message, *, timeout_s: float) -> Message:
        """Send a command and wait for the reply."""
        if self.connected:
            await self.connection.prepare_requests()
        return await self.send_request(subject, message, timeout_s=timeout_s)()

    def send_request(self, subject: Subject, message: Message, *, timeout_s: float) -> PendingReply:
        """Send a command."""
        _refuse_pattern(subject)
        data = self.dispatch.encode(message)
        current = message_span("bus.request", subject.text)
        try:
            key = self.connection.send_request(subject.text, data, dict(current.carrier) or None)
        except nats.errors.Error as error:
            with current:
                raise BusUnavailableError(f"request to {subject}: {describe(error)}") from error
        return partial(self._reply_to, subject, key, current, timeout_s)

    async def _reply_to(self, subject: Subject, key: str, current: Span, timeout_s: float) -> Message:
        with current:
            try:
                reply = await self.connection.reply_to(key, timeout_s)
            except nats.errors.NoRespondersError as error:
                raise NoResponderError(f"no responders for {subject}") from error
            except TimeoutError as error:
                raise RequestTimeoutError(f"no reply from {subject} within {timeout_s:g} s") from error
            except RefusedError as error:
                raise NotPermittedError(f"request to {subject}: {describe(error)}", error.subject) from error
            except nats.errors.Error as error:
                raise BusUnavailableError(f"request to {subject}: {describe(error)}") from error
            return self.dispatch.read_reply(subject.text, reply.data)

    async def serve(self, subject: Subject, responder: Responder, *, screen: Screen | None = None) -> NatsSubscription:
        """Answer commands on a subject."""
        self._require_first_connection()
        server = NatsServer(self)
        await server.serve(subject.text, responder, screen)
        return server

    async def serve_queries(
        self, service: str, version: str, description: str, endpoints: dict[Endpoint, Responder]
    ) -> NatsMicroService:
        """Register a NATS micro service."""
        self._require_first_connection()
        micro = NatsMicroService(self)
        await micro.start(service, version, description, endpoints)
        return micro

    def bucket(self, spec: BucketSpec) -> NatsKeyValue:
        """A KV bucket, declared at connect."""
        return NatsKeyValue(self, spec)

    def objects(self, spec: ObjectStoreSpec) -> NatsObjects:
        """An object store, declared at connect."""
        return NatsObjects(self, spec)

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        """Register a callback for every reconnect."""
        self._callbacks.append(callback)

    async def flush(self, timeout_s: float) -> None:
        """Wait until everything published has reached the server, the outbox included."""
        deadline = time.monotonic() + timeout_s
        if not await self._outbox.wait_empty(timeout_s):
            raise BusUnavailableError(f"{len(self._outbox)} events are not stored after {timeout_s:g} s")
        if not self.connected:
            raise BusUnavailableError("flush: not connected")
        with as_bus_errors("flush"):
            # nats-py declares an int, but hands it to wait_for, which takes any number.
            await self.connection.flush(max(0.01, deadline - time.monotonic()))  # type: ignore[arg-type]

    async def close(self, timeout_s: float) -> dict[str, int]:
        """Drain and close; returns counts of undelivered items by kind."""
        if self._closing:
            return {}
        self._closing = True
        deadline = time.monotonic() + timeout_s
        undelivered: dict[str, int] = {}
        unfinished = await self._stop_subscriptions(deadline)
        if unfinished:
            undelivered["subscriptions"] = unfinished
        try:
            await self.flush(max(0.01, deadline - time.monotonic()) if self.connected else 0.01)
        except BusError as error:
            self.dispatch.log.warning("not_flushed", error=str(error))
            if self.connection.pending_data_size:
                undelivered["bytes"] = self.connection.pending_data_size
        if len(self._outbox):
            undelivered["events"] = len(self._outbox)
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._close_connection(max(0.2, deadline - time.monotonic()))
        return undelivered

    async def _stop_subscriptions(self, deadline: float) -> int:
        stops = [asyncio.ensure_future(subscription.stop()) for subscription in list(self.subscriptions)]
        if not stops:
            return 0
        _, unfinished = await asyncio.wait(stops, timeout=max(0.01, deadline - time.monotonic()))
        for stop in unfinished:
            stop.cancel()
        if unfinished:
            await asyncio.wait(unfinished)
        return len(unfinished)

    async def _close_connection(self, timeout_s: float) -> None:
        """Close without `Connection.drain`, which may hang: all subscriptions are drained already."""
        if self._jetstream is None:
            return
        closing = asyncio.ensure_future(self.connection.close())
        _, unfinished = await asyncio.wait({closing}, timeout=timeout_s)
        if unfinished:
            self.connection.abort_transport()
            await asyncio.wait({closing}, timeout=1.0)
            closing.cancel()

    def _on_disconnect(self) -> None:
        if self._jetstream is not None and not self._closing:
            self.dispatch.log.warning("disconnected", servers=self.options.address)

    def _on_reconnect(self) -> None:
        self.dispatch.counts["reconnects"] += 1
        self.dispatch.log.info("reconnected", servers=self.options.address)
        self._outbox.retry_now()
        self._spawn(self._recover(), "declare")
        for callback in self._callbacks:
            self.dispatch.call_back(callback)

    async def _recover(self) -> None:
        """Declare streams and buckets, which a restarted server may lack, then synchronise watches and replays."""
        try:
            await self._declare_all()
        except BusError as error:
            log_once(self.dispatch.log.error, self.dispatch.limiter, "not_declared", error=str(error))
        for watch in list(self.watches):
            watch.synchronise_soon()

    def _on_close(self) -> None:
        was_connected = self._jetstream is not None  # else it was a failed attempt
        if was_connected and not self._closing and not self.lost.done():
            self.dispatch.log.error("connection_closed", servers=self.options.address)
            self.lost.set_result(None)

    def _spawn(self, coroutine: Any, name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(coroutine, name=f"bus {name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _declare_all(self) -> None:
        """Create or update streams and buckets; safe when several services do so concurrently."""
        while True:
            try:
                self.undeclared = await declare(self.jetstream, self.options, self.dispatch)
            except BusUnavailableError as error:
                if self.options.connect_deadline_s is not None or self._closing:
                    raise BusUnavailableError(f"{error} (is JetStream enabled there?)") from error
                log_once(self.dispatch.log.warning, self.dispatch.limiter, "declare_retried", 5.0, error=str(error))
                await asyncio.sleep(_DECLARE_RETRY_S)
            else:
                return


def _refuse_pattern(subject: Subject) -> None:
    if "*" in subject.text or ">" in subject.text:
        raise BusError(f"{subject} is a pattern: it can only be subscribed to")

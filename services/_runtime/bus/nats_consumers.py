"""Subscriptions of `nats`: observations, commands, micro services, and replays of stored events."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import nats.errors
import nats.micro
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.micro.request import Request

from schemas.permissions import INBOX
from schemas.queries import QueryError
from schemas.registry import Endpoint
from schemas.streams import StreamSpec
from services._runtime.bus.api import (
    BusError,
    BusUnavailableError,
    EventHandler,
    Handler,
    RawMessage,
    Responder,
    Screen,
)
from services._runtime.bus.dispatch import MAX_REQUESTS_IN_FLIGHT
from services._runtime.bus.nats_connection import as_bus_errors
from services._runtime.bus.nats_direct_gets import DirectGets
from services._runtime.bus.nats_failures import describe
from services._runtime.bus.nats_session import NatsSession
from services._runtime.telemetry.logging import log_once

BUFFERED_BYTES: Final = 8 << 20
"""Of a `NatsBuffer`: with more, what has come is handed over at once."""
_MESSAGE_BYTES: Final = 150
"""Of one in a `NatsBuffer` beside its subject and data, which may be empty: two objects of bytes and a tuple."""
_STOP_S: Final = 2.0
_BATCH: Final = 16
_PULL_EXPIRES_S: Final = 30.0
_ACK_WAIT_S: Final = 30.0
_LONGEST_REDELIVERY_S: Final = 30.0
_AGAIN_S: Final = 0.5
_INBOXES: Final = (f"{INBOX}.", "_R_.", "_GR_.")
"""Prefixes of inboxes: of clients, and of clients in other accounts and clusters, which only servers use."""
_INACTIVE_S: Final = 60.0
"""The server deletes a replay's consumer after so long without a pull."""


def expects_reply(subject: str) -> bool:
    """Whether a command's reply subject is an inbox.

    Servers do not check the permission to name a reply subject: replying elsewhere would let a requester publish, with
    this service's permissions, to subjects that it may not publish to. A redelivery by a stream is no command either:
    its reply subject is ``$JS.ACK``.
    """
    return subject.startswith(_INBOXES)


class NatsSubscription:
    """A callback subscription: four times cheaper than nats-py's iterator."""

    def __init__(self, bus: NatsSession) -> None:
        self._bus = bus
        self._raw: Any = None
        self._stopped = False

    async def start(self, subject: str, handler: Handler, queue: str | None, screen: Screen | None = None) -> None:
        """Subscribe."""
        deliver = self._bus.dispatch.deliver

        async def on_message(message: Msg) -> None:
            deliver(handler, message.subject, message.data)

        await self._open(subject, on_message, queue or "", screen)

    async def _open(self, subject: str, on_message: Any, queue: str = "", screen: Screen | None = None) -> None:
        options = self._bus.options
        with as_bus_errors(f"subscribe to {subject}"):
            self._raw = await self._bus.connection.subscribe(
                subject,
                queue=queue,
                cb=on_message,
                pending_msgs_limit=options.pending_messages,
                pending_bytes_limit=options.pending_bytes,
            )
            if screen is not None:
                self._bus.connection.screen(self._raw, screen)
        self._bus.subscriptions.add(self)

    async def stop(self) -> None:
        """Stop receiving; messages received before are still handled."""
        if self._stopped:
            return
        self._stopped = True
        self._bus.subscriptions.discard(self)
        await self._drain()

    async def _drain(self) -> None:
        try:
            async with asyncio.timeout(_STOP_S):
                await self._raw.drain()
        except (TimeoutError, nats.errors.Error) as error:
            # The server is unreachable or hangs: messages that it has not delivered are lost.
            self._bus.dispatch.log.debug("subscription_not_drained", error=describe(error))
            self._bus.connection._remove_sub(self._raw._id)  # noqa: SLF001 - unsubscribe() would wait for the server too
            self._raw._stop_processing()  # noqa: SLF001 - as above


class NatsBuffer:
    """Observations that are kept as they came, and decoded at `deliver`: for readers that need them once a second.

    That takes less processor time than a callback for each: docs/decisions/0101.
    """

    def __init__(self, bus: NatsSession, handler: Handler) -> None:
        self._bus = bus
        self._handler = handler
        self._arrived: list[tuple[bytes, bytes]] = []
        """Subject and data."""
        self._bytes = 0
        self._raw: Any = None

    async def start(self, subject: str) -> None:
        """Subscribe.

        Raises:
            BusError: not connected, or this user may not listen.
        """
        with as_bus_errors(f"subscribe to {subject}"):
            self._raw = await self._bus.connection.subscribe_unparsed(subject, self._take)
        self._bus.subscriptions.add(self)

    def deliver(self) -> None:
        """Call the handler with what has come since the last call, in order; its exceptions are counted and logged."""
        arrived, self._arrived, self._bytes = self._arrived, [], 0
        for subject, data in arrived:
            self._bus.dispatch.deliver(self._handler, subject.decode(errors="replace"), data)

    async def stop(self) -> None:
        """Stop receiving; messages received before are still handled."""
        if self not in self._bus.subscriptions:
            return
        self._bus.subscriptions.discard(self)
        try:
            with as_bus_errors("unsubscribe"):
                await self._raw.unsubscribe()
        except BusError as error:  # the server forgets it with the connection
            self._bus.dispatch.log.debug("subscription_not_ended", error=str(error))
        self.deliver()

    def _take(self, subject: bytes, _: bytes, data: bytes) -> None:
        fits = self._bytes <= BUFFERED_BYTES
        self._arrived.append((subject, data))
        self._bytes += _MESSAGE_BYTES + len(subject) + len(data)
        if fits and self._bytes > BUFFERED_BYTES:  # not here: within the read loop an exception would end that
            asyncio.get_running_loop().call_soon(self.deliver)


class _Requests:
    """One task per request, bounded in number."""

    def __init__(self, bus: NatsSession) -> None:
        self._bus = bus
        self.tasks: set[asyncio.Task[None]] = set()

    def start(self, answer: Any) -> bool:
        """Run a responding coroutine; False: too many requests are in flight."""
        if len(self.tasks) >= MAX_REQUESTS_IN_FLIGHT:
            answer.close()
            log_once(self._bus.dispatch.log.warning, self._bus.dispatch.limiter, "too_many_requests")
            return False
        task = asyncio.get_running_loop().create_task(answer)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return True

    async def finish(self) -> None:
        """Wait for all tasks; the caller sets a timeout."""
        while self.tasks:
            await asyncio.wait(self.tasks)


class NatsServer(NatsSubscription):
    """Answers commands on one subject."""

    def __init__(self, bus: NatsSession) -> None:
        super().__init__(bus)
        self._requests = _Requests(bus)

    async def serve(self, subject: str, responder: Responder, screen: Screen | None = None) -> None:
        """Subscribe and reply."""

        async def on_request(message: Msg) -> None:
            if not expects_reply(message.reply):
                self._bus.dispatch.counts["undecodable_no_reply_subject"] += 1
            elif not self._requests.start(self._answer(responder, message)):
                busy = QueryError(code=503, message=f"{subject}: {MAX_REQUESTS_IN_FLIGHT} requests are in flight")
                self._bus.send_reply(message.reply, self._bus.dispatch.encode(busy))

        await self._open(subject, on_request, screen=screen)

    async def _answer(self, responder: Responder, message: Msg) -> None:
        raw = RawMessage(message.subject, message.data, message.headers)
        data, _ = await self._bus.dispatch.answer(responder, raw)
        self._bus.send_reply(message.reply, data)

    async def _drain(self) -> None:
        await super()._drain()
        await self._requests.finish()


class NatsMicroService:
    """A NATS micro service (ADR-32). Each request gets its own task: an endpoint's handler runs one at a time."""

    def __init__(self, bus: NatsSession) -> None:
        self._bus = bus
        self._service: Any = None
        self._requests = _Requests(bus)

    async def start(self, service: str, version: str, description: str, endpoints: dict[Endpoint, Responder]) -> None:
        """Register the service and its endpoints."""
        with as_bus_errors(f"register micro service {service}"):
            self._service = await nats.micro.add_service(
                self._bus.connection, name=service, version=version, description=description
            )
            for endpoint, responder in endpoints.items():
                await self._service.add_endpoint(
                    name=endpoint.name,
                    handler=self._handler(endpoint, responder),
                    subject=endpoint.template.subject(self._bus.root).text,
                    metadata={
                        "summary": endpoint.summary,
                        "request": endpoint.request.type_name,
                        "reply": endpoint.reply.type_name,
                    },
                )
        self._bus.subscriptions.add(self)

    def _handler(self, endpoint: Endpoint, responder: Responder) -> Any:
        async def on_request(request: Request) -> None:
            if not expects_reply(request._msg.reply):  # noqa: SLF001 - no public way to it
                self._bus.dispatch.counts["undecodable_no_reply_subject"] += 1
            elif not self._requests.start(self._answer(endpoint, responder, request)):
                await request.respond_error("503", f"{MAX_REQUESTS_IN_FLIGHT} requests are in flight")

        return on_request

    async def _answer(self, endpoint: Endpoint, responder: Responder, request: Request) -> None:
        answer = self._bus.dispatch.answer
        raw = RawMessage(request.subject, request.data, request.headers)
        data, error = await answer(responder, raw, endpoint.request)
        try:
            if error is None:
                await request.respond(data)
            else:
                await request.respond_error(str(error.code), error.message[:200], data)
        except (nats.errors.Error, ValueError) as failure:
            # The connection broke meanwhile, or the request had no reply subject.
            log_once(
                self._bus.dispatch.log.warning, self._bus.dispatch.limiter, "reply_not_sent", error=describe(failure)
            )

    async def stop(self) -> None:
        """Stop accepting, finish pending requests, then unregister: `Service.stop` alone drops queued requests."""
        if self not in self._bus.subscriptions:
            return
        self._bus.subscriptions.discard(self)
        try:
            async with asyncio.timeout(_STOP_S):
                for endpoint in self._service._endpoints:  # noqa: SLF001 - no public way to drain an endpoint
                    await endpoint._subscription.drain()  # noqa: SLF001 - as above
        except (TimeoutError, nats.errors.Error) as error:
            self._bus.dispatch.log.debug("service_not_drained", error=describe(error))
        await self._requests.finish()
        await self._unregister()

    async def _unregister(self) -> None:
        self._service._endpoints.clear()  # noqa: SLF001 - drained above; Service.stop would unsubscribe them twice
        try:
            async with asyncio.timeout(_STOP_S):
                await self._service.stop()
        except (TimeoutError, nats.errors.Error) as error:
            self._bus.dispatch.log.debug("service_not_unregistered", error=describe(error))


class NatsConsumer:
    """A stream's history by direct gets, then a pull consumer from there on, which belongs to this process.

    It sends its own pull requests, so that a lost one is renewed at once. Where the history breaks off (an event's
    handler fails, the server goes away) the consumer takes over: at least once holds for both.

    nats-py's ``fetch`` is not used: it may raise either of two TimeoutErrors, return nothing, and after a server
    restart it waits for a pull request that the new server has never received.
    """

    def __init__(
        self,
        bus: NatsSession,
        stream: StreamSpec,
        handler: EventHandler,
        on_undecodable: Callable[[int], None] | None = None,
        after: int = 0,
    ) -> None:
        self._bus = bus
        self._stream = stream.stream_name(bus.root)
        self._first = after + 1
        self._name = _consumer_name()
        self._remaining = 0
        self._caught_up = asyncio.Event()
        self._handler = handler
        self._on_undecodable = on_undecodable
        self._waiting: asyncio.Queue[Msg | None] = asyncio.Queue()
        self._raw: Any = None
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._history = DirectGets(bus, self._stream, ">")
        self._next = self._first
        """Sequence of the history that is to be handled next."""
        self._end = self._first
        """Sequence behind the history."""
        self._broke = False
        """The connection, since the start."""

    async def start(self) -> None:
        """Create the consumer on the server, behind the history, and start reading."""
        with as_bus_errors(f"replay {self._stream}"):
            state = (await self._bus.jetstream.stream_info(self._stream)).state
        self._next, self._end = max(self._first, state.first_seq), max(self._first, state.last_seq + 1)
        await self._ensure(self._end)
        with as_bus_errors(f"replay {self._stream}"):
            self._inbox = self._bus.connection.new_inbox()
            self._raw = await self._bus.connection.subscribe(self._inbox, cb=self._on_message)
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"replay {self._stream}")
        self._bus.subscriptions.add(self)

    async def caught_up(self) -> None:
        """Return once all events stored at the start have been handled."""
        await self._caught_up.wait()

    def _count_down(self, handled: int) -> None:
        self._remaining -= handled
        if self._remaining <= 0:
            self._caught_up.set()

    async def _ensure(self, first: int) -> int:
        """Create the consumer, from a sequence on; returns the number of its pending messages."""
        config = ConsumerConfig(
            durable_name=self._name,
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=first,
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=_ACK_WAIT_S,
            max_deliver=-1,
            inactive_threshold=_INACTIVE_S,
            mem_storage=True,
            num_replicas=1,
        )
        with as_bus_errors(f"declare consumer {self._name} of {self._stream}"):
            info = await self._bus.jetstream.add_consumer(self._stream, config)
        return int(info.num_pending or 0)

    async def _read_history(self) -> None:
        """What was stored before the start. Where a handler fails, a consumer goes on.

        Where the connection breaks it begins anew: a server that has lost the end of its store gives the same sequences
        to other events.
        """
        begun_s = asyncio.get_running_loop().time()
        try:
            await self._history.open({"seq": self._next})
            while self._next < self._end and await self._handle_batch():
                pass
        except BusError as error:
            self._bus.dispatch.log.info("history_broke_off", stream=self._stream, error=str(error))
            self._next = self._first
        finally:
            with suppress(BusError):
                await self._history.close()
        may_have_expired = asyncio.get_running_loop().time() - begun_s > _INACTIVE_S / 2
        if self._stopping or (self._next >= self._end and not may_have_expired):
            self._caught_up.set()
            return
        await self._delete()
        self._name = _consumer_name()
        await self._renew(self._next)

    async def _handle_batch(self) -> bool:
        """False: it was the last one, or an event was not handled."""
        batch = await self._history.batch()
        for each in batch:
            if self._stopping:
                return False
            if self._broke:
                raise BusUnavailableError("the connection broke meanwhile")
            if each.sequence < self._end:
                handled = await self._bus.dispatch.deliver_event(self._handler, each)
                if handled is False:
                    return False
                if handled is None and self._on_undecodable is not None:
                    self._on_undecodable(each.sequence)
            self._next = each.sequence + 1
        return bool(batch)

    async def _renew(self, first: int) -> bool:
        """Create the consumer anew; False: the server does not answer."""
        try:
            # What it had delivered is delivered, and counted, again.
            self._remaining = max(self._remaining, await self._ensure(first))
        except BusError as error:
            log_once(self._bus.dispatch.log.warning, self._bus.dispatch.limiter, "consumer_lost", error=str(error))
            return False
        self._count_down(0)
        return True

    async def _on_message(self, message: Msg) -> None:
        self._waiting.put_nowait(message)

    def pull_again(self) -> None:
        """Renew the pull request after a reconnect: the server may have lost it."""
        self._broke = True
        self._waiting.put_nowait(None)

    async def _run(self) -> None:
        """Read the history; then keep one pull request open, and handle messages one by one."""
        await self._read_history()
        expected = 0
        while not (self._stopping and self._waiting.empty()):
            if expected <= 0 and not self._stopping:
                expected = _BATCH if await self._pull() else 0
            try:
                async with asyncio.timeout(_PULL_EXPIRES_S + 2.0 if expected else 1.0):
                    message = await self._waiting.get()
            except TimeoutError:
                expected = 0
                continue
            if message is None:
                expected = 0
            elif (status := (message.headers or {}).get("Status")) and not message.data:
                expected = await self._end_of_pull(status)
            else:
                expected -= 1
                await self._handle(message)

    async def _pull(self) -> bool:
        request = {"batch": _BATCH, "expires": int(_PULL_EXPIRES_S * 1e9)}
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._stream}.{self._name}"
        try:
            await self._bus.connection.publish(subject, json.dumps(request).encode(), reply=self._inbox)
        except nats.errors.Error:
            return False  # disconnected: `pull_again` follows
        return True

    async def _end_of_pull(self, status: str) -> int:
        # 503: no responder; 409: the consumer was deleted, or the server shuts down
        if status not in {"404", "408"} and not await self._renew(self._first):
            await asyncio.sleep(_AGAIN_S)
        return 0

    async def _handle(self, message: Msg) -> None:
        is_history = not self._caught_up.is_set()
        sequence = message.metadata.sequence.stream
        raw = RawMessage(message.subject, message.data, message.headers, is_history, sequence)
        task = asyncio.get_running_loop().create_task(self._bus.dispatch.deliver_event(self._handler, raw))
        try:
            while not (await asyncio.wait({task}, timeout=_ACK_WAIT_S / 3))[0]:
                await _acknowledge(message.in_progress())
        except asyncio.CancelledError:
            task.cancel()
            raise
        handled = task.result()
        if handled is not False:
            self._count_down(1)
        if handled:
            await _acknowledge(message.ack())
        elif handled is None:
            if self._on_undecodable is not None:
                self._on_undecodable(sequence)
            await _acknowledge(message.term())  # a redelivery could not be decoded either
        else:
            delay_s = min(0.1 * 2 ** min(message.metadata.num_delivered, 10), _LONGEST_REDELIVERY_S)
            await _acknowledge(message.nak(delay=delay_s))

    async def stop(self) -> None:
        """Stop pulling; messages received before are still handled."""
        if self._task is None or self._stopping:
            return
        self._stopping = True
        self._bus.subscriptions.discard(self)
        with suppress(BusError):
            await self._history.close()
        try:
            async with asyncio.timeout(_STOP_S):
                await self._raw.drain()
        except (TimeoutError, nats.errors.Error) as error:
            self._bus.dispatch.log.debug("consumer_not_drained", error=describe(error))
        self._waiting.put_nowait(None)
        await self._task
        await self._delete()

    async def _delete(self) -> None:
        """Delete the consumer; an unreachable server does so after `_INACTIVE_S`."""
        with suppress(nats.errors.Error, TimeoutError):
            async with asyncio.timeout(_STOP_S):
                await self._bus.jetstream.delete_consumer(self._stream, self._name)


def _consumer_name() -> str:
    return f"replay-{uuid.uuid4().hex}"


async def _acknowledge(acknowledgement: Any) -> None:
    """Send an acknowledgement; if the connection is down the message is redelivered (at least once)."""
    try:
        await acknowledgement
    except nats.errors.Error:
        return

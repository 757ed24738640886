"""Subscriptions of `nats`: observations, commands, and micro services."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import nats.errors
import nats.micro
from nats.aio.msg import Msg
from nats.micro.request import Request

from schemas.permissions import INBOX
from schemas.queries import QueryError
from schemas.service import Endpoint
from services._runtime.bus.api import BusError, Handler, RawMessage, Responder, Screen
from services._runtime.bus.dispatch import MAX_REQUESTS_IN_FLIGHT
from services._runtime.bus.nats_connection import as_bus_errors
from services._runtime.bus.nats_failures import describe
from services._runtime.bus.nats_session import NatsSession
from services._runtime.telemetry.logging import log_once

BUFFERED_BYTES: Final = 8 << 20
"""Of a `NatsBuffer`: with more, what has come is handed over at once."""
_MESSAGE_BYTES: Final = 150
"""Of one in a `NatsBuffer` beside its subject and data, which may be empty: two objects of bytes and a tuple."""
_STOP_S: Final = 2.0
_INBOXES: Final = (f"{INBOX}.", "_R_.", "_GR_.")
"""Prefixes of inboxes: of clients, and of clients in other accounts and clusters, which only servers use."""


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

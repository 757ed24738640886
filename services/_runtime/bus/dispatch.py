"""Message dispatch shared by both bus implementations: decode, count, call the handler, reply; isolates errors."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Final

from schemas.codec import CodecError, decode, decode_as, encode, encode_json, is_json
from schemas.message import Message
from schemas.queries import QueryError
from schemas.registry import contradicted_id
from services._runtime.bus.api import (
    BusError,
    Delivery,
    Entry,
    EventHandler,
    Handler,
    RawMessage,
    RequestRefusedError,
    Responder,
)
from services._runtime.telemetry.logging import LogLimiter, get_logger, log_once
from services._runtime.telemetry.tracing import NEW_TRACE, Begin, message_span

MAX_REQUESTS_IN_FLIGHT: Final = 1_024
"""Per served subject; more are answered with a QueryError 503."""
_INTERNAL_ERROR: Final = 500

_COUNTER_NAMES: Final = (
    "published",
    "received",
    "dropped_disconnected",
    "dropped_slow",
    "handler_errors",
    "reconnects",
    "events_published",
    "events_dropped",
)


def decode_from(subject: str, data: bytes) -> Message:
    """The message on a subject.

    Raises:
        CodecError: undecodable, or it names another host, application or job than its subject.
    """
    message = decode(data)
    if (name := contradicted_id(subject, message)) is not None:
        raise CodecError("subject_mismatch", f"{message.type_name} names another {name} than its subject")
    return message


class Dispatch:
    """Message counters, and calls of handlers and responders that contain their errors."""

    def __init__(self) -> None:
        self.counts: defaultdict[str, int] = defaultdict(int, dict.fromkeys(_COUNTER_NAMES, 0))
        self.log = get_logger("bus")
        self.limiter = LogLimiter()

    def encode(self, message: Message) -> bytes:
        """The message as msgpack.

        Raises:
            BusError: it exceeds the size limit.
        """
        try:
            return encode(message)
        except CodecError as error:
            raise BusError(str(error)) from error

    def decode(self, subject: str, data: bytes, sequence: int = 0) -> Delivery | None:
        """The message, or None where it was counted and logged as undecodable."""
        try:
            return Delivery(subject, decode_from(subject, data), len(data), sequence)
        except CodecError as error:
            self.count_undecodable(subject, error)
            return None

    def decode_entry(self, key: str, data: bytes, revision: int) -> Entry:
        """A KV entry; undecodable bytes are counted and become None."""
        delivery = self.decode(f"kv {key}", data)
        return Entry(key, delivery.message if delivery else None, revision)

    def count_undecodable(self, subject: str, error: CodecError) -> None:
        """Count by kind, log at most once per kind and second."""
        self.counts[f"undecodable_{error.kind}"] += 1
        log_once(self.log.warning, self.limiter, f"undecodable_{error.kind}", subject=subject[:200], error=str(error))

    def deliver(self, handler: Handler, subject: str, data: bytes) -> None:
        """Decode and call the handler; exceptions are counted and logged."""
        self.counts["received"] += 1
        try:
            message = decode_from(subject, data)
        except CodecError as error:
            self.count_undecodable(subject, error)
            return
        self.hand(handler, Delivery(subject, message, len(data)))

    def hand(self, handler: Handler, delivery: Delivery) -> None:
        """Call the handler; exceptions are counted and logged."""
        try:
            handler(delivery)
        except Exception as error:  # noqa: BLE001 - a handler's bug must not stop later messages
            self.count_handler_error(delivery.subject, error)

    async def deliver_event(self, handler: EventHandler, raw: RawMessage) -> bool | None:
        """Handle a durable event. True: acknowledge; False: redeliver; None: undecodable, terminate."""
        self.counts["received"] += 1
        delivery = self.decode(raw.subject, raw.data, raw.sequence)
        if delivery is None:
            return None
        if raw.is_history:
            return await self._call_handler(handler, delivery) is None
        with message_span("bus.handle_event", raw.subject, Begin(raw.headers or NEW_TRACE)) as current:
            error = await self._call_handler(handler, delivery)
            if error is not None:
                current.fail(type(error).__name__, str(error))
        return error is None

    async def _call_handler(self, handler: EventHandler, delivery: Delivery) -> Exception | None:
        try:
            await handler(delivery)
        except Exception as error:  # noqa: BLE001 - see deliver
            self.count_handler_error(delivery.subject, error)
            return error
        return None

    def count_handler_error(self, subject: str, error: BaseException) -> None:
        """Count, and log with its traceback at most once per exception type and second."""
        self.counts["handler_errors"] += 1
        kind = f"handler_error_{type(error).__name__}"
        suppressed = self.limiter.admit(kind)
        if suppressed is not None:
            self.log.error("handler_error", subject=subject, suppressed=suppressed, exc_info=error)

    def call_back(self, callback: Callable[[], None]) -> None:
        """Call a registered callback; exceptions are counted and logged."""
        try:
            callback()
        except Exception as error:  # noqa: BLE001 - see deliver
            self.count_handler_error("callback", error)

    async def answer(
        self, responder: Responder, raw: RawMessage, model: type[Message] | None = None
    ) -> tuple[bytes, QueryError | None]:
        """The encoded reply, and its error if it is one. JSON or empty requests get JSON."""
        self.counts["received"] += 1
        subject, data = raw.subject, raw.data
        with message_span("bus.respond", subject, Begin(raw.headers or NEW_TRACE)) as current:
            reply = await self._reply(responder, subject, data, model)
            if isinstance(reply, QueryError) and reply.code >= _INTERNAL_ERROR:
                current.fail(str(reply.code), reply.message)
        as_bytes = encode_json if is_json(data) else encode
        try:
            encoded = as_bytes(reply)
        except CodecError as error:
            log_once(self.log.error, self.limiter, "reply_oversized", subject=subject, error=str(error))
            reply = QueryError(code=500, message=f"the reply cannot be sent: {error}")
            encoded = as_bytes(reply)
        return encoded, reply if isinstance(reply, QueryError) else None

    async def _reply(self, responder: Responder, subject: str, data: bytes, model: type[Message] | None) -> Message:
        try:
            message = decode_from(subject, data) if model is None else decode_as(data, model)
        except CodecError as error:
            self.count_undecodable(subject, error)
            return QueryError(code=400, message=str(error))
        try:
            return await responder(Delivery(subject, message, len(data)))
        except RequestRefusedError as refusal:
            return QueryError(code=refusal.code, message=str(refusal))
        except Exception as error:  # noqa: BLE001 - see deliver
            self.count_handler_error(subject, error)
            return QueryError(code=500, message=f"{type(error).__name__}: {error}")

    def read_reply(self, subject: str, data: bytes) -> Message:
        """The reply to a request.

        Raises:
            RequestRefusedError: it is a QueryError, or cannot be decoded (code 502).
        """
        try:
            message = decode(data)
        except CodecError as error:
            self.count_undecodable(subject, error)
            raise RequestRefusedError(502, f"undecodable reply from {subject}: {error}") from error
        if isinstance(message, QueryError):
            raise RequestRefusedError(message.code, message.message)
        return message

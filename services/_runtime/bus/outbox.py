"""Outbox of durable events: a bounded queue, sent in order by one task, each event until it is acknowledged.

Nats-Msg-Id values are such that other users cannot predict them: a stream's duplicate window is shared by all its
publishers, and one that published another's next id first would make the server acknowledge and drop that event.
"""

from __future__ import annotations

import asyncio
import hmac
import random
import time
from base64 import urlsafe_b64encode
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from services._runtime.bus.api import BusError
from services._runtime.bus.dispatch import Dispatch
from services._runtime.bus.options import BusOptions
from services._runtime.telemetry.logging import log_once
from services._runtime.telemetry.tracing import NEW_TRACE, Begin, Carrier, Span, message_span

OUTBOX_LIMIT: Final = 10_000
_FIRST_RETRY_S: Final = 0.05
_LAST_RETRY_S: Final = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class DurableEvent:
    """One encoded message for a stream."""

    subject: str
    data: bytes
    message_id: str
    trace: Carrier | None = None
    """Its parent span."""
    queued_ns: int = field(default_factory=time.time_ns)

    def span(self) -> AbstractContextManager[Span]:
        """Span of one publish attempt; begins when the event was queued."""
        begin = Begin(self.trace or NEW_TRACE, begun_ns=self.queued_ns)
        return message_span("bus.publish", self.subject, begin, messaging__message__id=self.message_id)


class Outbox:
    """Publishes events strictly one after another, so that retries keep their order."""

    def __init__(
        self, send: Callable[[DurableEvent], Awaitable[None]], dispatch: Dispatch, *, limit: int = OUTBOX_LIMIT
    ) -> None:
        self._send = send
        self._dispatch = dispatch
        self._limit = limit
        self._queue: deque[DurableEvent] = deque()
        self._arrived = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._retry_now = asyncio.Event()

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, event: DurableEvent) -> None:
        """Queue an event; if the outbox is full the oldest is dropped, counted and logged."""
        if len(self._queue) >= self._limit:
            dropped = self._queue.popleft()
            self._dispatch.counts["events_dropped"] += 1
            log_once(self._dispatch.log.error, self._dispatch.limiter, "event_dropped", subject=dropped.subject)
        self._queue.append(event)
        self._empty.clear()
        self._arrived.set()

    def retry_now(self) -> None:
        """End the back-off: the connection is up again."""
        self._retry_now.set()

    async def run(self) -> None:
        """Publish until cancelled."""
        retry_s = _FIRST_RETRY_S
        while True:
            if not self._queue:
                self._empty.set()
                self._arrived.clear()
                await self._arrived.wait()
            event = self._queue[0]
            self._retry_now.clear()
            try:
                await self._send(event)
            except BusError as error:
                log_once(
                    self._dispatch.log.warning, self._dispatch.limiter, "event_publish_retried", 10.0, error=str(error)
                )
                await self._back_off(retry_s)
                retry_s = min(2 * retry_s, _LAST_RETRY_S)
                continue
            retry_s = _FIRST_RETRY_S
            self._dispatch.counts["events_published"] += 1
            # During the publish the queue may have overflowed and dropped this very event.
            if self._queue and self._queue[0] is event:
                self._queue.popleft()

    async def _back_off(self, seconds: float) -> None:
        jittered_s = seconds * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret
        try:
            async with asyncio.timeout(jittered_s):
                await self._retry_now.wait()
        except TimeoutError:
            pass

    async def wait_empty(self, timeout_s: float) -> bool:
        """Whether every event was acknowledged within the timeout."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True


_PURPOSE: Final = b"turnbuckle Nats-Msg-Id\0"
_ID_BYTES: Final = 16


class MessageIds:
    """Maps ids to keyed hashes, the same after a restart; users without a secret send the id itself."""

    def __init__(self, options: BusOptions) -> None:
        """Read the secret.

        Raises:
            BusError: its file cannot be read.
        """
        self._secret = _secret(options)

    def wire_id(self, message_id: str) -> str:
        """The id on the wire: 128 bits of HMAC-SHA256 (RFC 2104), base64url."""
        if self._secret is None:
            return message_id
        digest = hmac.digest(self._secret, _PURPOSE + message_id.encode("utf-8", "surrogatepass"), "sha256")
        return urlsafe_b64encode(digest[:_ID_BYTES]).decode("ascii").rstrip("=")


def _secret(options: BusOptions) -> bytes | None:
    path = options.nkey_seed_file or options.creds_file
    if path is not None:
        try:
            return Path(path).expanduser().read_bytes().strip()
        except OSError as error:
            raise BusError(f"credentials file {path} cannot be read: {error.strerror}") from None
    text = options.password or options.token
    return text.encode() if text else None

"""The outbox of facts: a bounded queue that one task sends in order, until each one is acknowledged."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Final

from services._runtime.bus.api import BusError
from services._runtime.bus.dispatch import Dispatch
from services._runtime.telemetry.logging import log_once
from services._runtime.telemetry.tracing import NEW_TRACE, Begin, Carrier, Span, message_span

FACT_LIMIT: Final = 10_000
_FIRST_RETRY_S: Final = 0.05
_LAST_RETRY_S: Final = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class Fact:
    """One message on its way to a stream."""

    subject: str
    data: bytes
    message_id: str
    trace: Carrier | None = None
    """What it follows from."""
    queued_ns: int = field(default_factory=time.time_ns)

    def span(self) -> AbstractContextManager[Span]:
        """Around one attempt to send it; begins when it was queued."""
        begin = Begin(self.trace or NEW_TRACE, begun_ns=self.queued_ns)
        return message_span("bus.publish", self.subject, begin, messaging__message__id=self.message_id)


class FactOutbox:
    """Sends facts one after another: order would be lost if a failed one were overtaken by those behind it."""

    def __init__(self, send: Callable[[Fact], Awaitable[None]], dispatch: Dispatch, *, limit: int = FACT_LIMIT) -> None:
        self._send = send
        self._dispatch = dispatch
        self._limit = limit
        self._queue: deque[Fact] = deque()
        self._arrived = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._retry_now = asyncio.Event()

    def __len__(self) -> int:
        return len(self._queue)

    def put(self, fact: Fact) -> None:
        """Queue a fact; when full the oldest is dropped, counted and logged."""
        if len(self._queue) >= self._limit:
            dropped = self._queue.popleft()
            self._dispatch.counts["facts_dropped"] += 1
            log_once(self._dispatch.log.error, self._dispatch.limiter, "event_dropped", subject=dropped.subject)
        self._queue.append(fact)
        self._empty.clear()
        self._arrived.set()

    def retry_now(self) -> None:
        """The connection is back: do not wait for the end of the back-off."""
        self._retry_now.set()

    async def run(self) -> None:
        """Send for ever; cancel to stop."""
        retry_s = _FIRST_RETRY_S
        while True:
            if not self._queue:
                self._empty.set()
                self._arrived.clear()
                await self._arrived.wait()
            fact = self._queue[0]
            self._retry_now.clear()
            try:
                await self._send(fact)
            except BusError as error:
                log_once(
                    self._dispatch.log.warning, self._dispatch.limiter, "event_publish_retried", 10.0, error=str(error)
                )
                await self._back_off(retry_s)
                retry_s = min(2 * retry_s, _LAST_RETRY_S)
                continue
            retry_s = _FIRST_RETRY_S
            self._dispatch.counts["facts_published"] += 1
            # While it was under way the queue may have overflowed and dropped this very fact.
            if self._queue and self._queue[0] is fact:
                self._queue.popleft()

    async def _back_off(self, seconds: float) -> None:
        jittered_s = seconds * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret
        try:
            async with asyncio.timeout(jittered_s):
                await self._retry_now.wait()
        except TimeoutError:
            pass

    async def wait_empty(self, timeout_s: float) -> bool:
        """Whether everything was acknowledged within the time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True

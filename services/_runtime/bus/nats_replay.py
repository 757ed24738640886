"""Replays of `nats`: all that a stream holds, then what it stores, without a consumer (`nats_history`).

What is stored at the start is read by direct gets, in batches; what follows is asked for every quarter of a second, and
as soon as an event is received. Of a stream that hosts write none is: however much they send, it waits in the stream.

The server could republish what it has stored (NATS ADR-28). nats-server 2.15.1 crashes where it does so with a message
whose headers are one byte.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import nats.errors
import nats.js.errors

from schemas.streams import StreamSpec
from services._runtime.bus.api import BusError, EventHandler, RawMessage
from services._runtime.bus.nats_connection import as_bus_errors
from services._runtime.bus.nats_direct_gets import DirectGets
from services._runtime.bus.nats_history import FOLLOW_S, NextRead, next_stored
from services._runtime.bus.nats_session import NatsSession
from services._runtime.bus.nats_streams import MissingStreamError
from services._runtime.telemetry.logging import log_once

_LONGEST_AGAIN_S: Final = 30.0
_MOST_FAILING: Final = 1_000
"""Events whose handler has failed; with more, nothing else is handled before one of them has been."""


@dataclass(slots=True)
class _Failed:
    """An event whose handler has failed."""

    raw: RawMessage
    attempts: int
    due_s: float


class NatsReplay:
    """A stream's events, each handled at least once, in order but for those whose handler fails.

    Where the connection breaks and the stream then has another event in place of the last one that was handled, it
    begins anew: a server that has lost the end of its store gives the same sequences to other events.
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
        self._handler = handler
        self._on_undecodable = on_undecodable
        self._first = after + 1
        self._next = self._first
        """Sequence that is to be handled next."""
        self._last: RawMessage | None = None
        """Handled last, or failed."""
        self._failed: list[_Failed] = []
        self._broke = False
        """The connection, since the stream was last read."""
        self._end = 0
        """Sequence behind the history: behind what was stored at the start. 0: there is no such stream yet."""
        self._published = () if stream.max_messages_per_host is not None else stream.subjects(bus.root)
        """Subjects whose events are received as they are published."""
        self._next_read = NextRead(bus)
        self._caught_up = asyncio.Event()
        self._gets: DirectGets | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopping = False

    async def start(self) -> None:
        """Begin to read; a stream that is not there yet is waited for."""
        with as_bus_errors(f"replay {self._stream}"):
            for subject in self._published:
                await self._next_read.subscribe(subject.text)
        try:
            await self._find()
        except MissingStreamError as error:
            self._log_retry(error)
        self._task = asyncio.get_running_loop().create_task(self._run(), name=f"replay {self._stream}")
        self._bus.subscriptions.add(self)
        self._bus.watches.add(self)

    async def caught_up(self) -> None:
        """Return once all events stored at the start have been handled."""
        await self._caught_up.wait()

    def synchronise_soon(self) -> None:
        """Read after a reconnect."""
        self._broke = True
        self._next_read.at_once()

    async def _run(self) -> None:
        while not self._stopping:
            self._next_read.begin()
            try:
                await self._read()
            except BusError as error:
                self._log_retry(error)
            else:
                await self._retry()
                if not self._failed and not self._broke:
                    self._caught_up.set()
            await self._next_read.wait()

    def _log_retry(self, error: BusError) -> None:
        dispatch = self._bus.dispatch
        log_once(dispatch.log.warning, dispatch.limiter, f"replay_retried_{self._stream}", 10.0, error=str(error))

    async def _find(self) -> None:
        """Learn where the history ends."""
        with as_bus_errors(f"replay {self._stream}"):
            try:
                state = (await self._bus.jetstream.stream_info(self._stream)).state
            except nats.js.errors.NotFoundError as error:
                raise MissingStreamError(self._stream) from error
        self._end = max(self._first, state.last_seq + 1)

    async def _read(self) -> None:
        """Handle what the stream holds from the next sequence on, until nothing is left or the connection breaks."""
        if self._end == 0:
            await self._find()
        if self._broke:
            self._broke = False
            try:
                await self._compare()
            except BusError:
                self._broke = True
                raise
        while not self._interrupted:
            if self._next < self._end:
                await self._read_batches()
            found = await next_stored(self._bus, self._stream, self._next)
            if found is None:
                return
            if not self._interrupted:
                await self._handle(found)

    @property
    def _interrupted(self) -> bool:
        return self._broke or self._stopping

    async def _read_batches(self) -> None:
        self._gets = DirectGets(self._bus, self._stream, ">")
        try:
            await self._gets.open({"seq": self._next})
            while batch := await self._gets.batch():
                for each in batch:
                    if self._interrupted or each.sequence >= self._end:
                        return
                    await self._handle(each)
        finally:
            with suppress(BusError):
                await self._gets.close()

    async def _compare(self) -> None:
        """Begin anew where the stream does not hold what was handled last."""
        if self._last is None:
            return
        found = await next_stored(self._bus, self._stream, self._last.sequence)
        if found is None or (found.sequence, found.data) != (self._last.sequence, self._last.data):
            self._next, self._last, self._end = self._first, None, max(self._end, self._next)
            self._failed.clear()

    async def _handle(self, raw: RawMessage) -> None:
        while len(self._failed) >= _MOST_FAILING and not self._stopping:
            await asyncio.sleep(FOLLOW_S)
            await self._retry()
        self._next, self._last = raw.sequence + 1, raw
        await self._try(_Failed(raw._replace(is_history=raw.sequence < self._end), 0, 0.0))

    async def _try(self, event: _Failed) -> None:
        handled = await self._bus.dispatch.deliver_event(self._handler, event.raw)
        if handled is False:
            event.attempts += 1
            delay_s = min(0.1 * 2 ** min(event.attempts, 10), _LONGEST_AGAIN_S)
            event.due_s = asyncio.get_running_loop().time() + delay_s
            self._failed.append(event)
        elif handled is None and self._on_undecodable is not None:
            self._on_undecodable(event.raw.sequence)

    async def _retry(self) -> None:
        now_s = asyncio.get_running_loop().time()
        due = [each for each in self._failed if each.due_s <= now_s]
        self._failed = [each for each in self._failed if each.due_s > now_s]
        for each in due:
            await self._try(each)

    async def stop(self) -> None:
        """Stop reading; the event at hand is handled."""
        if self._task is None or self._stopping:
            return
        self._stopping = True
        self._bus.subscriptions.discard(self)
        self._bus.watches.discard(self)
        await self._next_read.close()
        if self._gets is not None:
            with suppress(BusError):
                await self._gets.close()
        self._next_read.at_once()
        await self._task

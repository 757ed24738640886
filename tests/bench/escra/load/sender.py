"""Open-loop sending: every request has its intended moment, and its latency counts from there.

However slow the answers are, requests go out when they were meant to; one that finds all connections taken waits, and
its wait counts. So a stalled server shows in every request that would have met the stall (no coordinated omission).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tests.bench.escra.load.http1 import Answer, AnswerError, AnswerReader

MOST_CONNECTIONS: Final = 256
_SWEEP_S: Final = 0.05


class Outcome(IntEnum):
    """What became of a request."""

    OK = 0
    WRONG = 1
    """Answered, but not with what was asked for: another status, another body."""
    TIMED_OUT = 2
    """No answer within the time-out after its *intended* moment."""
    FAILED = 3
    """The connection broke or could not be made."""
    OPEN = 4
    """Not finished; never in a result."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request as bytes, and whether an answer is right."""

    payload: bytes
    is_right: Callable[[int, bytes], bool]
    kind: str = ""


@dataclass(slots=True)
class Sent:
    """One row per request, in the order of intended moments."""

    intended_s: NDArray[np.float64]
    """From the begin."""
    lag_s: NDArray[np.float64]
    """Handed to the socket - intended: the client's own lateness, and the wait for a connection. nan: never sent."""
    latency_s: NDArray[np.float64]
    """Answer's last byte - intended; of one that timed out: when it was given up - intended."""
    outcome: NDArray[np.int8]
    kinds: list[str]


class _Connection(asyncio.Protocol):
    """One kept connection with at most one request under way."""

    def __init__(self, owner: OpenLoop) -> None:
        self._owner = owner
        self.transport: asyncio.Transport | None = None
        self.reader = AnswerReader()
        self.number = -1
        """Of the request under way; -1: idle."""
        self.used = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            answer = self.reader.feed(data)
        except AnswerError:
            self._owner.broken(self)
            return
        if answer is not None:
            self._owner.answered(self, answer)

    def connection_lost(self, _error: Exception | None) -> None:
        self._owner.broken(self)

    def send(self, number: int, payload: bytes) -> None:
        assert self.transport is not None
        self.number = number
        self.transport.write(payload)

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()


class OpenLoop:
    """Sends one run's requests to one address. Make a new one for every run."""

    def __init__(self, address: tuple[str, int], intended_s: NDArray[np.float64], timeout_s: float) -> None:
        count = len(intended_s)
        self._address = address
        self._timeout_s = timeout_s
        self.sent = Sent(
            intended_s,
            np.full(count, np.nan),
            np.full(count, np.nan),
            np.full(count, Outcome.OPEN, dtype=np.int8),
            [""] * count,
        )
        self._loop = asyncio.get_running_loop()
        self._exchanges: dict[int, Exchange] = {}
        self._idle: list[_Connection] = []
        self._all: set[_Connection] = set()
        self._opening = 0
        self._waiting: deque[int] = deque()
        self._retried: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._next = 0
        self._unfinished = count
        self._done = asyncio.Event()
        self._begin_s = 0.0
        self._make: Callable[[int], Exchange] | None = None

    async def run(self, make: Callable[[int], Exchange], begin_s: float) -> Sent:
        """Send everything and wait for the last answer or time-out.

        Args:
            make: the request of a number; called in the order of numbers.
            begin_s: the loop's time of moment 0.
        """
        self._make, self._begin_s = make, begin_s
        if not self._unfinished:
            return self.sent
        self._loop.call_at(begin_s + float(self.sent.intended_s[0]), self._fire)
        sweep = self._loop.create_task(self._sweep())
        try:
            await self._done.wait()
        finally:
            sweep.cancel()
            for connection in list(self._all):
                connection.number = -1
                connection.close()
            await asyncio.sleep(0)  # so that the transports are gone
        return self.sent

    def _fire(self) -> None:
        """Send what is due, and come again for the next."""
        intended_s, count, make = self.sent.intended_s, len(self.sent.intended_s), self._make
        assert make is not None
        while self._next < count and self._begin_s + intended_s[self._next] <= self._loop.time():
            number = self._next
            self._next += 1
            self._exchanges[number] = exchange = make(number)
            self.sent.kinds[number] = exchange.kind
            self._dispatch(number)
        if self._next < count:
            self._loop.call_at(self._begin_s + float(intended_s[self._next]), self._fire)

    def _dispatch(self, number: int) -> None:
        if self._idle:
            self._send(self._idle.pop(), number)
            return
        self._waiting.append(number)
        self._open_another()

    def _open_another(self) -> None:
        """A connection for whoever waits, unless enough are being opened or there are too many."""
        if len(self._all) + self._opening < MOST_CONNECTIONS and self._opening < len(self._waiting):
            self._opening += 1
            task = self._loop.create_task(self._open())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _open(self) -> None:
        try:
            _, connection = await self._loop.create_connection(lambda: _Connection(self), *self._address)
        except OSError:
            self._opening -= 1
            if self._waiting:
                self._finish(self._waiting.popleft(), Outcome.FAILED)
            return
        self._opening -= 1
        self._all.add(connection)
        self._take_next(connection)

    def _take_next(self, connection: _Connection) -> None:
        if self._waiting:
            self._send(connection, self._waiting.popleft())
        else:
            self._idle.append(connection)

    def _send(self, connection: _Connection, number: int) -> None:
        self.sent.lag_s[number] = self._loop.time() - self._begin_s - self.sent.intended_s[number]
        connection.send(number, self._exchanges[number].payload)

    def answered(self, connection: _Connection, answer: Answer) -> None:
        """A whole answer has come."""
        number, connection.number = connection.number, -1
        if number < 0:  # one that nobody asked for
            connection.close()
            return
        connection.used = True
        latency_s = self._loop.time() - self._begin_s - float(self.sent.intended_s[number])
        right = self._exchanges[number].is_right(answer.status, answer.body)
        self._finish(number, Outcome.OK if right else Outcome.WRONG, latency_s)
        if answer.keeps:
            self._take_next(connection)
        else:
            connection.close()

    def broken(self, connection: _Connection) -> None:
        """A connection has ended, or speaks no HTTP."""
        number, connection.number = connection.number, -1
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        connection.close()
        self._open_another()
        if number < 0:
            return
        if connection.used and not connection.reader.begun and number not in self._retried:
            # A server may close a kept connection at any time: such a request is sent again (RFC 9112, 9.3.1).
            self._retried.add(number)
            self._dispatch(number)
        else:
            self._finish(number, Outcome.FAILED)

    def _finish(self, number: int, outcome: Outcome, latency_s: float | None = None) -> None:
        if latency_s is None:
            latency_s = self._loop.time() - self._begin_s - float(self.sent.intended_s[number])
        self.sent.latency_s[number] = latency_s
        self.sent.outcome[number] = outcome
        del self._exchanges[number]
        self._unfinished -= 1
        if not self._unfinished:
            self._done.set()

    async def _sweep(self) -> None:
        """Give up what has waited for too long."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            latest_s = self._loop.time() - self._begin_s - self._timeout_s
            while self._waiting and self.sent.intended_s[self._waiting[0]] < latest_s:
                self._finish(self._waiting.popleft(), Outcome.TIMED_OUT)
            for connection in list(self._all):
                number = connection.number
                if number >= 0 and self.sent.intended_s[number] < latest_s:
                    connection.number = -1
                    self._finish(number, Outcome.TIMED_OUT)
                    connection.close()

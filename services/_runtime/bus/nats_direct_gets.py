"""Stored messages of a stream in batches, by direct gets (NATS ADR-31): without a consumer or acknowledgements.

Each batch is asked for as soon as the one before has arrived, so the server reads while that one is handled.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

from services._runtime.bus.api import BusError, BusUnavailableError, NotPermittedError, RawMessage
from services._runtime.bus.nats_connection import as_bus_errors
from services._runtime.bus.nats_session import NatsSession

_BATCH: Final = 500
_BATCH_BYTES: Final = 4 << 20
_TIMEOUT_S: Final = 5.0
_FLUSH_S: Final = 5
_API: Final = "$JS.API.DIRECT.GET."
_NO_MORE: Final = frozenset({b"204", b"404"})
"""Status at the end of a batch, and where nothing is left."""
_STATUS: Final = slice(len("NATS/1.0 "), len("NATS/1.0 204"))
"""In the headers of a message that is the server's own."""
_SUBJECT, _SEQUENCE, _LEFT = b"\r\nNats-Subject: ", b"\r\nNats-Sequence: ", b"\r\nNats-Num-Pending: "


class DirectGets:
    """Reads a stream from a sequence or a time on, oldest first. One connection, one reader at a time."""

    def __init__(self, bus: NatsSession, stream: str, subjects: str) -> None:
        self._bus = bus
        self._stream = stream
        self._subjects = subjects
        self._arrived: list[tuple[bytes, bytes]] = []
        """Headers and data."""
        self._status: bytes | None = None
        self._ended = asyncio.Event()
        self._left = 0
        self._raw: Any = None
        self._inbox = ""
        self._closed = False

    async def open(self, start: dict[str, int | str]) -> None:
        """Ask for the first batch.

        Args:
            start: ``seq``, or ``start_time`` (RFC 3339).

        Raises:
            BusError: not connected, or not permitted.
        """
        with as_bus_errors(f"read stream {self._stream}"):
            self._inbox = self._bus.connection.new_inbox()
            self._raw = await self._bus.connection.subscribe_unparsed(self._inbox, self._take)
            await self._ask(start)
            await self._bus.connection.flush(_FLUSH_S)  # a refusal has come before the answer to it
        if self._bus.connection.has_refused(_API + self._stream):
            raise NotPermittedError(f"this user may not read stream {self._stream} in batches")

    async def batch(self) -> list[RawMessage]:
        """The next messages; none: there are no more, or `close` was called.

        Raises:
            BusError: not connected, not permitted, or the server stops answering.
        """
        if self._closed or (self._left <= 0 and self._ended.is_set() and not self._arrived):
            return []
        with as_bus_errors(f"read stream {self._stream}"):
            await self._end_of_batch()
            arrived, self._arrived = self._arrived, []
            if arrived and not self._closed:
                last, left = _number(arrived[-1][0], _SEQUENCE), _number(arrived[-1][0], _LEFT)
                if left > 0:
                    await self._ask({"seq": last + 1})
                self._left = left
            return [] if self._closed else [_stored(headers, data) for headers, data in arrived]

    async def close(self) -> None:
        """End: a call of `batch` returns at once."""
        self._closed = True
        self._ended.set()
        if self._raw is not None:
            with as_bus_errors(f"read stream {self._stream}"):
                await self._raw.unsubscribe()

    async def _ask(self, start: dict[str, int | str]) -> None:
        self._status = None
        self._ended.clear()
        request = {"batch": _BATCH, "max_bytes": _BATCH_BYTES, "next_by_subj": self._subjects, **start}
        await self._bus.connection.publish(_API + self._stream, json.dumps(request).encode(), reply=self._inbox)
        await asyncio.sleep(0)  # for nats-py's task that writes: else it would be sent only after this batch

    def _take(self, _: bytes, headers: bytes, data: bytes) -> None:
        if _SEQUENCE in headers:  # set by the server; a publisher may have set a status
            self._arrived.append((headers, data))
        else:
            self._status = headers[_STATUS]
            self._ended.set()

    async def _end_of_batch(self) -> None:
        arrived = -1
        while not self._ended.is_set():
            if arrived == len(self._arrived):
                raise BusUnavailableError(f"the server sent nothing for {_TIMEOUT_S:g} s")
            arrived = len(self._arrived)
            try:
                async with asyncio.timeout(_TIMEOUT_S):
                    await self._ended.wait()
            except TimeoutError:
                continue
        if self._status is not None and self._status not in _NO_MORE:
            raise BusError(f"stream {self._stream} does not answer: {self._status!r}")


def _stored(headers: bytes, data: bytes) -> RawMessage:
    subject = _last(headers, _SUBJECT).decode(errors="replace")
    return RawMessage(subject, data, is_history=True, sequence=_number(headers, _SEQUENCE))


def _number(headers: bytes, name: bytes) -> int:
    return int(_last(headers, name))


def _last(headers: bytes, name: bytes) -> bytes:
    """Value of the last header of a name: the server's own stand behind those that a sender has set.

    Raises:
        ValueError: there is none.
    """
    begin = headers.rindex(name) + len(name)
    return headers[begin : headers.index(b"\r", begin)]

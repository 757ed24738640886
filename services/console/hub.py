"""Fan-out from the bus to the open pages, with a bounded queue per page, so that a slow page never blocks. No I/O.

A page receives frames: four bytes of length (big-endian), then a message as msgpack of that length. A new page first
receives the current state and the newest durable events. Observations are dropped for a page that does not keep up; a
page whose durable events overflow, too, is disconnected, and reconnects.
"""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

import msgpack

from services.cli.apps.subscriptions import Deduplicator

REMEMBERED_EVENTS: Final = 400
"""Newest durable events of each kind that a new page receives."""
LOSSY_BYTES: Final = 1 << 20
"""A page with more queued than this gets no observations."""
CUT_OFF_BYTES: Final = 8 << 20
_LENGTH: Final = struct.Struct(">I")


def frame(data: bytes) -> bytes:
    """A message as a page reads it."""
    return _LENGTH.pack(len(data)) + data


def console_message(kind: str, **fields: Any) -> bytes:
    """A message from the console to its pages, which is not on the bus; ``kind`` such as ``Removed``."""
    packed: bytes = msgpack.packb({"type": f"console.{kind}", **fields})
    return packed


class Page:
    """The queue of one page."""

    def __init__(self, initial: Iterable[bytes] = ()) -> None:
        self._frames = deque(initial)
        self._bytes = 0
        """Of what came since it was served last; the greeting does not count, however long: it is not behind yet."""
        self._pending = asyncio.Event()
        self.behind = False
        """It overflowed: it is to be disconnected."""
        self.dropped = 0
        """Observations that were dropped for it."""

    def put(self, framed: bytes, *, lossy: bool = False) -> None:
        """Queue a frame, or drop it."""
        if lossy and self._bytes + len(framed) > LOSSY_BYTES:
            self.dropped += 1
            return
        if self._bytes + len(framed) > CUT_OFF_BYTES:
            self.behind = True
        if not self.behind:
            self._frames.append(framed)
            self._bytes += len(framed)
        self._pending.set()

    async def take(self, within_s: float) -> bytes:
        """All queued frames, once there are some; empty after ``within_s``."""
        if not self._frames and not self.behind:
            self._pending.clear()
            try:
                await asyncio.wait_for(self._pending.wait(), within_s)
            except TimeoutError:
                return b""
        data = b"".join(self._frames)
        self._frames.clear()
        self._bytes = 0
        return data


class Hub:
    """Sends each message to all open pages, and keeps the state that a new page receives first."""

    def __init__(self) -> None:
        self._pages: set[Page] = set()
        self._current: dict[str, bytes] = {}
        self._events: dict[str, deque[bytes]] = {}
        self._deduplicator = Deduplicator()
        self._joined = asyncio.Event()

    @property
    def pages(self) -> int:
        """Pages that are open."""
        return len(self._pages)

    async def wait_for_page(self) -> None:
        """Return once a page is open."""
        await self._joined.wait()

    def join(self) -> Page:
        """A page opens."""
        page = Page(map(frame, itertools.chain(self._current.values(), *self._events.values())))
        self._pages.add(page)
        self._joined.set()
        return page

    def leave(self, page: Page) -> None:
        """A page has gone."""
        self._pages.discard(page)
        if not self._pages:
            self._joined.clear()

    def broadcast_observation(self, data: bytes) -> None:
        """Send an observation to the pages that keep up."""
        if self._pages:
            self._broadcast(data, lossy=True)

    def broadcast_event(self, kind: str, data: bytes) -> None:
        """Send a durable event once, and keep it among the newest of its kind."""
        if self._deduplicator.is_new(data):
            self._events.setdefault(kind, deque(maxlen=REMEMBERED_EVENTS)).append(data)
            self._broadcast(data)

    def set(self, key: str, data: bytes) -> None:
        """Set an entry of the current state; sent only if it has changed."""
        if self._current.get(key) != data:
            self._current[key] = data
            self._broadcast(data)

    def holds(self, key: str) -> bool:
        """Whether an entry is set."""
        return key in self._current

    def remove(self, key: str, data: bytes) -> None:
        """Remove an entry of the current state, and send ``data`` if it was set."""
        if self._current.pop(key, None) is not None:
            self._broadcast(data)

    def forget(self, key: str) -> None:
        """Drop an entry whose validity is unknown, without sending: the next `set` sends it again."""
        self._current.pop(key, None)

    def _broadcast(self, data: bytes, *, lossy: bool = False) -> None:
        framed = frame(data)
        for page in self._pages:
            page.put(framed, lossy=lossy)

"""Fan-out from the bus to the open pages, with a bounded queue per page, so that a slow page never blocks. No I/O.

A page receives frames: four bytes of length (big-endian), then a message as msgpack of that length. A new page first
receives the current state and the newest durable events. Of current state a page gets the newest: what still waits for
it is replaced. A page whose durable events overflow is disconnected, and reconnects.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Hashable, Iterable
from typing import Final

from services.cli.apps.subscriptions import Deduplicator
from services.console.messages import frame

REMEMBERED_EVENTS: Final = 400
"""Newest durable events of each kind that a new page receives."""
CUT_OFF_BYTES: Final = 8 << 20


class Page:
    """The queue of one page."""

    def __init__(self, initial: Iterable[bytes] = ()) -> None:
        self._initial = b"".join(initial)
        """Before all else. It does not count, however long: the page is not behind yet."""
        self._frames: dict[Hashable, bytes] = {}
        self._bytes = 0
        self._pending = asyncio.Event()
        self.behind = False
        """It overflowed: it is to be disconnected."""

    def put(self, framed: bytes, key: Hashable = None) -> None:
        """Queue a frame. One that still waits under the same key is replaced; None: none is."""
        replaced = b"" if key is None else self._frames.pop(key, b"")
        self._bytes += len(framed) - len(replaced)
        if self._bytes > CUT_OFF_BYTES:
            self.behind = True
        if not self.behind:
            self._frames[object() if key is None else key] = framed
        self._pending.set()

    async def take(self, within_s: float) -> bytes:
        """All queued frames, once there are some; empty after ``within_s``."""
        if not self._frames and not self._initial and not self.behind:
            self._pending.clear()
            try:
                await asyncio.wait_for(self._pending.wait(), within_s)
            except TimeoutError:
                return b""
        data = self._initial + b"".join(self._frames.values())
        self._initial = b""
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

    def broadcast_event(self, kind: str, data: bytes) -> None:
        """Send a durable event once, and keep it among the newest of its kind."""
        if self._deduplicator.is_new(data):
            self._events.setdefault(kind, deque(maxlen=REMEMBERED_EVENTS)).append(data)
            self.broadcast(data)

    def broadcast(self, data: bytes, key: Hashable = None) -> None:
        """Send a message to the pages that are open, in place of one that still waits under the same key."""
        framed = frame(data)
        for page in self._pages:
            page.put(framed, key)

    def set(self, key: str, data: bytes) -> None:
        """Set an entry of the current state; sent only if it has changed."""
        if self._current.get(key) != data:
            self._current[key] = data
            self.broadcast(data, key)

    def holds(self, key: str) -> bool:
        """Whether an entry is set."""
        return key in self._current

    def remove(self, key: str, data: bytes) -> None:
        """Remove an entry of the current state, and send ``data`` if it was set."""
        if self._current.pop(key, None) is not None:
            self.broadcast(data, key)

    def forget(self, key: str) -> None:
        """Drop an entry whose validity is unknown, without sending: the next `set` sends it again."""
        self._current.pop(key, None)

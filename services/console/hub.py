"""Between the bus, which must not wait, and the pages, which may be slow. No I/O.

A page is told frames: four bytes of length (big-endian), then a message as msgpack that far. One that joins is first
told what holds now and the newest facts. Observations are dropped for a page that does not keep up; a page that has
fallen behind with facts, too, is cut off, and comes again.
"""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections import deque
from collections.abc import Iterable
from typing import Any, Final

import msgpack

from services.cli.apps.bus_feed import Seen

REMEMBERED_FACTS: Final = 400
"""Newest facts of each kind that a page is told when it joins."""
LOSSY_BYTES: Final = 1 << 20
"""Beyond so much waiting, a page gets no observations."""
CUT_OFF_BYTES: Final = 8 << 20
_LENGTH: Final = struct.Struct(">I")


def frame(data: bytes) -> bytes:
    """A message as a page reads it."""
    return _LENGTH.pack(len(data)) + data


def note(kind: str, **fields: Any) -> bytes:
    """A message of the console's own, which does not travel on the bus; `kind` such as ``Removed``."""
    packed: bytes = msgpack.packb({"type": f"console.{kind}", **fields})
    return packed


class Page:
    """What waits for one page."""

    def __init__(self, greeting: Iterable[bytes] = ()) -> None:
        self._frames = deque(greeting)
        self._bytes = 0
        """Of what came since it was served last; the greeting does not count, however long: it is not behind yet."""
        self._news = asyncio.Event()
        self.behind = False
        """It is lost: too much waits."""
        self.dropped = 0
        """Observations that it did not get."""

    def put(self, framed: bytes, *, lossy: bool = False) -> None:
        """Let a frame wait, or drop it."""
        if lossy and self._bytes + len(framed) > LOSSY_BYTES:
            self.dropped += 1
            return
        if self._bytes + len(framed) > CUT_OFF_BYTES:
            self.behind = True
        if not self.behind:
            self._frames.append(framed)
            self._bytes += len(framed)
        self._news.set()

    async def take(self, within_s: float) -> bytes:
        """All that waits, once there is something; nothing after so long."""
        if not self._frames and not self.behind:
            self._news.clear()
            try:
                await asyncio.wait_for(self._news.wait(), within_s)
            except TimeoutError:
                return b""
        data = b"".join(self._frames)
        self._frames.clear()
        self._bytes = 0
        return data


class Hub:
    """Hands to every page what it should know."""

    def __init__(self) -> None:
        self._pages: set[Page] = set()
        self._current: dict[str, bytes] = {}
        self._facts: dict[str, deque[bytes]] = {}
        self._seen = Seen()
        self._joined = asyncio.Event()

    @property
    def pages(self) -> int:
        """Pages that are open."""
        return len(self._pages)

    async def watched(self) -> None:
        """Return once a page is open."""
        await self._joined.wait()

    def join(self) -> Page:
        """A page opens."""
        page = Page(map(frame, itertools.chain(self._current.values(), *self._facts.values())))
        self._pages.add(page)
        self._joined.set()
        return page

    def leave(self, page: Page) -> None:
        """A page has gone."""
        self._pages.discard(page)
        if not self._pages:
            self._joined.clear()

    def observe(self, data: bytes) -> None:
        """Pass an observation on: only to pages that keep up."""
        if self._pages:
            self._tell(data, lossy=True)

    def tell(self, kind: str, data: bytes) -> None:
        """Pass a fact on, once, and remember it among the newest of its kind."""
        if self._seen.is_new(data):
            self._facts.setdefault(kind, deque(maxlen=REMEMBERED_FACTS)).append(data)
            self._tell(data)

    def set(self, key: str, data: bytes) -> None:
        """Something holds from now on, until it is set anew or removed. What has not changed is not told again."""
        if self._current.get(key) != data:
            self._current[key] = data
            self._tell(data)

    def holds(self, key: str) -> bool:
        """Whether something is set."""
        return key in self._current

    def remove(self, key: str, data: bytes) -> None:
        """Something holds no longer; pages are told so by ``data``."""
        if self._current.pop(key, None) is not None:
            self._tell(data)

    def forget(self, key: str) -> None:
        """Nobody knows any more whether something still holds: it is told anew when it is set."""
        self._current.pop(key, None)

    def _tell(self, data: bytes, *, lossy: bool = False) -> None:
        framed = frame(data)
        for page in self._pages:
            page.put(framed, lossy=lossy)

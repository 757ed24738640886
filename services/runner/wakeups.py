"""What ends the rest between two polls: any of several descriptors that can be read, or the end of some time.

They are in an epoll instance, which is readable itself while one of them is (epoll(7)). The event loop stops to watch
it as soon as it is, so that what is not read at once causes no further wake-up before the next `wait`.
"""

from __future__ import annotations

import asyncio
import select
from contextlib import suppress


class WakeUps:
    """Descriptors that end a wait."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._descriptor = self._epoll.fileno()

    def add(self, descriptor: int) -> None:
        """Wait for this descriptor, too.

        Raises:
            OSError: it cannot be waited for.
        """
        self._epoll.register(descriptor, select.EPOLLIN)

    def remove(self, descriptor: int) -> None:
        """Wait for it no more; before it is closed, as its number may soon be of another file. Not added: nothing."""
        with suppress(OSError, ValueError):  # ValueError: `close` was called
            self._epoll.unregister(descriptor)

    async def wait(self, most_s: float) -> None:
        """Return once there is something to read, or after so many seconds."""
        loop = asyncio.get_running_loop()
        readable: asyncio.Future[None] = loop.create_future()

        def note() -> None:
            loop.remove_reader(self._descriptor)
            if not readable.done():
                readable.set_result(None)

        loop.add_reader(self._descriptor, note)
        timer = loop.call_later(most_s, note)
        try:
            await readable
        finally:
            timer.cancel()
            loop.remove_reader(self._descriptor)

    def close(self) -> None:
        """Let go; nothing may wait any more."""
        self._epoll.close()

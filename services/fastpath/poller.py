"""Event dispatch of the data-plane loop: readable descriptors (epoll(7)) and SIGTERM."""

from __future__ import annotations

import select
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol


class Watched(Protocol):
    """Anything with a descriptor."""

    def fileno(self) -> int:
        """For epoll."""
        ...


class Poller:
    """Readable descriptors, each with its handler."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._wakes: tuple[socket.socket, socket.socket] | None = None

    def watch(self, watched: Watched, handler: Callable[[], None]) -> None:
        """Call a handler whenever the descriptor is readable."""
        self._handlers[watched.fileno()] = handler
        self._epoll.register(watched.fileno(), select.EPOLLIN)

    def unwatch(self, watched: Watched) -> None:
        """Remove a descriptor, before it is closed."""
        self._handlers.pop(watched.fileno(), None)
        self._epoll.unregister(watched.fileno())

    def on_terminate(self, handler: Callable[[], None]) -> None:
        """Call a handler on SIGTERM."""
        read_end, write_end = self._wakes = socket.socketpair()
        for end in self._wakes:
            end.settimeout(0.0)
        signal.set_wakeup_fd(write_end.fileno())
        signal.signal(signal.SIGTERM, lambda *_: handler())

        def drain() -> None:
            with suppress(BlockingIOError):
                read_end.recv(4096)

        self.watch(read_end, drain)

    def wait(self, seconds: float) -> list[int]:
        """Wait for readable descriptors, at most this long."""
        return [descriptor for descriptor, _ in self._epoll.poll(seconds)]

    def handle(self, descriptors: list[int]) -> None:
        """Call their handlers; a handler may remove another descriptor."""
        for descriptor in descriptors:
            handler = self._handlers.get(descriptor)
            if handler is not None:
                handler()

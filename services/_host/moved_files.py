"""Notification by the kernel of what appears in directories (inotify(7)): records moved there whole, new entries."""

from __future__ import annotations

import ctypes
import os
import select
import struct
from collections.abc import Iterator
from typing import Final, Self

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_MOVED_TO, _CREATE, _ONLY_DIRECTORY = 0x00000080, 0x00000100, 0x01000000
"""IN_MOVED_TO, IN_CREATE and IN_ONLYDIR."""
_EVENT: Final = struct.Struct("iIII")
"""struct inotify_event without the name."""
_READ_BYTES: Final = 1 << 16


class MovedFiles:
    """Becomes readable where a file is moved into one of its directories, and stays so until `drain`."""

    def __init__(self) -> None:
        """Open it.

        Raises:
            OSError: the user has too many already (fs.inotify.max_user_instances).
        """
        # IN_NONBLOCK and IN_CLOEXEC are these (inotify_init(2)).
        self._descriptor = _checked(_LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), "inotify_init1")

    def fileno(self) -> int:
        """For an event loop."""
        return self._descriptor

    def watch(self, directory: str) -> int:
        """Watch a directory as well, until it is removed; returns by what to `forget` it.

        Raises:
            OSError: there is none, or the user watches too many (fs.inotify.max_user_watches).
        """
        wanted = _MOVED_TO | _ONLY_DIRECTORY
        return _checked(_LIBC.inotify_add_watch(self._descriptor, os.fsencode(directory), wanted), "inotify_add_watch")

    def forget(self, watch: int) -> None:
        """Watch a directory no more; one that has been removed is forgotten already."""
        _LIBC.inotify_rm_watch(self._descriptor, watch)

    def drain(self) -> bool:
        """Take all events so far; whether there was any."""
        any_event = False
        while True:
            try:
                os.read(self._descriptor, _READ_BYTES)
            except BlockingIOError:
                return any_event
            any_event = True

    def close(self) -> None:
        """Watch nothing any more; twice does no harm."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class NewEntries:
    """Names of what is made in, or moved into, its directories."""

    def __init__(self) -> None:
        """Open it.

        Raises:
            OSError: the user has too many already (fs.inotify.max_user_instances).
        """
        self._descriptor = _checked(_LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC), "inotify_init1")
        self._directories: dict[int, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        os.close(self._descriptor)

    def watch(self, directory: str) -> None:
        """Watch a directory as well, until it is removed.

        Raises:
            OSError: there is none, or the user watches too many (fs.inotify.max_user_watches).
        """
        wanted = _CREATE | _MOVED_TO | _ONLY_DIRECTORY
        number = _LIBC.inotify_add_watch(self._descriptor, os.fsencode(directory), wanted)
        self._directories[_checked(number, "inotify_add_watch")] = directory

    def take(self, within_s: float) -> Iterator[tuple[str, str]]:
        """Directories and the names that have appeared in them; waits so long for the first."""
        if not select.select([self._descriptor], [], [], within_s)[0]:
            return
        events, at = os.read(self._descriptor, _READ_BYTES), 0
        while at < len(events):
            watch, _, _, length = _EVENT.unpack_from(events, at)
            at += _EVENT.size + length
            name = os.fsdecode(events[at - length : at].rstrip(b"\0"))
            if name and watch in self._directories:
                yield self._directories[watch], name


def _checked(result: int, call: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
    return result

"""Notification by the kernel of files that are moved into directories (inotify(7)), as records are that come whole."""

from __future__ import annotations

import ctypes
import os
from typing import Final

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_MOVED_TO, _ONLY_DIRECTORY = 0x00000080, 0x01000000
"""IN_MOVED_TO and IN_ONLYDIR."""
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


def _checked(result: int, call: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
    return result

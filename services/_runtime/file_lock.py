"""Exclusive lock files between processes.

flock(2) belongs to the open file: it ends when the last descriptor is closed, however the process ends, and a child
that inherits the descriptor holds it as well. lockf(3), a POSIX record lock, belongs to the process: a forked worker
that outlives a killed parent does not keep it. Standard library only.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

_MAX_HOLDER_BYTES: Final = 4096
_SHORT_PAUSE_S: Final = 0.0002


class LockHeldError(Exception):
    """Another process holds the lock."""

    def __init__(self, holder: bytes) -> None:
        super().__init__("another process holds the lock")
        self.holder = holder
        """Content of the lock file."""


class FileLock:
    """A lock file, locked by flock, with a description of its holder as content. The file is never removed."""

    def __init__(self, path: Path, holder: bytes, *, attempts: int = 1, pause_s: float = 0.0) -> None:
        """Take the lock and write the holder.

        Raises:
            LockHeldError: another process held it at every attempt.
            OSError: the file cannot be made, locked or written.
        """
        self._descriptor = open_lock_file(path)
        try:
            self._lock(holder, attempts, pause_s)
        except BaseException:
            os.close(self._descriptor)
            raise

    def _lock(self, holder: bytes, attempts: int, pause_s: float) -> None:
        if not try_flock(self._descriptor, attempts=attempts, pause_s=pause_s):
            raise LockHeldError(os.pread(self._descriptor, _MAX_HOLDER_BYTES, 0))
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, holder, 0)

    def detach(self) -> int:
        """Give up the open, locked file: its descriptor is the caller's to pass on and to close."""
        descriptor, self._descriptor = self._descriptor, -1
        return descriptor

    def release(self) -> None:
        """Empty the file and unlock it. Idempotent."""
        if self._descriptor >= 0:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
        self._descriptor = -1


def open_lock_file(path: Path, mode: int = 0o600) -> int:
    """Open a lock file, and make it if needed; children that execute another program do not inherit it.

    Raises:
        OSError: it cannot be opened or made.
    """
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)


def try_flock(descriptor: int, *, attempts: int = 1, pause_s: float = 0.0) -> bool:
    """Lock an open file for its descriptors; False: another open file held it at every attempt.

    More than one attempt helps after a process was killed, whose files the kernel closes a moment later.

    Raises:
        OSError: the file system has no locks.
    """
    for attempt in range(attempts):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if attempt + 1 < attempts:
                time.sleep(pause_s)
        else:
            return True
    return False


@contextmanager
def locked_briefly(path: Path, attempts: int = 5) -> Iterator[int | None]:
    """Hold a file while inside, if it can be had within a millisecond; yields its descriptor, or None."""
    try:
        descriptor = open_lock_file(path)
    except OSError:
        yield None
        return
    try:
        yield descriptor if try_flock(descriptor, attempts=attempts, pause_s=_SHORT_PAUSE_S) else None
    finally:
        os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock. Takes it for some microseconds where it is free."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not try_flock(descriptor)
    finally:
        os.close(descriptor)


def lock_present_file(path: Path) -> int | None:
    """Lock the file that has this name now: another process may have removed the one that was opened.

    Returns:
        Its descriptor; None: another process holds it.

    Raises:
        OSError: it cannot be opened or locked.
    """
    while True:
        descriptor, present = open_lock_file(path), False
        try:
            if not try_flock(descriptor):
                return None
            with suppress(FileNotFoundError):
                present = os.path.samestat(os.fstat(descriptor), path.stat())
            if present:
                return descriptor
        finally:
            if not present:
                os.close(descriptor)


def try_process_lock(descriptor: int) -> bool:
    """Lock an open file for this process, without its children; False: another process holds it.

    Closing any descriptor of the file in this process ends the lock.

    Raises:
        OSError: the file system has no locks.
    """
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # EAGAIN or EACCES, see fcntl(2)
        return False
    return True

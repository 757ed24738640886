"""Memory that stays in memory: mlock(2), mlockall(2). What holds another host's pages must not be swapped out."""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import resource
from pathlib import Path
from typing import Final

_MADV_DONTNEED_LOCKED: Final = 24
"""As MADV_DONTNEED, also of locked pages; since Linux 5.18 (madvise(2)). MADV_FREE refuses locked pages."""
_MCL_CURRENT, _MCL_FUTURE, _MCL_ONFAULT = 1, 2, 4
_CAP_IPC_LOCK: Final = 14
_STATUS: Final = Path("/proc/self/status")


class LockedMemoryError(Exception):
    """Memory cannot be had; the message says what would help."""


class LockedMemory:
    """Zeroed memory, all of it present from the beginning: nothing has to be found when a page comes.

    What is trimmed is given back to the host, and found again at the next write.
    """

    def __init__(self, size_bytes: int) -> None:
        """Reserve and lock; takes a second for some GiB, without the interpreter's lock.

        Args:
            size_bytes: a multiple of the page size.

        Raises:
            LockedMemoryError: there is not so much, or the process may not lock it.
        """
        if size_bytes <= 0 or size_bytes % mmap.PAGESIZE:
            raise LockedMemoryError(f"{size_bytes} bytes are no multiple of the page size, {mmap.PAGESIZE}")
        try:
            self._map = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError, ValueError) as error:
            raise LockedMemoryError(f"{size_bytes} bytes of memory cannot be reserved: {error}") from error
        try:
            self._lock(size_bytes)
        except BaseException:
            self._map.close()
            raise
        self._view = memoryview(self._map)

    def __len__(self) -> int:
        return len(self._map)

    def _lock(self, size_bytes: int) -> None:
        anchor = ctypes.c_char.from_buffer(self._map)
        address = ctypes.addressof(anchor)
        del anchor  # while it is there, the memory cannot be closed
        mlock = ctypes.CDLL(None, use_errno=True).mlock
        mlock.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
        if mlock(address, size_bytes):
            number = ctypes.get_errno()
            hint = "raise LimitMEMLOCK (ulimit -l)" if number in {errno.EPERM, errno.ENOMEM, errno.EAGAIN} else ""
            raise LockedMemoryError(f"{size_bytes} bytes cannot be locked: {os.strerror(number)}; {hint}".rstrip("; "))

    def read(self, offset: int, length: int) -> bytes:
        """A copy of so many bytes."""
        return bytes(self._view[offset : offset + length])

    def write(self, offset: int, content: bytes) -> None:
        """Put bytes in place.

        Raises:
            ValueError: they do not fit there.
        """
        self._view[offset : offset + len(content)] = content

    def zero(self, offset: int, length: int, *, keep: bool) -> None:
        """Make bytes zero; unless `keep`, whole pages among them are given back to the host."""
        end = offset + length
        first = min(end, -(-offset // mmap.PAGESIZE) * mmap.PAGESIZE)
        last = max(first, end // mmap.PAGESIZE * mmap.PAGESIZE)
        if keep or first == last or not self._give_back(first, last - first):
            first = last = end
        self._fill(offset, first)
        self._fill(last, end)

    def _give_back(self, offset: int, length: int) -> bool:
        try:
            self._map.madvise(_MADV_DONTNEED_LOCKED, offset, length)
        except OSError:  # an older kernel
            return False
        return True

    def _fill(self, start: int, end: int) -> None:
        for at in range(start, end, 1 << 20):
            until = min(end, at + (1 << 20))
            self._view[at:until] = bytes(until - at)

    def present_bytes(self) -> int:
        """What is not given back (mincore(2)): what the host gets at the end."""
        pages = len(self._map) // mmap.PAGESIZE
        anchor, present = ctypes.c_char.from_buffer(self._map), (ctypes.c_ubyte * pages)()
        address = ctypes.c_void_p(ctypes.addressof(anchor))
        del anchor
        if ctypes.CDLL(None).mincore(address, ctypes.c_size_t(len(self._map)), present):
            return len(self._map)
        return sum(page & 1 for page in bytes(present)) * mmap.PAGESIZE

    def close(self) -> None:
        """Give everything back; twice does no harm."""
        self._view.release()
        self._map.close()


def lock_process() -> None:
    """Keep this process in memory, page by page as it is used: the way of pages must not wait for a page of its own.

    Two hosts that swap to each other would wait for ever, each for the other's daemon.

    Raises:
        LockedMemoryError: it may not; nothing is locked.
    """
    unlimited = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0] == resource.RLIM_INFINITY
    # Below a limit it might succeed, and every later mmap(2) beyond the limit would fail.
    if not unlimited and not _capabilities() >> _CAP_IPC_LOCK & 1:
        raise LockedMemoryError(
            "no CAP_IPC_LOCK, and a limit: raise LimitMEMLOCK (ulimit -l unlimited), or run as root"
        )
    if ctypes.CDLL(None, use_errno=True).mlockall(_MCL_CURRENT | _MCL_FUTURE | _MCL_ONFAULT):
        raise LockedMemoryError(f"the process cannot be locked: {os.strerror(ctypes.get_errno())}")


def _capabilities() -> int:
    lines = _STATUS.read_text(encoding="ascii").splitlines()
    return next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")), 0)

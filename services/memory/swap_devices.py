"""The swap devices of this host, as the command and the service share them: of each a journal, and a lock to act under.

Whoever holds the lock reads the journal anew: what the other one has done since is in it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from services._runtime.file_lock import FileLock, LockHeldError, is_locked
from services.memory.adapters.device_mapper import DeviceMapper
from services.memory.adapters.disk import BlockDisk
from services.memory.adapters.nbd_device import NbdDevices
from services.memory.adapters.remote_memory import NbdRemoteMemory
from services.memory.adapters.swap import Swap
from services.memory.journal import Journal, Record
from services.memory.mapper import NAME, Host, SwapDevice, check_name

SERVICE_LOCK: Final = "memory-service.lock"
"""Held by the service of this host. No swap device has a name with a hyphen, whose lock would be this one."""
_PAUSE_S: Final = 0.1


class DeviceBusyError(Exception):
    """Another process acts on the swap device at the moment."""


def kernel_host() -> Host:
    """The kernel of this host; needs CAP_SYS_ADMIN.

    Raises:
        NbdDeviceError: its NBD client is not there.
        OSError: it cannot be asked.
    """
    return Host(DeviceMapper(), Swap(), NbdRemoteMemory(NbdDevices()), BlockDisk())


class SwapDevices:
    """What the journals in one directory name."""

    def __init__(self, directory: Path, make_host: Callable[[], Host] = kernel_host) -> None:
        """Nothing is read or made before it is asked for."""
        self.directory = directory
        self._make_host = make_host
        self._host: Host | None = None

    def names(self) -> list[str]:
        """Of all that have a journal."""
        return sorted(file.stem for file in self.directory.glob("*.json") if NAME.fullmatch(file.stem))

    def record(self, name: str) -> Record | None:
        """What the journal says now; None: there is none of this boot.

        Raises:
            JournalError: it cannot be read.
        """
        return self._journal(name).read()

    @property
    def service_runs(self) -> bool | None:
        """Whether the service of this host maps slabs; None: this user cannot know."""
        lock = self.directory / SERVICE_LOCK
        if lock.exists() and not os.access(lock, os.R_OK | os.W_OK):
            return None
        return is_locked(lock)

    def unlocked(self, name: str) -> SwapDevice:
        """A device to read from.

        Raises:
            NbdDeviceError, OSError: as of `kernel_host`.
            JournalError: its journal cannot be read.
        """
        self._host = self._host or self._make_host()
        return SwapDevice(name, self._journal(name), self._host)

    @contextmanager
    def locked(self, name: str, within_s: float = 0.0) -> Iterator[SwapDevice]:
        """A device to act on while inside.

        Raises:
            DeviceBusyError: another process acts on it, all this time.
            SwapDeviceError: a name that does not do.
            NbdDeviceError, OSError, JournalError: as of `unlocked`.
        """
        check_name(name)
        attempts = 1 + round(within_s / _PAUSE_S)
        self.directory.mkdir(parents=True, exist_ok=True)
        try:
            lock = FileLock(
                self._path(name, "lock"), f"pid {os.getpid()}".encode(), attempts=attempts, pause_s=_PAUSE_S
            )
        except LockHeldError as error:
            raise DeviceBusyError(f"{error.holder.decode(errors='replace') or 'another process'} acts on it") from error
        try:
            yield self.unlocked(name)
        finally:
            lock.release()

    def _journal(self, name: str) -> Journal:
        return Journal(self._path(name, "json"))

    def _path(self, name: str, suffix: str) -> Path:
        return self.directory / f"{name}.{suffix}"

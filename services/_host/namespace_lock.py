"""One writer per network namespace: a lock that a second reconciler cannot take, under whatever name it knows it.

flock(2): held by the open file, so it ends with the process, however that ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from services._host.netns import netns_path
from services._runtime.service.app import UnusableSettingsError

_ATTEMPTS: Final = 10
_PAUSE_S: Final = 0.02
"""A reconciler that was killed lets go when the kernel has cleared up after it."""


def lock_path(state_directory: Path, netns: str | None, role: str = "reconciler") -> Path:
    """The lock file of a namespace: by the namespace's identity, as one has many names.

    Raises:
        OSError: there is no such namespace.
    """
    file = netns_path(netns) if netns is not None else Path("/proc/self/ns/net")
    # In a directory of their own: the agents' locks lie in the one above.
    return state_directory / "network" / f"{role}-{file.stat().st_ino}.lock"


class NamespaceLock:
    """A lock, held, with its holder written in."""

    def __init__(self, path: Path, *, node: str, netns: str | None) -> None:
        """Take it.

        Raises:
            UnusableSettingsError: another process holds it, or the file cannot be written.
        """
        where = f"the network namespace {netns!r}" if netns else "this host's network namespace"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UnusableSettingsError(
                f"the lock {path} cannot be written ({error.strerror}): run as root, or set "
                "TURNBUCKLE_RECONCILER__STATE_DIRECTORY to a directory that can be, best on a tmpfs"
            ) from error
        if not _take(self._descriptor):
            holder = _read(self._descriptor)
            os.close(self._descriptor)
            who = f"pid {holder.get('pid', 'unknown')}, node {holder.get('node', 'unknown')!r}"
            raise UnusableSettingsError(
                f"{where} is managed by another reconciler ({who}, since {holder.get('started', 'unknown')}; "
                f"lock {path}): stop it (kill {holder.get('pid', 'PID')}), or set TURNBUCKLE_RECONCILER__NETNS"
            )
        started = datetime.now(UTC).isoformat(timespec="seconds")
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, json.dumps({"pid": os.getpid(), "node": node, "started": started}).encode(), 0)

    def release(self) -> None:
        """Let another one have it; again: nothing."""
        if self._descriptor >= 0:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
        self._descriptor = -1


def _take(descriptor: int) -> bool:
    for attempt in range(_ATTEMPTS):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if attempt + 1 < _ATTEMPTS:
                time.sleep(_PAUSE_S)
        else:
            return True
    return False


def _read(descriptor: int) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        content = json.loads(os.pread(descriptor, 4096, 0))
        if isinstance(content, dict):
            return content
    return {}

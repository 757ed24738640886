"""One writer per network namespace: a lock that excludes a second reconciler, under whatever name it uses it."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from services._host.netns import netns_path
from services._runtime.file_lock import FileLock, LockHeldError
from services._runtime.service.app import UnusableSettingsError

_ATTEMPTS: Final = 10
_PAUSE_S: Final = 0.02


def lock_path(state_directory: Path, netns: str | None, role: str = "reconciler") -> Path:
    """The lock file of a namespace: by the namespace's identity, as one has many names.

    Raises:
        OSError: there is no such namespace.
    """
    file = netns_path(netns) if netns is not None else Path("/proc/self/ns/net")
    # In a directory of their own: the agents' locks lie in the one above.
    return state_directory / "network" / f"{role}-{file.stat().st_ino}.lock"


class NamespaceLock(FileLock):
    """A reconciler's lock of its namespace, with its holder written in."""

    def __init__(self, path: Path, *, node: str, netns: str | None) -> None:
        """Take the lock.

        Raises:
            UnusableSettingsError: another process holds it, or the file cannot be written.
        """
        started = datetime.now(UTC).isoformat(timespec="seconds")
        own = json.dumps({"pid": os.getpid(), "node": node, "started": started}).encode()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            super().__init__(path, own, attempts=_ATTEMPTS, pause_s=_PAUSE_S)
        except LockHeldError as error:
            holder = _parsed(error.holder)
            where = f"the network namespace {netns!r}" if netns else "this host's network namespace"
            who = f"pid {holder.get('pid', 'unknown')}, node {holder.get('node', 'unknown')!r}"
            raise UnusableSettingsError(
                f"{where} is managed by another reconciler ({who}, since {holder.get('started', 'unknown')}; "
                f"lock {path}): stop it (kill {holder.get('pid', 'PID')}), or set TURNBUCKLE_RECONCILER__NETNS"
            ) from error
        except OSError as error:
            raise UnusableSettingsError(
                f"the lock {path} cannot be written ({error.strerror}): run as root, or set "
                "TURNBUCKLE_RECONCILER__STATE_DIRECTORY to a directory that can be, best on a tmpfs"
            ) from error


def _parsed(holder: bytes) -> dict[str, Any]:
    with suppress(ValueError):
        content = json.loads(holder)
        if isinstance(content, dict):
            return content
    return {}

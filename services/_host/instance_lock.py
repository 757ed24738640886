"""One instance per resource of this host: a lock file that a second agent, reconciler or fast path cannot take."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from services._host.netns import netns_path
from services._runtime.file_lock import FileLock, LockHeldError
from services._runtime.settings_error import UnusableSettingsError

ATTEMPTS: Final = 10
"""A process that was killed holds its lock for a moment; a watchdog tests one by taking it for some microseconds."""
_PAUSE_S: Final = 0.02
_FORMAT: Final = 1


class AnotherInstanceError(UnusableSettingsError):
    """Another process holds the lock."""


class InstanceLock(FileLock):
    """A lock file, held, with its holder written in: format, pid, node, start."""

    def __init__(  # noqa: PLR0913 - the parts of one sentence
        self, path: Path, *, role: str, node: str, managed: str, remedy: str, setting: str, attempts: int = ATTEMPTS
    ) -> None:
        """Take it.

        Args:
            path: the file; made if needed, never removed.
            role: what this process is, such as "agent".
            node: name of this host, for the holder's line.
            managed: what is locked, with its verb, such as "the containers of Docker are".
            remedy: what to do instead; ``{pid}`` in it becomes the holder's.
            setting: the variable of the directory that the file lies in.
            attempts: how often it is tried, 20 ms apart.

        Raises:
            AnotherInstanceError: another process holds it.
            UnusableSettingsError: the file cannot be written.
        """
        started = datetime.now(UTC).isoformat(timespec="seconds")
        own = json.dumps({"format": _FORMAT, "pid": os.getpid(), "node": node, "started": started}).encode()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            super().__init__(path, own, attempts=attempts, pause_s=_PAUSE_S)
        except LockHeldError as error:
            holder = _parsed(error.holder)
            who = "another process"
            if holder:
                who = f"pid {holder.get('pid')}, node {holder.get('node')!r}, since {holder.get('started')}"
            advice = remedy.format(pid=holder.get("pid", "PID"))
            raise AnotherInstanceError(f"{managed} managed by another {role} ({who}; lock {path}): {advice}") from error
        except OSError as error:
            raise UnusableSettingsError(
                f"the lock {path} cannot be written ({error.strerror}): run as root, or set {setting} to a directory "
                "that can be, best on a tmpfs such as /run"
            ) from error


def namespace_lock_path(state_directory: Path, netns: str | None, role: str = "reconciler") -> Path:
    """The lock file of a network namespace: by the namespace's identity, as one has many names.

    Raises:
        OSError: there is no such namespace.
    """
    file = netns_path(netns) if netns is not None else Path("/proc/self/ns/net")
    # In a directory of their own: the agents' locks lie in the one above.
    return state_directory / "network" / f"{role}-{file.stat().st_ino}.lock"


def namespace_words(netns: str | None) -> str:
    """A network namespace in a sentence, with its verb."""
    return f"the network namespace {netns!r} is" if netns else "this host's network namespace is"


def _parsed(holder: bytes) -> dict[str, Any]:
    with suppress(ValueError):
        content = json.loads(holder)
        if isinstance(content, dict):
            return content
    return {}

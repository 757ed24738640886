"""One agent per host: locks that a second one cannot take, and the state directory that they lie in."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from services._runtime.file_lock import FileLock, LockHeldError
from services._runtime.service.app import UnusableSettingsError
from services.agent.state_files import StateDirectory, as_json, read_holder

DOCKER_LOCK: Final = "docker.lock"
PODS_LOCK: Final = "pods.lock"
_ATTEMPTS: Final = 10
_PAUSE_S: Final = 0.01
"""A watchdog tests whether the lock is held by taking it for some microseconds."""


def exec_lock(state_directory: Path, managed_root: str) -> Path:
    """The lock of a managed root."""
    return state_directory / f"exec-{managed_root}.lock"


def prepare_state(state_directory: Path, managed_root: str) -> StateDirectory:
    """Make the directory of a managed root.

    Raises:
        UnusableSettingsError: it cannot be made or written.
    """
    state = StateDirectory(state_directory / managed_root)
    try:
        state.make()
    except OSError as error:
        raise UnusableSettingsError(
            f"the state directory {state_directory} cannot be written ({error.strerror}): run as root, or set "
            "TURNBUCKLE_AGENT__STATE_DIRECTORY to a directory that can be, best on a tmpfs such as /run"
        ) from error
    return state


class HostLock(FileLock):
    """A lock file, held, with its holder written in."""

    def __init__(self, path: Path, *, node: str, what: str, remedy: str) -> None:
        """Take it.

        Args:
            path: the file; made if needed, never removed.
            node: this agent's node, for the holder's line.
            what: what is locked, in words, such as "the containers of Docker".
            remedy: what to do instead, in words.

        Raises:
            UnusableSettingsError: another process holds it, or the file cannot be written.
        """
        started = datetime.now(UTC).isoformat(timespec="seconds")
        own = as_json({"pid": os.getpid(), "node": node, "started": started})
        try:
            super().__init__(path, own, attempts=_ATTEMPTS, pause_s=_PAUSE_S)
        except LockHeldError as error:
            holder = read_holder(path)
            who = f"node {holder.node!r}, pid {holder.pid}, since {holder.started}" if holder else "another process"
            raise UnusableSettingsError(
                f"{what} are managed by another agent ({who}; lock {path}): {remedy}"
            ) from error
        except OSError as error:
            raise UnusableSettingsError(
                f"{path} cannot be written ({error.strerror}): run as root, or set TURNBUCKLE_AGENT__STATE_DIRECTORY"
            ) from error

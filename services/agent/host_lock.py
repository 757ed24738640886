"""One agent per host: locks that a second one cannot take, and the state directory that they lie in."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from services._host.instance_lock import InstanceLock
from services._runtime.settings_error import UnusableSettingsError
from services.agent.state_files import StateDirectory

DOCKER_LOCK: Final = "docker.lock"
PODS_LOCK: Final = "pods.lock"


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


class HostLock(InstanceLock):
    """A lock file of this host's only agent."""

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
        setting = "TURNBUCKLE_AGENT__STATE_DIRECTORY"
        super().__init__(path, role="agent", node=node, managed=f"{what} are", remedy=remedy, setting=setting)

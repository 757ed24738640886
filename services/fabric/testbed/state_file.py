"""State file of a lab: what it has created, written before it is created, so that `down` finds it after a crash.

``/run/turnbuckle-lab/<prefix>/``: ``lab.json`` (the state), ``lock`` and ``log/``. Gone after a reboot, as is the lab.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from pydantic import BaseModel, Field, ValidationError

from services._host.netns import NETNS_DIRECTORY
from services._runtime.atomic_file import write_atomically
from services._runtime.command.errors import CommandError, UnavailableError
from services._runtime.file_lock import lock_present_file
from services.fabric.testbed.faults import Fault
from services.fabric.testbed.processes import StartedProcess
from services.fabric.testbed.topology import LabSettings

DIRECTORY: Final = Path("/run/turnbuckle-lab")


class LabState(BaseModel):
    """Everything that `down` needs."""

    settings: LabSettings
    realtime: bool = False
    """Whether FRR really runs under SCHED_RR."""
    ready: bool = False
    """False: `up` is at work, or was ended."""
    ready_after_s: float = 0.0
    namespaces: dict[str, int | None] = Field(default_factory=dict)
    """Name -> inode; None: about to be made."""
    processes: list[StartedProcess] = Field(default_factory=list)
    faults: list[Fault] = Field(default_factory=list)
    """In force, in the order in which they were injected."""


def directory_of(prefix: str) -> Path:
    """Directory of a lab's state file and logs."""
    return DIRECTORY / prefix


def load(prefix: str) -> LabState | None:
    """The state; None: there is no such lab.

    Raises:
        CommandError: it cannot be read.
    """
    path = directory_of(prefix) / "lab.json"
    try:
        return LabState.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise CommandError(f"{path} cannot be read ({error}); remove it and what it names by hand") from error


def save(state: LabState) -> None:
    """Write it atomically."""
    directory = directory_of(state.settings.prefix)
    directory.mkdir(parents=True, exist_ok=True)
    write_atomically(directory / "lab.json", state.model_dump_json(indent=1))


def forget(prefix: str) -> None:
    """Remove state file and logs."""
    shutil.rmtree(directory_of(prefix), ignore_errors=True)


def prefixes() -> list[str]:
    """Labs that have a state file."""
    return sorted(path.parent.name for path in DIRECTORY.glob("*/lab.json"))


@contextmanager
def lock_lab(prefix: str) -> Iterator[None]:
    """Exclude other `lab` commands from this lab.

    Raises:
        UnavailableError: no right.
        CommandError: another one is at work.
    """
    if os.geteuid() != 0:
        raise UnavailableError("the lab makes network namespaces: sudo turnbuckle lab ...")
    path = DIRECTORY / f"{prefix}.lock"
    try:
        DIRECTORY.mkdir(parents=True, exist_ok=True)
        descriptor = lock_present_file(path)
    except FileNotFoundError:  # the last holder has just removed the directory
        descriptor = None
    if descriptor is None:
        raise CommandError(f"another `turnbuckle lab` is at work on {prefix}; wait for it")
    try:
        yield
        if load(prefix) is None:
            path.unlink(missing_ok=True)
            with suppress(OSError):
                DIRECTORY.rmdir()
    finally:
        os.close(descriptor)


def inode_of(netns: str) -> int | None:
    """Identity of a named namespace; None: there is none."""
    try:
        return (NETNS_DIRECTORY / netns).stat().st_ino
    except FileNotFoundError:
        return None

"""Who owns which sandboxes, so that those of a killed run are found and removed.

Each run has a record, a file named after its token, written before its first control group and removed after its last
one. A record whose owner is gone belongs to nobody: its control groups are killed and removed. Namespaces need no
record: they have no names, and end with their processes.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from services._host.boot_records import boot_id, is_hidden, start_ticks, write_record
from services._host.cgroupfs import CgroupLayout, ManagedCgroup

SANDBOXES_ROOT: Final = "turnbuckle-cells"
"""Below each controller's mount. Not the agent's managed root: these are no containers of an application."""
RECORDS: Final = Path("/run/turnbuckle/cells")


@dataclass(frozen=True, slots=True)
class Owner:
    """A process, distinguished from a later one with the same pid."""

    pid: int
    started_ticks: int
    boot: str
    pid_namespace: str

    def __post_init__(self) -> None:
        """Refuse what is no process: a file or a label that others may write says so.

        Raises:
            TypeError: its id or start is no whole number.
        """
        for name, value in (("pid", self.pid), ("started_ticks", self.started_ticks)):
            if type(value) is not int:
                raise TypeError(f"{name} of an owner is no whole number: {value!r:.40}")

    @classmethod
    def this_process(cls) -> Owner:
        """The calling process."""
        return cls(os.getpid(), start_ticks(os.getpid()) or 0, boot_id(), _pid_namespace())

    def is_gone(self) -> bool:
        """Whether it has surely ended.

        One that we cannot see is left alone: of another PID namespace, or of another user where /proc hides these.
        """
        if (boot := boot_id()) and self.boot != boot:
            return True
        if self.pid_namespace != _pid_namespace() or is_hidden(self.pid):
            return False
        return start_ticks(self.pid) != self.started_ticks


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run's place."""

    token: str
    root: str
    owner: Owner

    @property
    def directory(self) -> str:
        """The run's control group, relative to each mount."""
        return f"{self.root}/{self.token}"

    def write(self, records: Path) -> None:
        """Store it, whole or not at all.

        Raises:
            OSError: the directory cannot be written.
        """
        records.mkdir(mode=0o755, parents=True, exist_ok=True)
        write_record(records / f"{self.token}.json", asdict(self))

    @classmethod
    def read(cls, path: Path) -> RunRecord | None:
        """A record; None where it has vanished or is not a valid one."""
        try:
            plain = json.loads(path.read_text(encoding="utf-8"))
            return cls(plain["token"], plain["root"], Owner(**plain["owner"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None


def forget(record: RunRecord, records: Path) -> None:
    """Remove a record."""
    (records / f"{record.token}.json").unlink(missing_ok=True)


def sweep(layout: CgroupLayout, records: Path = RECORDS) -> list[str]:
    """Remove what killed runs have left; returns their tokens."""
    swept = []
    for path in sorted(records.glob("*.json")):
        record = RunRecord.read(path)
        if record is not None and record.owner.is_gone() and remove_run(layout, record):
            forget(record, records)
            swept.append(record.token)
    return swept


def remove_run(layout: CgroupLayout, record: RunRecord) -> bool:
    """Kill and remove all control groups of a run, the deepest first. False: something would not die."""
    found: set[str] = set()
    for mount in layout.distinct_mounts():
        top = Path(mount.directory)
        for directory, _, _ in os.walk(top / record.directory):
            found.add(str(Path(directory).relative_to(top)))
    deepest_first = sorted(found, key=lambda directory: directory.count("/"), reverse=True)
    removed = [ManagedCgroup(layout, directory).end() for directory in deepest_first]
    return all(removed)


def _pid_namespace() -> str:
    return str(Path("/proc/self/ns/pid").readlink())

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

from services._host.boot_records import write_record
from services._host.cgroupfs import CgroupLayout, ManagedCgroup
from services._host.owner import Owner

SANDBOXES_ROOT: Final = "turnbuckle-cells"
"""Below each controller's mount. Not the agent's managed root: these are no containers of an application."""
RECORDS: Final = Path("/run/turnbuckle/cells")


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

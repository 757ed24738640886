"""What the mapper has made of a disk, so that its next start knows it: one JSON file per swap device.

An entry is written before the act that it announces, as in the fabric's journal. What the kernel held is forgotten at
the next boot, as the kernel does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from services._host.boot_records import boot_id, write_record
from services.memory.core.block_path import Layout
from services.memory.core.mapping import Slab, State

VERSION: Final = 1


class JournalError(Exception):
    """The journal cannot be used; the message says what would help."""


@dataclass(frozen=True, slots=True)
class Record:
    """A swap device."""

    layout: Layout
    slabs: tuple[Slab, ...]
    attached: bool
    """All of it was made, and the kernel swaps to it; otherwise it is being made, or taken apart."""

    def with_slab(self, slab: Slab) -> Record:
        """With another state of one slab."""
        return replace(self, slabs=(*self.slabs[: slab.number], slab, *self.slabs[slab.number + 1 :]))


class Journal:
    """The file of one swap device."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def read(self) -> Record | None:
        """The last record of this boot; None: there is none.

        Raises:
            JournalError: it cannot be read, or has another format.
        """
        try:
            plain = json.loads(self._file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise JournalError(f"{self._file} cannot be read: {error}") from error
        try:
            return _record(plain) if plain["boot_id"] == boot_id() else None
        except (KeyError, TypeError, ValueError) as error:
            raise JournalError(f"{self._file} is none that this version of turnbuckle wrote: {error!r}") from error

    def write(self, record: Record) -> None:
        """Announce a state.

        Raises:
            JournalError: it cannot be written; what it announces must not happen.
        """
        plain = asdict(record)
        for slab in plain["slabs"]:
            slab["state"] = slab["state"].value
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            write_record(self._file, {"version": VERSION, "boot_id": boot_id(), **plain})
        except OSError as error:
            raise JournalError(f"{self._file} cannot be written: {error.strerror}") from error

    def remove(self) -> None:
        """Everything is undone.

        Raises:
            JournalError: it cannot be removed.
        """
        try:
            self._file.unlink(missing_ok=True)
        except OSError as error:
            raise JournalError(f"{self._file} cannot be removed: {error.strerror}") from error


def _record(plain: Mapping[str, Any]) -> Record:
    if plain["version"] != VERSION:
        raise ValueError(f"version {plain['version']}")
    layout = Layout(**plain["layout"])
    slabs = tuple(Slab(**{**slab, "state": State(slab["state"])}) for slab in plain["slabs"])
    if [slab.number for slab in slabs] != list(range(layout.slabs)):
        raise ValueError("its slabs are not those of its layout")
    return Record(layout, slabs, plain["attached"])

"""What `up` has done on this host, so that `down` undoes exactly that: one JSON file per host.yaml name.

An entry is written before the act it announces. An act that did not happen is then undone in vain, which is harmless;
one without an entry would stay for ever. What the kernel held is forgotten at the next boot, as the kernel does; files
stay.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

from services._host.boot_records import boot_id, write_record
from services._runtime.command.errors import CommandError
from services._runtime.file_lock import lock_present_file
from services.fabric import resources
from services.fabric.resources import Directory, Entry, Resource, TextFile

VERSION: Final = 1

_KINDS: Final[dict[str, type[Resource]]] = {
    name: kind for name, kind in vars(resources).items() if isinstance(kind, type) and issubclass(kind, Resource)
}


class JournalError(CommandError):
    """The journal cannot be used."""


class Journal:
    """The entries of one host.yaml, in the order in which they were made."""

    def __init__(self, file: Path, entries: dict[str, Entry] | None = None) -> None:
        self._file = file
        self.entries: dict[str, Entry] = entries or {}

    @classmethod
    def load(cls, directory: Path, name: str) -> Journal:
        """Read a host's journal; an empty one if there is none.

        Raises:
            JournalError: it cannot be read or has another format.
        """
        file = directory / f"{name}.json"
        try:
            plain = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return cls(file)
        except (OSError, ValueError) as error:
            raise JournalError(f"{file} cannot be read: {error}") from error
        try:
            return cls(file, _entries(plain))
        except (KeyError, TypeError) as error:
            raise JournalError(f"{file} is none that this version of turnbuckle wrote: {error!r}") from error

    def record(self, resource: Resource, before: str | None) -> None:
        """Announce an act. A second one on the same resource keeps the value before the first.

        Raises:
            JournalError: it cannot be written; the act must not happen.
        """
        earlier = self.entries.get(resource.key)
        entry = Entry(resource, earlier.before, earlier.resource.value) if earlier else Entry(resource, before)
        self.entries[resource.key] = entry
        self._save()

    def forget(self, key: str) -> None:
        """An act is undone.

        Raises:
            JournalError: it cannot be written.
        """
        if self.entries.pop(key, None):
            self._save()

    def replace(self, entries: dict[str, Entry]) -> None:
        """Put earlier entries back.

        Raises:
            JournalError: it cannot be written.
        """
        self.entries = dict(entries)
        self._save()

    def made(self, key: str | None) -> bool:
        """Whether we made this resource where there was none."""
        entry = self.entries.get(key) if key is not None else None
        return entry is not None and entry.before is None

    def _save(self) -> None:
        try:
            if not self.entries:
                self._file.unlink(missing_ok=True)
                return
            rows = [
                {**to_plain(entry.resource), "before": entry.before, "former": entry.former}
                for entry in self.entries.values()
            ]
            write_record(self._file, {"version": VERSION, "boot_id": boot_id(), "entries": rows})
        except OSError as error:
            raise JournalError(f"{self._file} cannot be written: {error.strerror}") from error


def to_plain(resource: Resource) -> dict[str, Any]:
    """A resource as plain JSON types."""
    return {"resource": type(resource).__name__} | {
        field.name: getattr(resource, field.name) for field in fields(resource)
    }


def from_plain(plain: dict[str, Any]) -> Resource:
    """The resource that `to_plain` wrote.

    Raises:
        KeyError: of an unknown kind.
        TypeError: fields are missing or unknown.
    """
    given: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in plain.items()}
    return _KINDS[given.pop("resource")](**given)


def _entries(plain: dict[str, Any]) -> dict[str, Entry]:
    if plain["version"] != VERSION:
        raise TypeError(f"version {plain['version']}")
    same_boot = plain["boot_id"] == boot_id()
    found = {}
    for row in plain["entries"]:
        before, former = row.pop("before"), row.pop("former")
        resource = from_plain(row)
        if same_boot or isinstance(resource, TextFile | Directory):
            found[resource.key] = Entry(resource, before, former)
    return found


@contextmanager
def locked(directory: Path, name: str) -> Iterator[None]:
    """Keep a second `fabric up` or `down` of this name out.

    Raises:
        JournalError: another one is at work, or the directory cannot be written.
    """
    file = directory / f"{name}.lock"
    try:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
        descriptor = lock_present_file(file)
    except OSError as error:
        raise JournalError(f"{directory} cannot be written ({error.strerror}): run it as root") from error
    if descriptor is None:
        raise JournalError(f"another `turnbuckle fabric` is at work on {name}: wait until it has ended")
    try:
        yield
    finally:
        if not (directory / f"{name}.json").exists():
            file.unlink(missing_ok=True)
        os.close(descriptor)

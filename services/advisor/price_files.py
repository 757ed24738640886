"""Price snapshot files: read from several directories, written once and never changed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Final

from services._runtime.atomic_file import write_atomically
from services._runtime.telemetry.logging import Logger
from services.advisor.core.catalogue import BadCatalogueError, Listing, Snapshot, listing, parse_snapshot, to_plain
from services.advisor.core.questions import BadQuestionError
from services.advisor.records import Records

SHIPPED: Final = Path(__file__).parent / "data" / "prices"
_MAX_BYTES: Final = 64 << 20


def user_directory(environ: Mapping[str, str]) -> Path:
    """Directory of refreshed snapshots: ``$XDG_DATA_HOME/turnbuckle/prices``, by default below ``~/.local/share``."""
    base = environ.get("XDG_DATA_HOME")
    home = Path(environ.get("HOME", "~")).expanduser()
    return (Path(base) if base else home / ".local" / "share") / "turnbuckle" / "prices"


def directories(given: str, environ: Mapping[str, str] | None = None) -> tuple[Path, ...]:
    """Directories of snapshots: the shipped one, and the given or the user's."""
    own = Path(given).expanduser() if given else user_directory(os.environ if environ is None else environ)
    return SHIPPED, own


def read_text(path: Path) -> str:
    """A file's text.

    Raises:
        BadCatalogueError: it cannot be read.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise BadCatalogueError(f"{path} is larger than {_MAX_BYTES} bytes: this is no price file")
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise BadCatalogueError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadCatalogueError(f"{path} is no UTF-8 text (byte {error.start})") from error


def read_snapshots(places: Iterable[Path]) -> tuple[list[Snapshot], list[str]]:
    """All snapshots in the directories, and the errors of unusable files."""
    found: list[Snapshot] = []
    problems: list[str] = []
    for path in sorted(one for place in places for one in place.glob("*.json")):
        try:
            found.append(parse_snapshot(read_text(path), str(path)))
        except BadCatalogueError as error:
            problems.append(str(error))
    return found, problems


def write_snapshot(snapshot: Snapshot, place: Path) -> tuple[Path, bool]:
    """Write a snapshot as a new file.

    Returns:
        The file, and whether it is new: the same prices of the same day are written once.

    Raises:
        BadCatalogueError: the directory cannot be written.
    """
    try:
        place.mkdir(parents=True, exist_ok=True)
        for path in sorted(place.glob(f"{snapshot.source}-{snapshot.as_of.isoformat()}*.json")):
            if parse_snapshot(read_text(path), str(path)).digest == snapshot.digest:
                return path, False
        path = place / f"{snapshot.source}-{snapshot.as_of.isoformat()}.json"
        if path.exists():
            path = path.with_name(f"{path.stem}-{snapshot.digest[:8]}.json")
        write_atomically(path, json.dumps(to_plain(snapshot), indent=1) + "\n")
    except OSError as error:
        raise BadCatalogueError(f"{place} cannot be written: {error.strerror}") from error
    return path, True


def parse_day(text: str) -> date:
    """A day in ISO 8601.

    Raises:
        BadCatalogueError: it is not a date.
    """
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise BadCatalogueError(f"{text!r} is no day: write such as 2026-11-21") from error


class Catalogue:
    """All snapshots, and the listing of a day."""

    def __init__(self, directory: str, preferred: Sequence[str], log: Logger) -> None:
        self._places = directories(directory)
        self._preferred = tuple(preferred)
        self._log = log
        self._seen: frozenset[tuple[Path, int]] = frozenset()
        self._cache: tuple[object, Listing] | None = None
        self.snapshots: tuple[Snapshot, ...] = ()

    def read(self) -> None:
        """Read the files again if any was added, removed or changed. Unusable files are logged and skipped."""
        seen = frozenset(_written(self._places))
        if seen == self._seen:
            return
        found, problems = read_snapshots(self._places)
        for problem in problems:
            self._log.error("price_file_unusable", error=problem)
        self.snapshots = tuple(found)
        self._seen = seen  # last: this runs in a thread, and `listing` caches by this key
        self._log.info("prices_read", snapshots=len(found))

    def listing(self, as_of: date | None, records: Records, preferred: Sequence[str] = ()) -> Listing:
        """The prices of a day, or the newest; machines found only in records have the newest record's price.

        Args:
            as_of: The day; None: the newest.
            records: All records.
            preferred: Sources before those of the settings, best first.

        Raises:
            BadQuestionError: there are no prices of that day or before, or no such source.
        """
        sources = {one.source for one in self.snapshots}
        if unknown := sorted(set(preferred) - sources):
            raise BadQuestionError(
                f"no prices of {', '.join(map(repr, unknown))} are known (sources: {', '.join(sorted(sources))})"
            )
        key = (as_of, self._seen, id(records), len(records.priced), tuple(preferred))
        if self._cache is None or self._cache[0] != key:
            found = listing(self.snapshots, (*preferred, *self._preferred), as_of, records.priced)
            if as_of is not None and not found.machines:
                oldest = min((one.as_of for one in self.snapshots), default=None)
                raise BadQuestionError(f"no prices are known of {as_of} or before (the oldest are of {oldest})")
            self._cache = (key, found)
        return self._cache[1]


def _written(places: Iterable[Path]) -> Iterator[tuple[Path, int]]:
    """Files, and when each was written, ns."""
    for path in (one for place in places for one in place.glob("*.json")):
        with suppress(OSError):  # deleted meanwhile
            yield path, path.stat().st_mtime_ns

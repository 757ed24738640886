"""The service's price catalogue: snapshots reloaded when their files change."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import date
from pathlib import Path

from services._runtime.telemetry.logging import Logger
from services.advisor.core.catalogue import Listing, Snapshot, listing
from services.advisor.core.questions import BadQuestionError
from services.advisor.price_files import directories, read_snapshots
from services.advisor.records import Records


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

    def listing(self, as_of: date | None, records: Records) -> Listing:
        """The prices of a day, or the newest; machines found only in records have the newest record's price.

        Raises:
            BadQuestionError: there are no prices of that day or before.
        """
        key = (as_of, self._seen, id(records), len(records.priced))
        if self._cache is None or self._cache[0] != key:
            found = listing(self.snapshots, self._preferred, as_of, records.priced)
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

"""Snapshots of the folded log in the object store: the leader stores them, and every replica starts from the newest.

They hold nothing that the log does not: whatever is wrong with one, it is said, and the log is replayed from further
back. The log that a snapshot was made of is known again by the entry that stands at its sequence.
"""

from __future__ import annotations

import asyncio
import hashlib
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Final

from schemas.codec import CodecError, decode
from schemas.scheduling import ScheduleEvent
from schemas.streams import SCHEDULE_STREAM, SNAPSHOTS
from services._runtime.bus.api import BusError, ObjectInfo, ObjectStoreFullError
from services._runtime.service.app import Runtime
from services.scheduler.core import snapshot as snapshot_file
from services.scheduler.core.snapshot import Snapshot, SnapshotError
from services.scheduler.leading import Lead, rare_collections
from services.scheduler.settings import SchedulerSettings

KEPT: Final = 2
"""The older one covers a crash while the next is stored."""
_LAST_SHARE: Final = 0.4
"""Of the time for a graceful shutdown: so long a stop waits for its snapshot."""
_FORMAT: Final = "format"


@cache
def format_name() -> str:
    """Of snapshots that this program can use: by their fields, and by the code that folds, which may have had a bug."""
    digest = hashlib.sha256(snapshot_file.shape().encode())
    for source in sorted(Path(snapshot_file.__file__).parent.glob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


class Snapshots:
    """Stores the leader's state every so many entries, and finds what a start begins from."""

    def __init__(self, runtime: Runtime[SchedulerSettings], lead: Lead) -> None:
        self._bus = runtime.bus
        self._objects = runtime.bus.objects(SNAPSHOTS)
        self._log = runtime.log
        self._lead = lead
        self._every = runtime.settings.snapshot_entries
        self._last_within_s = _LAST_SHARE * runtime.settings.shutdown_grace_s
        self._tried = 0
        """Sequence of the latest attempt to store one."""
        self._due = asyncio.Event()
        self._storing = asyncio.Lock()
        self.sequence = 0
        """Of the newest snapshot that this replica has stored, or has begun from; 0: none."""
        self.failed = runtime.telemetry.counter("turnbuckle_scheduler_failed_snapshots_total")
        runtime.telemetry.observe("turnbuckle_scheduler_snapshot_sequence", lambda: self.sequence)
        runtime.telemetry.observe(
            "turnbuckle_scheduler_snapshot_age_entries", lambda: max(0, lead.sequence - self.sequence)
        )

    # -- at a start ---------------------------------------------------------------------------------------------------

    async def newest(self) -> Snapshot | None:
        """The newest one that is whole, of this program's format and of the log as it is now; None: there is none."""
        try:
            found = await self._newest_first()
        except BusError as error:
            self._unusable("of any sequence", error)
            return None
        for info in found:
            try:
                with rare_collections():
                    snapshot = await self._load(info)
            except (BusError, SnapshotError) as error:
                self._unusable(info.name, error)
            else:
                self.sequence = self._tried = snapshot.sequence
                return snapshot
        return None

    async def _load(self, info: ObjectInfo) -> Snapshot:
        if (name := info.attributes.get(_FORMAT)) != format_name():
            raise SnapshotError(f"its format is {name}, this program's {format_name()}")
        stored = await self._objects.get(info.name)
        if stored is None:
            raise SnapshotError("it has been removed")
        snapshot = await asyncio.to_thread(snapshot_file.decode, stored.data)
        entry = await self._bus.event_at(SCHEDULE_STREAM, snapshot.sequence)
        if entry is None:
            raise SnapshotError(f"the log has no entry {snapshot.sequence}")
        if hashlib.sha256(entry.data).hexdigest() != snapshot.entry_sha256:
            raise SnapshotError(f"entry {snapshot.sequence} is another one: the log was made anew or restored")
        return snapshot

    def _unusable(self, name: str, error: Exception) -> None:
        self.failed.value += 1
        then = "an older one, or the whole log, takes its place"
        self._log.warning("snapshot_unusable", snapshot=name, why=str(error), consequence=then)

    async def _newest_first(self) -> list[ObjectInfo]:
        return sorted((await self._objects.names()).values(), key=lambda info: -info.revision)

    # -- while it leads -----------------------------------------------------------------------------------------------

    def on_change(self) -> None:
        """The log has grown."""
        if self._lead.sequence - self._tried >= self._every:
            self._due.set()

    async def run(self) -> None:
        """Store one whenever it is due, until cancelled."""
        self.on_change()
        while True:
            await self._due.wait()
            self._due.clear()
            await self.store()

    async def store_last(self) -> None:
        """At a stop: what has happened since the latest one, if it can be stored soon."""
        if not self._bus.connected:
            self._not_stored("not connected")
            return
        try:
            async with asyncio.timeout(self._last_within_s):
                await self.store()
        except TimeoutError:
            self._not_stored(f"not within {self._last_within_s:g} s")

    async def store(self) -> None:
        """Store the state as it is now; what fails is said: without it a start takes longer, and no more."""
        async with self._storing:
            snapshot, last = self._lead.snapshot(), self._lead.last_entry
            if last is None or snapshot.sequence in {self.sequence, 0}:
                return
            self._tried = snapshot.sequence
            try:
                digest = await self._digest(snapshot.sequence, last)
                data = await asyncio.to_thread(snapshot_file.encode, replace(snapshot, entry_sha256=digest))
                await self._put(str(snapshot.sequence), data)
            except (BusError, SnapshotError) as error:
                self._not_stored(str(error))
                return
            self.sequence = snapshot.sequence
            self._log.info("snapshot_stored", sequence=snapshot.sequence, size_bytes=len(data))

    async def _digest(self, sequence: int, last: tuple[int, ScheduleEvent]) -> str:
        """SHA-256 of the last entry as it is stored."""
        stored = await self._bus.event_at(SCHEDULE_STREAM, sequence)
        try:
            entry = None if stored is None else decode(stored.data)
        except CodecError as error:
            raise SnapshotError(f"entry {sequence} is garbage, and says nothing of the log") from error
        folded_sequence, folded = last
        same = isinstance(entry, ScheduleEvent) and (entry.leader, entry.time_ns) == (folded.leader, folded.time_ns)
        if stored is None or folded_sequence != sequence or not same:
            raise SnapshotError(f"entry {sequence} of the log is not the one that was folded")
        return hashlib.sha256(stored.data).hexdigest()

    async def _put(self, name: str, data: bytes) -> None:
        """Beside the newest one; in its place where both find no room."""
        for kept in range(KEPT - 1, -1, -1):
            for info in (await self._newest_first())[kept:]:
                await self._objects.delete(info.name)
            try:
                await self._objects.put(name, data, {_FORMAT: format_name()})
            except ObjectStoreFullError:
                if kept == 0:
                    raise
            else:
                return

    def _not_stored(self, why: str) -> None:
        self.failed.value += 1
        self._log.warning("snapshot_not_stored", why=why, consequence="a start replays more of the log")

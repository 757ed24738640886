"""Outbox: publishes the journal's records to the bus, each once, also across crashes.

The server forgets ids after the stream's duplicate window (two minutes). So before a record is sent the stream is asked
whether it holds the job's subject already. Within the window the id deduplicates two senders; beyond it the lookup
does. Collectors need no other coordination.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

from schemas.jobs import JobRecord
from schemas.streams import JOB_STREAM, RUN_STREAM
from services._runtime.bus.api import Bus, BusUnavailableError
from services._runtime.telemetry.tracing import Carrier, attached, span
from services.collector.write_ahead_log import Journal, Record, record_id, record_key, record_subject

_BATCH: Final = 100
"""Far below what the bus's outbox holds (10,000), and a batch takes far less than the duplicate window."""
BATCH_S: Final = 30.0
"""Seconds for one batch; well below the duplicate window."""


class Publisher:
    """Publishes a journal's unpublished records. One per journal."""

    def __init__(self, journal: Journal, bus: Bus, on_published: Callable[[Record, bool], None] | None = None) -> None:
        """Publish from a journal to a bus.

        Args:
            journal: source of the records.
            bus: destination.
            on_published: called for each record in the stream, with whether this publisher sent it.
        """
        self._journal = journal
        self._bus = bus
        self._on_published = on_published
        self._causes: dict[str, Carrier] = {}
        """Traces of records that began before publication, by key."""
        self._queued: dict[str, Record] = {}
        """Enqueued in the bus's outbox; must not be enqueued again."""
        self.published = 0
        self.found = 0
        """Records that were in the stream already."""

    async def publish(self, timeout_s: float = BATCH_S) -> int:
        """Publish all unpublished records; returns the number of records marked.

        Raises:
            BusError: no connection, or no acknowledgement within `timeout_s` per batch. Call again later.
            JournalError: a mark could not be written.
        """
        marked = await self._mark_acknowledged(timeout_s)
        if not self._journal.waiting:
            return marked
        waiting = self._journal.unpublished()
        while batch := list(islice(waiting, _BATCH)):
            if not self._bus.connected:
                raise BusUnavailableError(f"no connection to NATS: {self._journal.waiting} records wait")
            held = await asyncio.gather(*(self._is_held(record) for record in batch))
            marked += self._mark([record for record, is_held in zip(batch, held, strict=True) if is_held], sent=False)
            self._enqueue([record for record, is_held in zip(batch, held, strict=True) if not is_held])
            marked += await self._mark_acknowledged(timeout_s)
        return marked

    def link_trace(self, records: Iterable[Record], cause: Carrier) -> None:
        """Publish these records as part of a trace; the traces of others begin when they are published."""
        if cause:
            self._causes |= {record_key(record): cause for record in records}

    def _enqueue(self, records: list[Record]) -> None:
        if not records:
            return
        with span("collector.publish", turnbuckle__records=len(records)):
            for record in records:
                key, subject = record_key(record), record_subject(self._bus.root, record)
                with attached(self._causes.pop(key, None)):
                    self._bus.publish_event(subject, record, message_id=record_id(record))
                self._queued[key] = record

    async def _mark_acknowledged(self, timeout_s: float) -> int:
        """Wait until the server has acknowledged the enqueued records, then mark them."""
        if not self._queued:
            return 0
        await self._bus.flush(timeout_s)
        marked = self._mark(list(self._queued.values()), sent=True)
        self._queued.clear()
        return marked

    def _mark(self, records: list[Record], *, sent: bool) -> int:
        if not records:
            return 0
        self._journal.mark_published([record_key(record) for record in records])
        for record in records:
            self._causes.pop(record_key(record), None)
        self.published += len(records) if sent else 0
        self.found += 0 if sent else len(records)
        if self._on_published is not None:
            for record in records:
                self._on_published(record, sent)
        return len(records)

    async def _is_held(self, record: Record) -> bool:
        stream = JOB_STREAM if isinstance(record, JobRecord) else RUN_STREAM
        return await self._bus.is_stored(stream, record_subject(self._bus.root, record))

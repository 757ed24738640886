"""From the journal to the bus, each record once, however often we die in between.

The server forgets ids after the stream's duplicate window (two minutes). So before a record is sent the stream is asked
whether it holds the job's subject already. What two senders do within the window of each other, the id sorts out;
what lies further apart, the question. Nothing else has to be agreed upon between collectors.
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
    """Sends what a journal holds and the bus does not. One per journal."""

    def __init__(self, journal: Journal, bus: Bus, told: Callable[[Record, bool], None] | None = None) -> None:
        """Remember what to do.

        Args:
            journal: what to publish.
            bus: where to.
            told: called for each record that the stream now holds, with whether it was us who sent it.
        """
        self._journal = journal
        self._bus = bus
        self._told = told
        self._causes: dict[str, Carrier] = {}
        """Of records whose trace has begun before they are published."""
        self._queued: dict[str, Record] = {}
        """Handed to the bus, which keeps and sends them in its own time: they must not be handed over again."""
        self.published = 0
        self.found = 0
        """Records that the stream held already."""

    async def publish(self, timeout_s: float = BATCH_S) -> int:
        """Send everything that waits; returns how many records were marked.

        Raises:
            BusError: the bus is away, or does not take them within `timeout_s` a batch. Call again later.
            JournalError: a mark could not be written.
        """
        marked = await self._settle(timeout_s)
        if not self._journal.waiting:
            return marked
        waiting = self._journal.unpublished()
        while batch := list(islice(waiting, _BATCH)):
            if not self._bus.connected:
                raise BusUnavailableError(f"no connection to NATS: {self._journal.waiting} records wait")
            held = await asyncio.gather(*(self._is_held(record) for record in batch))
            marked += self._mark([record for record, is_held in zip(batch, held, strict=True) if is_held], sent=False)
            self._hand_over([record for record, is_held in zip(batch, held, strict=True) if not is_held])
            marked += await self._settle(timeout_s)
        return marked

    def follow(self, records: Iterable[Record], cause: Carrier) -> None:
        """Publish these as a part of this trace; of others the trace begins when they are published."""
        if cause:
            self._causes |= {record_key(record): cause for record in records}

    def _hand_over(self, records: list[Record]) -> None:
        if not records:
            return
        with span("collector.publish", turnbuckle__records=len(records)):
            for record in records:
                key, subject = record_key(record), record_subject(self._bus.root, record)
                with attached(self._causes.pop(key, None)):
                    self._bus.publish_event(subject, record, message_id=record_id(record))
                self._queued[key] = record

    async def _settle(self, timeout_s: float) -> int:
        """Wait until the server has acknowledged what was handed over, then mark it."""
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
        if self._told is not None:
            for record in records:
                self._told(record, sent)
        return len(records)

    async def _is_held(self, record: Record) -> bool:
        stream = JOB_STREAM if isinstance(record, JobRecord) else RUN_STREAM
        return await self._bus.is_stored(stream, record_subject(self._bus.root, record))

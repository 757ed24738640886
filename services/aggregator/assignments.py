"""Assignments of jobs in the bucket `aggregations`: each written over its own revision only; events."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from schemas.aggregations import Aggregation, AggregationChange, AggregationEvent
from schemas.streams import AGGREGATIONS
from schemas.subjects import AGGREGATION_EVENTS
from services._runtime.bus.api import Bus, BusError, RevisionConflictError
from services._runtime.clock import Clock

_ATTEMPTS: Final = 3


class LeadLostError(Exception):
    """Another instance leads: nothing may be written any more."""


@dataclass(slots=True)
class _Known:
    record: Aggregation
    revision: int
    """0: it is not stored."""
    unsaved: bool = False


class Assignments:
    """What is known of each job, and stored of it."""

    def __init__(self, bus: Bus, clock: Clock, incarnation: int, leads: Callable[[], Awaitable[bool]]) -> None:
        self._bus = bus
        self._clock = clock
        self._incarnation = incarnation
        self._leads = leads
        self._known: dict[str, _Known] = {}
        self._published = 0

    async def read(self) -> list[Aggregation]:
        """Take over what is stored; returns what is not marked as lost yet.

        Raises:
            BusError: it cannot be read.
        """
        entries = await self._bus.bucket(AGGREGATIONS).entries()
        self._known = {
            job: _Known(entry.message, entry.revision)
            for job, entry in entries.items()
            if isinstance(entry.message, Aggregation) and entry.message.job == job
        }
        return [known.record for known in self._known.values() if not known.record.lost]

    def get(self, job: str) -> Aggregation | None:
        """The last assignment of a job."""
        known = self._known.get(job)
        return known.record if known is not None else None

    def lost_before(self, time_ns: int) -> list[str]:
        """Jobs whose ranges were lost before this, and not placed again."""
        return [job for job, each in self._known.items() if each.record.lost and each.record.time_ns < time_ns]

    async def store(self, record: Aggregation) -> None:
        """Store an assignment.

        Raises:
            LeadLostError: another instance leads.
            BusError: it is not known to be stored; `store_rest` tries again.
        """
        record = record.model_copy(update={"incarnation": self._incarnation, "time_ns": self._clock.time_ns()})
        known = self._known.setdefault(record.job, _Known(record, 0))
        known.record, known.unsaved = record, True
        await self._write(known)

    async def store_rest(self) -> None:
        """Store what could not be stored; raises what `store` does."""
        for known in list(self._known.values()):
            if known.unsaved:
                await self._write(known)

    async def remove(self, job: str) -> None:
        """Forget a job.

        Raises:
            LeadLostError: another instance leads.
            BusError: its entry is there still.
        """
        known = self._known[job]
        if not known.revision:  # perhaps written, and not acknowledged
            await self._adopt_revision(known)
        for _ in range(_ATTEMPTS):
            try:
                if known.revision:
                    await self._bus.bucket(AGGREGATIONS).delete(job, known.revision)
            except RevisionConflictError:
                await self._adopt_revision(known)
            else:
                del self._known[job]
                return
        raise BusError(f"the assignment of {job} cannot be removed: others write it")

    async def _write(self, known: _Known) -> None:
        bucket, job = self._bus.bucket(AGGREGATIONS), known.record.job
        for _ in range(_ATTEMPTS):
            try:
                if known.revision:
                    known.revision = await bucket.update(job, known.record, known.revision)
                else:
                    known.revision = await bucket.create(job, known.record)
            except RevisionConflictError:
                await self._adopt_revision(known)
            else:
                known.unsaved = False
                return
        raise BusError(f"the assignment of {job} cannot be written: others write it")

    async def _adopt_revision(self, known: _Known) -> None:
        """Of a write of this instance whose acknowledgement was lost.

        Raises:
            LeadLostError: another instance leads now; or another has led since this one took the lead, which had lapsed
                unnoticed: what that one has placed is not known here.
        """
        if not await self._leads():
            raise LeadLostError(f"another instance has written the assignment of {known.record.job}")
        found = await self._bus.bucket(AGGREGATIONS).get(known.record.job)
        record = found.message if found is not None else None
        written = record if isinstance(record, Aggregation) and record.job == known.record.job else None
        if written is not None and written.incarnation != self._incarnation:
            raise LeadLostError(f"another instance has led meanwhile, and written {known.record.job}")
        known.revision = found.revision if found is not None else 0

    def publish(
        self, change: AggregationChange, record: Aggregation, reason: str, *, bit_identical: bool = True
    ) -> None:
        """Publish what became of a job's ranges."""
        self._published += 1
        event = AggregationEvent(
            job=record.job,
            attempt=record.attempt,
            change=change,
            reason=reason,
            addresses=tuple(sorted({each.address for each in record.ranges})) if not record.lost else (),
            bit_identical=bit_identical,
            time_ns=self._clock.time_ns(),
        )
        subject = AGGREGATION_EVENTS.subject(self._bus.root, job=record.job)
        self._bus.publish_event(subject, event, message_id=f"aggregate-{self._incarnation}-{self._published}")

"""What people want to know: the queue, and everything about one job. A view takes a thread, and serves for a second."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from schemas.codec import CodecError, decode
from schemas.message import Message
from schemas.scheduling import (
    JobExplainReply,
    JobExplainRequest,
    JobHistoryLine,
    QueuedJob,
    QueueReply,
    QueueRequest,
    ScheduleEvent,
)
from schemas.streams import SCHEDULE_STREAM
from services._runtime.bus.api import BusError, Delivery, RequestRefusedError
from services._runtime.service.app import Runtime
from services.scheduler.core.history import lines
from services.scheduler.core.jobs import Phase
from services.scheduler.core.views import View, plain, view
from services.scheduler.leading import Lead
from services.scheduler.settings import SchedulerSettings

KEPT_S: Final = 1.0
SOON_S: Final = 0.4
"""For so long the reply to a submission waits for a forecast."""
MOST_JOBS: Final = 500
MOST_BYTES: Final = 700_000
"""Of the jobs in a reply, by an estimate that is too large rather than too small: a message has a mebibyte."""
READ_AT_ONCE: Final = 20
"""Entries of the log, for a job's history."""
_JOB_BYTES: Final = 2_000
_NAME_BYTES: Final = 16


class Queries:
    """Answers `queue` and `explain` while this replica leads."""

    def __init__(self, runtime: Runtime[SchedulerSettings], lead: Lead) -> None:
        self._bus = runtime.bus
        self._lead = lead
        self._policy = runtime.settings.policy
        self._clock = runtime.clock
        self._view: asyncio.Task[View] | None = None
        self._made: tuple[int, float] = (-1, 0.0)
        """Sequence and time of the view."""

    async def queue(self, delivery: Delivery) -> Message:
        """Jobs in their order, and nodes."""
        if not isinstance(delivery.message, QueueRequest):
            raise RequestRefusedError(400, f"unexpected {delivery.message.type_name}")
        seen = await self._seen()
        names = [*seen.order(), *seen.ended(delivery.message.ended_within_s)]
        jobs = tuple(_bounded(seen, names))
        nodes = seen.nodes()
        taken = sum(live.job.slots for live in seen.state.live.values() if live.job.phase is not Phase.WAITING)
        return QueueReply(
            leader=self._lead.name,
            time_ns=self._clock.time_ns(),
            policy=self._policy,
            slots=sum(node.slots for node in nodes if not node.why),
            taken_slots=taken,
            jobs=jobs,
            nodes=nodes,
            left_out=len(names) - len(jobs),
            links=seen.state.traffic.scores,
        )

    async def explain(self, delivery: Delivery) -> Message:
        """One job, what it was submitted with, and what happened to it."""
        if not isinstance(delivery.message, JobExplainRequest):
            raise RequestRefusedError(400, f"unexpected {delivery.message.type_name}")
        name, seen = delivery.message.job, await self._seen()
        state = seen.state
        live = state.live.get(name)
        if live is None and name not in state.finished:
            raise RequestRefusedError(404, f"no job is named {name}")
        spec = (live or state.finished[name].last).spec
        return JobExplainReply(job=seen.queued(name), spec=spec, history=await self._history(name))

    async def _history(self, job: str) -> tuple[JobHistoryLine, ...]:
        """From the log itself; entries that were removed from it are left out."""
        sequences, entries = self._lead.histories.of(job), list[tuple[int, ScheduleEvent]]()
        for place in range(0, len(sequences), READ_AT_ONCE):
            asked = (self._entry(sequence) for sequence in sequences[place : place + READ_AT_ONCE])
            entries += [found for found in await asyncio.gather(*asked) if found is not None]
        return lines(job, entries)

    async def _entry(self, sequence: int) -> tuple[int, ScheduleEvent] | None:
        try:
            stored = await self._bus.event_at(SCHEDULE_STREAM, sequence)
            entry = None if stored is None else decode(stored.data)
        except (BusError, CodecError) as error:
            raise RequestRefusedError(503, f"its history cannot be read: {error}") from error
        return (sequence, entry) if isinstance(entry, ScheduleEvent) else None

    async def queued_soon(self, name: str) -> QueuedJob:
        """One job, without a forecast where that takes too long."""
        making = asyncio.ensure_future(self._seen())
        done, _ = await asyncio.wait({making}, timeout=SOON_S)
        if done:
            return making.result().queued(name)
        making.cancel()
        return plain(self._lead.state, name, self._now_s())

    async def _seen(self) -> View:
        now_s = self._clock.monotonic()
        sequence, made_s = self._made
        if self._view is None or sequence != self._lead.sequence or now_s - made_s > KEPT_S:
            self._made = (self._lead.sequence, now_s)
            making = asyncio.to_thread(view, self._lead.state, self._now_s(), self._policy)
            self._view = asyncio.ensure_future(making)
        return await asyncio.shield(self._view)

    def _now_s(self) -> float:
        return max(self._lead.state.now_s, self._lead.time_ns() / 1e9)


def _bounded(seen: View, names: list[str]) -> Iterator[QueuedJob]:
    """As many as a reply can hold."""
    size_bytes = 0
    for name in names[:MOST_JOBS]:
        job = seen.queued(name)
        size_bytes += _JOB_BYTES + _NAME_BYTES * (len(job.nodes) + sum(len(span.nodes) for span in job.spans))
        if size_bytes > MOST_BYTES:
            return
        yield job

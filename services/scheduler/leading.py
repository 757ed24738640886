"""The log and its one writer: every replica folds the stream `SCHEDULE`, and who appends next in it leads.

An append names the sequence that it follows, so of two that believe to lead one is refused, and steps down. The leader
shows every 2 s that it is alive; after 6 s of silence another one appends an empty entry, and leads from there on.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from schemas.codec import encode
from schemas.message import Message
from schemas.scheduling import ScheduleEvent, SchedulerHeartbeat
from schemas.streams import SCHEDULE_STREAM
from schemas.subjects import SCHEDULE, SCHEDULER_HEARTBEATS
from services._runtime.bus.api import BusUnavailableError, Delivery, RevisionConflictError, Subscription
from services._runtime.bus.random_tokens import random_token
from services._runtime.service.app import Runtime
from services._runtime.telemetry.logging import LogLimiter, log_once
from services.scheduler.core.history import Histories
from services.scheduler.core.snapshot import Snapshot
from services.scheduler.core.state import Folding, State, fold
from services.scheduler.settings import SchedulerSettings

HEARTBEAT_S: Final = 2.0
LEAD_AFTER_S: Final = 6.0
_POLL_S: Final = 0.25
_AGAIN_S: Final = 0.5
FULL_SHARE: Final = 0.8
"""Of the stream's bytes: from here on it has to be said."""
_COLLECTED_AT: Final = 200_000
"""Objects, during the replay."""


@contextmanager
def rare_collections() -> Iterator[None]:
    """A replay makes millions of objects and no cycles: a search for these at every 700th takes a third of its time."""
    before = gc.get_threshold()
    gc.set_threshold(_COLLECTED_AT, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


class LeadLostError(Exception):
    """Another replica has appended: this one does not lead any more, and nothing of its entry was stored."""


class Lead:
    """The state as of the last entry of the log, and whether this replica may append the next one."""

    def __init__(self, runtime: Runtime[SchedulerSettings]) -> None:
        self._bus = runtime.bus
        self._clock = runtime.clock
        self._log = runtime.log
        self._limiter = LogLimiter()
        self._subject = SCHEDULE.subject(runtime.bus.root)
        self.name = f"{runtime.settings.replica}-{random_token()[:6]}"
        """In the log: that of this process, also if two were given the same name."""
        self.state = State()
        self.histories = Histories()
        self.sequence = 0
        """Of the last entry of the stream, garbage included."""
        self.stored_bytes = 0
        """Of all entries."""
        self.leading = False
        self.leader = ""
        """Who wrote the last entry."""
        self.last_entry: tuple[int, ScheduleEvent] | None = None
        """With its sequence; None: it was not read since the start."""
        self._last_ns = 0
        self._changed = asyncio.Event()
        self._replaying: Folding | None = None
        self._alive_s = self._clock.monotonic()
        self._ticked_s = self._alive_s
        self._appends = 0
        self._appending = asyncio.Lock()
        self.appended = runtime.telemetry.counter("turnbuckle_scheduler_appended_entries_total")
        self.conflicts = runtime.telemetry.counter("turnbuckle_scheduler_append_conflicts_total")

    async def start(self, snapshot: Snapshot | None = None) -> list[Subscription]:
        """Replay the log, behind a snapshot if there is one, and subscribe to heartbeats; returns the subscriptions."""
        self._bus.on_reconnect(self._on_reconnect)
        heartbeats = SCHEDULER_HEARTBEATS.subject(self._bus.root)
        hearing = await self._bus.subscribe(heartbeats, self._on_heartbeat)
        begun_s = self._clock.monotonic()
        if snapshot is not None:
            self._begin_at(snapshot)
        after, self._replaying = self.sequence, Folding.of(self.state)
        with rare_collections():
            replay = await self._bus.replay(SCHEDULE_STREAM, self._on_entry, self._on_garbage, after=after)
            await replay.caught_up()
        self.state, self._replaying = self._replaying.state(), None
        self._alive_s = self._clock.monotonic()
        took_s = round(self._alive_s - begun_s, 3)
        self._log.info("log_replayed", sequence=self.sequence, behind_snapshot=after, took_s=took_s)
        return [hearing, replay]

    def _begin_at(self, snapshot: Snapshot) -> None:
        self.state, self.histories = snapshot.state, Histories(dict(snapshot.mentions))
        self.sequence, self.leader = snapshot.sequence, snapshot.state.leader
        self.stored_bytes, self._last_ns = snapshot.stored_bytes, snapshot.time_ns

    def snapshot(self) -> Snapshot:
        """All that follows from the log until now. What it holds is never changed: it can be written in a thread."""
        return Snapshot(
            self.sequence, self._last_ns, self.stored_bytes, mentions=self.histories.mentions(), state=self.state
        )

    def time_ns(self) -> int:
        """Now, for the next entry: never before the last one."""
        return max(self._clock.time_ns(), self._last_ns)

    @property
    def share_of_stream(self) -> float:
        """Of what the stream may hold: beyond it the oldest entries are removed."""
        return self.stored_bytes / SCHEDULE_STREAM.max_bytes

    async def until(self, *, leading: bool) -> None:
        """Return once this replica leads, or does not any more."""
        while self.leading is not leading:
            await self._changed.wait()

    async def run(self) -> None:
        """Show that the leader is alive, or take its place; until cancelled."""
        if self.sequence == 0:  # the log is empty: no leader to wait for
            await self._take()
        while True:
            now_s = self._clock.monotonic()
            if self.leading:
                await self._show(now_s)
            elif now_s - self._alive_s >= LEAD_AFTER_S:
                await self._take()
            await self._clock.sleep_until(self._clock.monotonic() + (_POLL_S if not self.leading else HEARTBEAT_S))

    async def append(self, entry: ScheduleEvent) -> int:
        """Store an entry behind the last one and fold it in; returns its sequence.

        Raises:
            LeadLostError: another replica was faster.
        """
        async with self._appending:
            if not self.leading:
                raise LeadLostError(f"{self.leader} leads")
            return await self._append(entry)

    async def _append(self, entry: ScheduleEvent) -> int:
        """As `append`. Repeated until the server says what became of it: under the same id it is stored once."""
        expected, self._appends = self.sequence, self._appends + 1
        message_id = f"{self.name}.{self._appends}"
        while True:
            try:
                sequence = await self._bus.append(SCHEDULE_STREAM, self._subject, entry, expected, message_id)
                break
            except RevisionConflictError as error:
                self.conflicts.value += 1
                self._set_leading(leading=False, why=str(error))
                raise LeadLostError(str(error)) from error
            except BusUnavailableError as error:
                log_once(self._log.warning, self._limiter, "append_repeated", 10.0, error=str(error))
                await self._clock.sleep_until(self._clock.monotonic() + _AGAIN_S)
        self.appended.value += 1
        self._alive_s = self._clock.monotonic()
        if sequence > self.sequence:  # else the replay was faster than the acknowledgement
            self._fold(entry, sequence, len(encode(entry)))
        return sequence

    async def _take(self) -> None:
        try:
            async with self._appending:
                await self._append(ScheduleEvent(leader=self.name, time_ns=self.time_ns()))
        except LeadLostError:
            self._alive_s = self._clock.monotonic()
            return
        self._ticked_s = self._clock.monotonic()
        self._set_leading(leading=True, why="no other replica leads")
        self._beat()

    async def _show(self, now_s: float) -> None:
        """A heartbeat; after a pause, in which another may have taken the lead, an entry first."""
        paused = now_s - self._ticked_s >= LEAD_AFTER_S
        self._ticked_s = now_s
        if paused:
            try:
                await self.append(ScheduleEvent(leader=self.name, time_ns=self.time_ns()))
            except LeadLostError:
                return
        self._beat()

    def _beat(self) -> None:
        heartbeat = SchedulerHeartbeat(leader=self.name, sequence=self.sequence, time_ns=self._clock.time_ns())
        self._bus.publish(SCHEDULER_HEARTBEATS.subject(self._bus.root), heartbeat)

    def _on_heartbeat(self, delivery: Delivery) -> None:
        heartbeat = delivery.message
        if not isinstance(heartbeat, SchedulerHeartbeat) or heartbeat.leader == self.name:
            return
        if heartbeat.sequence >= self.sequence:  # else it was paused, and does not know yet that another leads
            self._alive_s = self._clock.monotonic()
            if heartbeat.sequence > self.sequence:
                self._set_leading(leading=False, why=f"{heartbeat.leader} leads")

    def _on_reconnect(self) -> None:
        """The silence was this replica's own."""
        self._alive_s = self._clock.monotonic()

    async def _on_entry(self, delivery: Delivery) -> None:
        message: Message = delivery.message
        if delivery.sequence <= self.sequence:
            return
        if not isinstance(message, ScheduleEvent):
            self._on_garbage(delivery.sequence)
            return
        self._alive_s = self._clock.monotonic()
        self._fold(message, delivery.sequence, delivery.size_bytes)
        if self.leading and message.leader != self.name:
            self._set_leading(leading=False, why=f"{message.leader} has appended")

    def _on_garbage(self, sequence: int) -> None:
        """Nothing that an entry can be; the next one comes behind it."""
        self.sequence = max(self.sequence, sequence)

    def _fold(self, entry: ScheduleEvent, sequence: int, size_bytes: int) -> None:
        self.sequence, self.leader, self.last_entry = sequence, entry.leader, (sequence, entry)
        self.stored_bytes += size_bytes
        self._last_ns = max(self._last_ns, entry.time_ns)
        self.histories.fold(entry, sequence)
        if self._replaying is None:
            self.state = fold(self.state, [entry])
        else:
            self._replaying.fold(entry)
        if entry.submitted:
            self.histories.forget(self._replaying or self.state)

    def _set_leading(self, *, leading: bool, why: str) -> None:
        if self.leading is leading:
            return
        self.leading = leading
        self._log.info("lead_taken" if leading else "lead_lost", leader=self.name, sequence=self.sequence, why=why)
        self._changed.set()
        self._changed = asyncio.Event()

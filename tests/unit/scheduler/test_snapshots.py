"""Schedulers that store snapshots and start from them, on a bus in memory; and every way in which one is of no use."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from schemas.codec import decode, encode
from schemas.scheduling import (
    ControlRequest,
    JobAction,
    JobExplainReply,
    JobExplainRequest,
    JobHistoryLine,
    JobPhase,
    QueueReply,
    QueueRequest,
    ScheduleEvent,
    SubmitRequest,
)
from schemas.services.scheduler import SCHEDULER_CONTROL, SCHEDULER_EXPLAIN, SCHEDULER_QUEUE, SCHEDULER_SUBMIT
from schemas.streams import SNAPSHOTS
from services._runtime.bus.api import BusUnavailableError, ObjectInfo, StoredObject
from services._runtime.clock import SystemClock
from services._runtime.service.app import Runtime
from services._runtime.telemetry.logging import get_logger
from services._runtime.telemetry.telemetry import Telemetry
from services.scheduler.core.snapshot import Snapshot
from services.scheduler.core.state import State, fold
from services.scheduler.leading import Lead
from services.scheduler.service import Scheduler
from services.scheduler.settings import SchedulerSettings
from services.scheduler.snapshots import Snapshots, format_name
from tests.support.bus.bus_memory import MemoryBus
from tests.support.bus.memory_broker import MemoryBroker, MemoryStream
from tests.support.bus.memory_objects import MemoryObjectStore
from tests.support.deadline import until
from tests.support.scheduled_jobs import entry, job_spec
from tests.support.service_in_process import run_in_process

pytestmark = pytest.mark.virtual_time

EVERY = 3


def configured(every: int) -> SchedulerSettings:
    """A snapshot each so many entries, and time enough for the one at a stop."""
    return SchedulerSettings.load({}, snapshot_entries=every, shutdown_grace_s=120.0)


def stream(broker: MemoryBroker) -> MemoryStream:
    found = broker.stream("TB_SCHEDULE")
    assert found is not None
    return found


def store(broker: MemoryBroker) -> MemoryObjectStore:
    found = broker.object_store(SNAPSHOTS.bucket_name("tb"))
    assert found is not None
    return found


def folded(broker: MemoryBroker) -> State:
    """The whole log's."""
    decoded = [decode(data) for _, data in stream(broker).messages]
    return fold(State(), [each for each in decoded if isinstance(each, ScheduleEvent)])


@asynccontextmanager
async def leading(broker: MemoryBroker, every: int = EVERY) -> AsyncIterator[tuple[Scheduler, MemoryBus]]:
    """A scheduler that leads, and a person's bus."""
    settings = configured(every)
    broker.services.clear()  # of the one before
    async with run_in_process(Scheduler, settings, MemoryBus(broker)) as scheduler:
        person = MemoryBus(broker)
        await until(lambda: "scheduler" in broker.services and scheduler.lead.leading, what="it leads")
        yield scheduler, person


async def submit(bus: MemoryBus, job: str) -> None:
    await bus.request(SCHEDULER_SUBMIT.template.subject("tb"), SubmitRequest(spec=job_spec(job)), timeout_s=60)


async def cancel(bus: MemoryBus, job: str) -> None:
    request = ControlRequest(job=job, action=JobAction.CANCEL)
    await bus.request(SCHEDULER_CONTROL.template.subject("tb"), request, timeout_s=60)


async def history(bus: MemoryBus, job: str) -> tuple[JobHistoryLine, ...]:
    reply = await bus.request(SCHEDULER_EXPLAIN.template.subject("tb"), JobExplainRequest(job=job), timeout_s=60)
    assert isinstance(reply, JobExplainReply)
    return reply.history


async def phases(bus: MemoryBus) -> dict[str, JobPhase]:
    reply = await bus.request(SCHEDULER_QUEUE.template.subject("tb"), QueueRequest(), timeout_s=60)
    assert isinstance(reply, QueueReply)
    return {job.job: job.phase for job in reply.jobs}


async def a_log(broker: MemoryBroker, jobs: int = 6) -> None:
    """Jobs that wait, as there are no nodes; a snapshot at every third entry and at the end."""
    async with leading(broker) as (_, person):
        for number in range(jobs):
            await submit(person, f"j{number}")


def started(broker: MemoryBroker) -> tuple[Lead, Snapshots]:
    """A replica, not yet started."""
    settings = configured(EVERY)
    runtime = Runtime(settings, MemoryBus(broker), SystemClock(), Telemetry(), get_logger("scheduler"))
    lead = Lead(runtime)
    return lead, Snapshots(runtime, lead)


async def begin(broker: MemoryBroker) -> tuple[Lead, Snapshot | None]:
    """A replica that follows: what it has read, and from which snapshot on."""
    lead, snapshots = started(broker)
    async with asyncio.timeout(60):
        found = await snapshots.newest()
        await lead.start(found)
    return lead, found


async def test_the_leader_stores_every_so_many_entries_and_at_its_stop() -> None:
    broker = MemoryBroker()
    async with leading(broker) as (_, person):
        for number in range(3 * EVERY):
            await submit(person, f"j{number}")
        await until(lambda: len(store(broker).objects) == 2, what="an older one beside the newest")
        before_stop = max(map(int, store(broker).objects))
        await submit(person, "last")
        last = len(stream(broker).messages)
        assert before_stop < last
    assert max(map(int, store(broker).objects)) == len(stream(broker).messages) >= last
    assert len(store(broker).objects) == 2


async def test_a_start_reads_only_what_follows_and_knows_the_same() -> None:
    broker = MemoryBroker()
    await a_log(broker)
    kept = len(stream(broker).messages)
    async with leading(broker, every=1_000) as (scheduler, person):
        await submit(person, "later")
        await cancel(person, "j1")
        expected = {job: await history(person, job) for job in ("j0", "j1", "later")}
        assert scheduler.lead.state == folded(broker)
        store(broker).objects.clear()  # so that its stop finds nothing to keep beside its own
    del store(broker).objects[str(len(stream(broker).messages))]
    whole, none = await begin(broker)
    assert none is None

    await a_snapshot(broker, kept)
    lead, found = await begin(broker)
    assert found is not None
    assert (found.sequence, lead.sequence) == (kept, len(stream(broker).messages))
    assert lead.state == whole.state == folded(broker)
    assert (lead.stored_bytes, lead.leader, lead.time_ns() > 0) == (whole.stored_bytes, whole.leader, True)
    assert lead.histories.mentions() == whole.histories.mentions()
    async with leading(broker) as (_, person):
        assert {job: await history(person, job) for job in expected} == expected
        assert [line.what for line in expected["j1"]] == ["submitted", "asked to cancel", "job cancelled"]
        assert (await phases(person))["later"] is JobPhase.WAITING


async def a_snapshot(broker: MemoryBroker, sequence: int) -> None:
    """As a leader would have stored it at this entry."""
    messages, later = stream(broker).messages[:sequence], stream(broker).messages[sequence:]
    stream(broker).messages[sequence:] = []
    lead, snapshots = started(broker)
    await lead.start()
    await snapshots.store()
    stream(broker).messages[:] = [*messages, *later]
    assert str(sequence) in store(broker).objects


async def test_who_follows_starts_from_it_and_stores_none() -> None:
    broker = MemoryBroker()
    await a_log(broker)
    held = dict(store(broker).objects)
    async with leading(broker, every=1_000) as (leader, person):
        settings = configured(1)
        async with run_in_process(Scheduler, settings, MemoryBus(broker)) as follower:
            assert follower.lead.state.live.keys() == leader.lead.state.live.keys()
            await submit(person, "later")
            await until(lambda: "later" in follower.lead.state.live, what="it follows")
            assert not follower.lead.leading
        assert store(broker).objects == held


# -- what is of no use -------------------------------------------------------------------------------------------------


def spoil(broker: MemoryBroker, name: str, data: bytes | None = None, **attributes: str) -> None:
    """Other bytes whose digest is right, or other attributes."""
    held = store(broker).objects[name]
    data = held.data if data is None else data
    info = dataclasses.replace(
        held.info, sha256=hashlib.sha256(data).hexdigest(), attributes={**held.info.attributes, **attributes}
    )
    store(broker).objects[name] = StoredObject(info, data)


def newest(broker: MemoryBroker) -> str:
    return str(max(map(int, store(broker).objects)))


async def replayed_whole(broker: MemoryBroker, why: str, caplog: pytest.CaptureFixture[str]) -> None:
    """None of the snapshots is used, each for a reason that is said."""
    lead, found = await begin(broker)
    assert found is None
    assert lead.state == folded(broker)
    assert lead.sequence == len(stream(broker).messages)
    assert why in caplog.readouterr().out


async def test_garbage_leaves_the_older_one(capsys: pytest.CaptureFixture[str]) -> None:
    broker = MemoryBroker()
    await a_log(broker)
    older, last = sorted(map(int, store(broker).objects))
    spoil(broker, str(last), b"garbage")
    lead, found = await begin(broker)
    assert found is not None
    assert (found.sequence, lead.state) == (older, folded(broker))
    assert "it cannot be read" in capsys.readouterr().out

    spoil(broker, str(older), store(broker).objects[str(older)].data[:-5])
    await replayed_whole(broker, "it is not whole", capsys)


async def test_a_damaged_one_is_found_by_its_digest(capsys: pytest.CaptureFixture[str]) -> None:
    broker = MemoryBroker()
    await a_log(broker)
    for name, held in store(broker).objects.items():
        damaged = held.data[:-1] + bytes([held.data[-1] ^ 1])
        store(broker).objects[name] = dataclasses.replace(held, data=damaged)
    await replayed_whole(broker, "its digest differs", capsys)


async def test_one_of_another_program_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    broker = MemoryBroker()
    await a_log(broker)
    for name in store(broker).objects:
        spoil(broker, name, format="0123")
    await replayed_whole(broker, f"its format is 0123, this program's {format_name()}", capsys)


async def test_a_log_that_was_made_anew_is_not_taken_for_the_old_one(capsys: pytest.CaptureFixture[str]) -> None:
    broker = MemoryBroker()
    await a_log(broker)
    subject = stream(broker).messages[0][0]
    stream(broker).messages.clear()
    stream(broker).headers.clear()
    for number in range(1, 40):
        broker.publish_event(subject, encode(entry(leader="another", time_ns=number)), f"new-{number}")
    await replayed_whole(broker, "is another one: the log was made anew or restored", capsys)


async def test_a_log_that_was_restored_without_its_end_is_not_taken_for_the_old_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    broker = MemoryBroker()
    await a_log(broker)
    oldest = min(map(int, store(broker).objects))
    del stream(broker).messages[oldest - 1 :]
    await replayed_whole(broker, f"the log has no entry {oldest}", capsys)


async def test_a_store_that_is_away_costs_time_only(capsys: pytest.CaptureFixture[str]) -> None:
    broker = MemoryBroker()
    await a_log(broker)

    class Away:
        async def names(self) -> dict[str, ObjectInfo]:
            raise BusUnavailableError("no answer")

    lead, snapshots = started(broker)
    snapshots._objects = Away()  # type: ignore[assignment]
    assert await snapshots.newest() is None
    await lead.start()
    await snapshots.store()
    assert lead.state == folded(broker)
    assert snapshots.failed.value == 2
    told = capsys.readouterr().out
    assert "snapshot_unusable" in told
    assert "snapshot_not_stored" in told


# -- what is not stored ------------------------------------------------------------------------------------------------


async def test_a_full_store_keeps_the_newest_alone() -> None:
    broker = MemoryBroker()
    await a_log(broker)
    held = store(broker)
    size_bytes = len(held.objects[newest(broker)].data)
    async with leading(broker) as (_, person):
        held.spec = dataclasses.replace(held.spec, max_bytes=size_bytes + size_bytes // 2)
        await submit(person, "later")
    assert list(held.objects) == [str(len(stream(broker).messages))]

    lead, snapshots = started(broker)
    await lead.start()
    held.spec = dataclasses.replace(held.spec, max_bytes=10)
    await snapshots.store()
    assert snapshots.failed.value == 1


async def test_an_entry_that_is_not_the_one_that_was_folded_is_no_mark(capsys: pytest.CaptureFixture[str]) -> None:
    """A server that has lost the end of its log has given its sequence to another entry."""
    broker = MemoryBroker()
    await a_log(broker)
    held = dict(store(broker).objects)
    lead, snapshots = started(broker)
    await lead.start()
    subject, _ = stream(broker).messages[-1]
    stream(broker).messages[-1] = (subject, encode(entry(leader="another")))
    await snapshots.store()
    stream(broker).messages[-1] = (subject, b"garbage")
    await snapshots.store()
    told = capsys.readouterr().out
    assert "is not the one that was folded" in told
    assert "is garbage" in told
    assert store(broker).objects == held


async def test_nothing_is_stored_of_an_empty_log_or_twice() -> None:
    broker = MemoryBroker()
    lead, snapshots = started(broker)
    await lead.start()
    await snapshots.store()
    assert store(broker).objects == {}

    await a_log(broker, jobs=1)
    revision = store(broker).revision
    lead, found = await begin(broker)
    assert found is not None
    async with leading(broker, every=1_000):
        pass
    assert store(broker).revision == revision + 1, "at the stop: the lead was taken by an entry"
    assert snapshots.failed.value == 0

"""From the journal to the bus: once each, whatever happens in between."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from schemas.jobs import JobRecord
from schemas.streams import JOB_STREAM, RUN_STREAM
from services._runtime.bus.api import BusUnavailableError
from services.collector.publishing import Publisher
from services.collector.write_ahead_log import Journal, read_journal
from tests.support.bus.bus_memory import MemoryBus
from tests.support.bus.memory_broker import MemoryBroker
from tests.support.job_records import job_record, run_profile
from tests.support.manual_clock import ManualClock

ROOT = "lab"


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal(tmp_path / "journal") as made:
        yield made


def stored(broker: MemoryBroker) -> list[str]:
    """Subjects in the streams, in order."""
    found = []
    for stream in (JOB_STREAM, RUN_STREAM):
        held = broker.stream(stream.stream_name(ROOT))
        assert held is not None
        found += [subject for subject, _ in held.messages]
    return found


async def test_everything_is_published_once_and_marked(journal: Journal) -> None:
    broker = MemoryBroker()
    bus = MemoryBus(broker, ROOT)
    for number in range(1, 251):
        journal.append(job_record(number))
    journal.append(run_profile(1))
    publisher = Publisher(journal, bus)

    assert await publisher.publish() == 251
    assert await publisher.publish() == 0
    assert len(stored(broker)) == len(set(stored(broker))) == 251
    assert stored(broker)[0] == "lab.evt.job.job-1"
    assert stored(broker)[-1] == "lab.evt.run.run-1"
    assert (journal.waiting, publisher.published, publisher.found) == (0, 251, 0)
    await bus.close(1)


async def test_killed_before_the_mark_nothing_is_stored_twice_even_after_the_window(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has forgotten the ids by then (120 s): the stream itself is asked."""
    clock = ManualClock()
    broker = MemoryBroker(clock=clock)
    bus = MemoryBus(broker, ROOT)
    for number in (1, 2, 3):
        journal.append(job_record(number))
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "mark_published", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            await Publisher(journal, bus).publish()
    assert len(stored(broker)) == 3
    assert journal.waiting == 3
    await clock.advance(3_600)

    told: list[tuple[str, bool]] = []
    again = Publisher(journal, bus, lambda record, sent: told.append((getattr(record, "job", ""), sent)))
    assert await again.publish() == 3
    assert told == [("job-1", False), ("job-2", False), ("job-3", False)]
    assert len(stored(broker)) == 3
    await bus.close(1)


async def test_two_journals_with_the_same_jobs(tmp_path: Path, journal: Journal) -> None:
    """A tool and the service, or two services, have seen the same job."""
    broker = MemoryBroker()
    buses = [MemoryBus(broker, ROOT), MemoryBus(broker, ROOT)]
    with Journal(tmp_path / "other") as other:
        for one in (journal, other):
            one.append(job_record(1))
        await Publisher(journal, buses[0]).publish()
        second = Publisher(other, buses[1])
        await second.publish()

        assert stored(broker) == ["lab.evt.job.job-1"]
        assert (second.published, second.found, other.waiting) == (0, 1, 0)
    for bus in buses:
        await bus.close(1)


async def test_a_bus_that_is_away_keeps_everything_waiting(journal: Journal) -> None:
    broker = MemoryBroker()
    bus = MemoryBus(broker, ROOT)
    journal.append(job_record(1))
    broker.stop()
    publisher = Publisher(journal, bus)
    for _ in range(3):
        with pytest.raises(BusUnavailableError):
            await publisher.publish(0.01)
    assert bus.counters["events_pending"] == 0, "nothing is handed to a bus that is away"

    broker.start()
    assert await publisher.publish() == 1
    assert stored(broker) == ["lab.evt.job.job-1"]
    await bus.close(1)


async def test_a_bus_that_goes_away_in_between_is_not_given_anything_twice(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = MemoryBroker()
    bus = MemoryBus(broker, ROOT)
    journal.append(job_record(1))
    publisher = Publisher(journal, bus)
    hand_over = bus.publish_event

    def cut(*arguments: object, **more: object) -> None:
        broker.stop()
        hand_over(*arguments, **more)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(bus, "publish_event", cut)
        with pytest.raises(BusUnavailableError):
            await publisher.publish(0.05)
    with pytest.raises(BusUnavailableError):
        await publisher.publish(0.05)
    assert bus.counters["events_pending"] == 1
    broker.start()
    assert await publisher.publish() == 1
    assert stored(broker) == ["lab.evt.job.job-1"]
    await bus.close(1)


async def test_what_arrives_meanwhile_is_published_next(journal: Journal) -> None:
    bus = MemoryBus(MemoryBroker(), ROOT)
    publisher = Publisher(journal, bus)
    assert await publisher.publish() == 0
    journal.append(job_record(1))
    assert await publisher.publish() == 1
    assert [type(record) for record in read_journal(journal.directory)] == [JobRecord]
    await bus.close(1)

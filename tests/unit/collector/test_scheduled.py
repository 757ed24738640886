"""Records of the scheduler's jobs: what becomes of one that has ended, and once each whatever the disk does."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from schemas.jobs import JobState, TaskFeatures
from schemas.scheduling import JobOutcome, task_of
from schemas.streams import JOB_STREAM
from services.collector.scheduled import ScheduledJobs, job_record
from services.collector.service import Collector
from services.collector.settings import CollectorSettings
from services.collector.write_ahead_log import Journal, JournalFullError, read_journal
from tests.support.bus.bus_memory import MemoryBus
from tests.support.bus.memory_broker import MemoryBroker
from tests.support.deadline import until
from tests.support.recording_bus import RecordingBus, Use
from tests.support.scheduled_jobs import (
    BEGAN_NS,
    GIB,
    SECOND_NS,
    cluster_node,
    ending,
    job_ended,
    job_spec,
    store,
    submission,
)
from tests.support.service_in_process import run_in_process


def test_a_job_that_ended_is_a_record_of_its_run_time() -> None:
    spec = job_spec(workers=3, slots=1, task=TaskFeatures(task="image"), run="my-run")
    record = job_record(job_ended(spec, lost_s=7.0), spec)

    assert record is not None
    assert (record.job, record.dataset) == (f"resnet-{BEGAN_NS}", "scheduled")
    assert (record.task.task, record.local_run) == ("image", "my-run")
    assert (record.state, record.duration_s) == (JobState.SUCCEEDED, 90.0)
    assert (record.preemptions, record.restoring_s, record.lost_s) == (1, 5.0, 7.0)
    assert (record.submitted_ns, record.started_ns) == (BEGAN_NS, BEGAN_NS + 10 * SECOND_NS)
    assert (record.price, record.cost_usd) == (None, None)
    where = record.configuration
    assert (where.provider, where.instance_type, where.workers) == ("cluster", "2-slots-1.0-cores", 3)
    # A worker with one of two slots has half of the node's core and of its 4 GiB.
    assert (where.vcpu, where.memory_gb, where.attributes) == (0.5, 2.0, {"slots": 1.0})


def test_what_the_job_asked_for_goes_before_its_share() -> None:
    spec = job_spec(cpu_cores=0.75, memory_bytes=GIB)
    record = job_record(job_ended(spec), spec)

    assert record is not None
    assert (record.configuration.vcpu, record.configuration.memory_gb) == (0.75, 1.0)
    assert record.configuration.attributes == {"slots": 1.0, "cpu_cores": 0.75}


def test_without_its_submission_workers_and_slots_are_known() -> None:
    record = job_record(job_ended(job_spec(workers=2, slots=2)), None)

    assert record is not None
    assert (record.configuration.workers, record.configuration.vcpu) == (2, 1.0)


def test_gpus_make_another_class_of_node() -> None:
    assert cluster_node(slots=8, cores=96.0, gpus=8).node_class == "8-slots-96.0-cores-8-gpus"
    with pytest.raises(ValueError, match="n1 has no slots"):
        cluster_node(slots=0).configuration(job_spec())


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({"outcome": JobOutcome.FAILED, "reason": "exit code 1"}, JobState.FAILED),
        ({"outcome": JobOutcome.FAILED, "out_of_memory": True}, JobState.OUT_OF_MEMORY),
        ({"outcome": JobOutcome.CANCELLED}, JobState.CANCELLED),
        ({"outcome": JobOutcome.CANCELLED, "out_of_memory": True}, JobState.CANCELLED),
    ],
)
def test_how_it_ended(changes: dict[str, Any], state: JobState) -> None:
    spec = job_spec()
    record = job_record(job_ended(spec, ran_s=0.0, **changes), spec)

    assert record is not None
    assert (record.state, record.duration_s, record.reason) == (state, None, changes.get("reason", ""))


@pytest.mark.parametrize("changes", [{"started_ns": 0}, {"node": None}, {"node": cluster_node(slots=0)}])
def test_a_job_that_never_ran_is_no_record(changes: dict[str, Any]) -> None:
    assert job_record(job_ended(job_spec(), **changes), job_spec()) is None


@pytest.mark.parametrize(
    ("job", "task"),
    [
        ("resnet-xkqz", "resnet"),
        ("resnet-test", "resnet-test"),  # a word: somebody chose it
        ("resnet-50", "resnet-50"),
        ("resnet-xkqzb", "resnet-xkqzb"),
        ("xkqz", "xkqz"),
    ],
)
def test_a_task_without_features_is_known_by_the_jobs_name(job: str, task: str) -> None:
    assert task_of(job, None).task == task
    assert task_of(job, TaskFeatures(task="image")).task == "image"


def test_a_name_that_is_used_again_is_another_record(tmp_path: Path) -> None:
    spec = job_spec()
    with Journal(tmp_path) as journal:
        jobs = ScheduledJobs(journal)
        for submitted_ns in (BEGAN_NS, BEGAN_NS + 1):
            jobs.take(submission(spec))
            jobs.take(ending(job_ended(spec, submitted_ns=submitted_ns)))
        assert len(jobs.write()) == 2


def test_a_stream_that_is_read_again_records_nothing(tmp_path: Path) -> None:
    spec = job_spec()
    for expected in (1, 0):
        with Journal(tmp_path) as journal:
            jobs = ScheduledJobs(journal)
            for event in (submission(spec), ending(job_ended(spec)), ending(job_ended(spec))):
                jobs.take(event)
            assert len(jobs.write()) == expected
    assert len(list(read_journal(tmp_path))) == 1


def test_a_full_disk_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = job_spec()
    with Journal(tmp_path) as journal:
        jobs = ScheduledJobs(journal)
        jobs.take(ending(job_ended(spec)))
        with monkeypatch.context() as patch:

            def full(*_: object) -> None:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            patch.setattr("services.collector.write_ahead_log.os.pwrite", full)
            with pytest.raises(JournalFullError):
                jobs.write()
        jobs.take(ending(job_ended(spec, submitted_ns=BEGAN_NS + 1)))
        assert len(jobs.write()) == 2
        assert not jobs.unwritten


@pytest.mark.virtual_time
async def test_the_service_follows_the_stream(tmp_path: Path) -> None:
    broker = MemoryBroker()
    ours = MemoryBus(broker)
    before, later = job_spec("before"), job_spec("later")
    await store(ours, submission(before), ending(job_ended(before)))
    async with run_in_process(
        Collector, CollectorSettings.load({}, directory=tmp_path), MemoryBus(broker)
    ) as collector:
        await store(ours, submission(later), ending(job_ended(later)))
        await until(lambda: collector.scheduled == 2, what="both records")
        stream = broker.stream(JOB_STREAM.stream_name("tb"))
        await until(lambda: stream is not None and len(stream.messages) == 2, what="them on the bus")
        assert collector.not_ready() is None


@pytest.mark.virtual_time
async def test_the_service_leaves_the_stream_alone_if_it_is_told_to(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.append(job_record(job_ended(job_spec()), None) or pytest.fail("it ran"))
    bus = RecordingBus(MemoryBroker())
    settings = CollectorSettings.load({"TURNBUCKLE_COLLECTOR__SCHEDULED_JOBS": "false"}, directory=tmp_path)
    async with run_in_process(Collector, settings, bus):
        await until(lambda: Use.PUBLISH_FACT in bus.recorded, what="the journal's record")
    assert Use.REPLAY not in bus.recorded

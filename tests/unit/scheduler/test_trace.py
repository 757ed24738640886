"""Traces out of records: since when a job waited, and how many slots it had."""

from __future__ import annotations

from pathlib import Path

import pytest

from schemas.jobs import Configuration, JobState
from schemas.scheduling import CLUSTER
from services.scheduler.core.speedup import speedups
from services.scheduler.trace import Elasticity, read_trace, trace_of
from tests.support.job_records import job_record

NS = 10**9


def test_a_scheduled_job_waits_since_its_submission_with_all_its_slots() -> None:
    where = Configuration(instance_type="8-slots-8.0-cores", provider=CLUSTER, workers=3, attributes={"slots": 2.0})
    scheduled = job_record(1, configuration=where, submitted_ns=100 * NS, started_ns=160 * NS, duration_s=50.0)
    # Of a job in a cloud: its start, and a slot for each of its 2 workers.
    rented = job_record(2, started_ns=130 * NS, duration_s=70.0)
    early = job_record(3, configuration=where, submitted_ns=90 * NS, started_ns=160 * NS)
    unknown = job_record(4, started_ns=0)
    cancelled = job_record(5, state=JobState.CANCELLED)

    jobs, untold = trace_of([rented, scheduled, early, unknown, cancelled], since_s=95.0)

    assert [(job.name, job.slots, job.submitted_s, job.duration_s) for job in jobs] == [
        ("job-1", 6, 100.0, 50.0),
        ("job-2", 2, 130.0, 70.0),
    ]
    assert untold == 1


@pytest.mark.parametrize("attributes", [{}, {"slots": "two"}])
def test_without_its_slots_each_worker_has_one(attributes: dict[str, str]) -> None:
    where = Configuration(instance_type="x", provider=CLUSTER, workers=3, attributes=attributes)
    ((job,), _) = trace_of([job_record(1, configuration=where, started_ns=NS)], since_s=0.0)
    assert job.slots == 3


def test_records_become_elastic_by_an_option_with_the_speedup_of_their_task() -> None:
    where = Configuration(instance_type="x", provider=CLUSTER, workers=3)
    record = job_record(1, configuration=where, started_ns=NS)
    record = record.model_copy(update={"task": record.task.model_copy(update={"task": "resnet50"})})
    ((job,), _) = trace_of([record], since_s=0.0, elasticity=Elasticity(2, 8, pause_s=7.0))

    assert job.elastic is not None
    assert (job.elastic.least_workers, job.elastic.most_workers) == (2, 8)
    assert job.elastic.speedups == speedups("resnet50", 8)
    assert (job.elastic.pause_s, job.elastic.hold_s) == (7.0, 70.0)


def test_a_jobs_own_number_of_workers_is_always_possible(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(
        "job,slots,submitted_s,duration_s,min_workers,deadline_s,budget_slot_hours\n"
        "small,1,0,9,,,\nlarge,16,5,9,,,\nown,6,7,9,3,60,\nthrifty,2,8,9,1,,0.5\n"
    )
    found = {job.name: job.elastic for job in read_trace(path, Elasticity(2, 8))}
    ranges = {name: each and (each.least_workers, each.most_workers) for name, each in found.items()}

    assert ranges == {"small": (1, 8), "large": (2, 16), "own": (3, 6), "thrifty": (1, 2)}
    assert found["own"] is not None
    assert found["own"].deadline_s == 7 + 60, "by the clock of the trace"
    assert found["thrifty"] is not None
    assert found["thrifty"].budget_slot_s == 1_800

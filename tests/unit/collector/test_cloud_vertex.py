"""Vertex AI's wire: what is sent, what is read back, which failure means what."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import grpc
import pytest
from google.cloud.aiplatform_v1.types import CustomJob, JobState

from schemas.jobs import CostKind
from schemas.jobs import JobState as RecordState
from services.collector.cloud import vertex as adapter
from services.collector.cloud.cloud_jobs import CloudState, derived_cost, job_record, job_state
from services.collector.cloud.ports import (
    CloudBusyError,
    CloudForbiddenError,
    CloudRefusedError,
    CloudUncertainError,
    single,
)
from services.collector.cloud.providers import open_providers
from services.collector.cloud.vertex import GRID_LABEL, PLAN_VARIABLE, VertexJobs, open_transport
from tests.support.fake_google_cloud import FakeGoogleCloud, Fate
from tests.support.grid_files import grid_requests

LABEL = "turnbuckle_job"


@pytest.fixture
def google() -> Iterator[FakeGoogleCloud]:
    with FakeGoogleCloud() as fake:
        yield fake


@pytest.fixture
def cloud(google: FakeGoogleCloud) -> Iterator[VertexJobs]:
    made, billing = open_providers(google.settings(billing=False))
    assert isinstance(made, VertexJobs)
    assert billing is None
    yield made
    made.close()


def test_a_job_goes_out_as_chief_and_workers_with_one_label_of_its_own(
    google: FakeGoogleCloud, cloud: VertexJobs
) -> None:
    request = grid_requests()[2]  # n1-standard-4, 3 workers, batch size 16

    made = cloud.create(request)

    (job,) = google.vertex.jobs.values()
    chief, workers = job.job_spec.worker_pool_specs
    assert (chief.replica_count, workers.replica_count) == (1, 2)
    assert chief.machine_spec.machine_type == workers.machine_spec.machine_type == "n1-standard-4"
    assert list(chief.container_spec.args) == ["--batch-size", "16", "--workers=3", '{"json": 1}']
    assert {pair.name for pair in chief.container_spec.env} == {"RUN", PLAN_VARIABLE}
    assert (chief.disk_spec.boot_disk_type, chief.disk_spec.boot_disk_size_gb) == ("pd-ssd", 100)
    assert job.job_spec.scheduling.timeout == timedelta(hours=24)
    assert job.job_spec.scheduling.disable_retries
    assert dict(job.labels) == {LABEL: request.plan.job, GRID_LABEL: "agnews"}
    assert made.plan == request.plan
    assert (made.state, made.workers, made.is_finished) == (CloudState.WAITING, 3, False)


def test_one_worker_is_one_pool(google: FakeGoogleCloud, cloud: VertexJobs) -> None:
    cloud.create(grid_requests(workers=[1])[0])

    (job,) = google.vertex.jobs.values()
    assert [pool.replica_count for pool in job.job_spec.worker_pool_specs] == [1]


ACCELERATED = {
    "n1-standard-8": {"vcpu": 8, "usd_per_hour": 0.9, "accelerator_type": "NVIDIA_TESLA_T4", "accelerator_count": 2}
}


def test_accelerators_go_out_and_come_back_into_the_record(google: FakeGoogleCloud, cloud: VertexJobs) -> None:
    """In the machine spec of both pools, as Vertex AI names them; in the record, as all records do."""
    request = grid_requests(machine_types=ACCELERATED)[0]
    cloud.create(request)
    google.vertex.advance(10_000)

    (sent,) = google.vertex.jobs.values()
    for pool in sent.job_spec.worker_pool_specs:
        assert pool.machine_spec.machine_type == "n1-standard-8"
        assert pool.machine_spec.accelerator_type.name == "NVIDIA_TESLA_T4"
        assert pool.machine_spec.accelerator_count == 2
    body = CustomJob.to_dict(sent, preserving_proto_field_name=False, use_integers_for_enums=False)
    assert body["jobSpec"]["workerPoolSpecs"][0]["machineSpec"]["acceleratorType"] == "NVIDIA_TESLA_T4"
    (found,) = cloud.jobs()
    place = job_record(found, derived_cost(found)).configuration
    assert place == request.plan.configuration
    assert (place.instance_type, place.accelerator, place.accelerators) == ("n1-standard-8+2xT4", "T4", 2)


def test_accelerators_of_a_job_that_another_tool_submitted(google: FakeGoogleCloud, cloud: VertexJobs) -> None:
    cloud.create(grid_requests(machine_types=ACCELERATED)[0])
    (job,) = google.vertex.jobs.values()
    for pool in job.job_spec.worker_pool_specs:
        pool.container_spec.env = []
    google.vertex.advance(10_000)

    (found,) = cloud.jobs()
    place = job_record(found, derived_cost(found)).configuration

    assert (place.instance_type, place.accelerators, place.accelerator_memory_gb) == ("n1-standard-8+2xT4", 2, 16)


def test_a_plan_for_other_accelerators_is_another_jobs(google: FakeGoogleCloud, cloud: VertexJobs) -> None:
    cloud.create(grid_requests(machine_types=ACCELERATED)[0])
    (job,) = google.vertex.jobs.values()
    job.job_spec.worker_pool_specs[0].machine_spec.accelerator_count = 1
    google.vertex.advance(10_000)

    (found,) = cloud.jobs()
    with pytest.raises(ValueError, match="with 1 x NVIDIA_TESLA_T4 each, but was planned for 2 x n1-standard-8 with 2"):
        job_record(found, derived_cost(found))


def test_time_is_end_minus_start_and_cost_price_times_machines_times_time(
    google: FakeGoogleCloud, cloud: VertexJobs
) -> None:
    google.vertex.fate = lambda _job: Fate(queued_s=300, runs_s=7_200)
    request = grid_requests()[2]
    cloud.create(request)
    google.vertex.advance(7_500)

    (job,) = cloud.jobs()
    record = job_record(job, derived_cost(job))

    assert record.duration_s == 7_200, "without the 300 s in the queue"
    # 0.2185 USD/h x 3 machines x 2 h = 1.311 USD
    assert record.cost_usd == pytest.approx(1.311)
    assert (record.cost_kind, record.dataset, record.local_run) == (CostKind.DERIVED, "vertex", "local-1")
    assert record.task == request.plan.task
    assert record.configuration == request.plan.configuration
    assert record.price is not None
    assert (record.price.as_of.isoformat(), record.price.source) == ("2026-11-01", "gcp-vertex")


@pytest.mark.parametrize(
    ("fate", "state", "reason"),
    [
        (Fate(), RecordState.SUCCEEDED, ""),
        (
            Fate(
                state=JobState.JOB_STATE_FAILED,
                error="The replica workerpool0-0 ran out-of-memory and exited with a non-zero status of 9(SIGKILL).",
                code=3,
            ),
            RecordState.OUT_OF_MEMORY,
            "ran out-of-memory",
        ),
        (
            Fate(state=JobState.JOB_STATE_FAILED, error="RuntimeError: [enforce fail] can't allocate memory: 2 GiB"),
            RecordState.OUT_OF_MEMORY,
            "allocate memory",
        ),
        (
            Fate(state=JobState.JOB_STATE_FAILED, error="exited with a non-zero status of 137(SIGKILL)"),
            RecordState.FAILED,
            "137",
        ),
        (
            Fate(state=JobState.JOB_STATE_FAILED, error="RuntimeError: [gloo] Connection timed out [10.0.0.2]:29500"),
            RecordState.FAILED,
            "timed out",
        ),
        (
            Fate(state=JobState.JOB_STATE_FAILED, error="CustomJob has exceeded its timeout of 86400s"),
            RecordState.TIMED_OUT,
            "timeout",
        ),
        (Fate(state=JobState.JOB_STATE_FAILED, error="deadline", code=4), RecordState.TIMED_OUT, "deadline"),
        (Fate(state=JobState.JOB_STATE_EXPIRED), RecordState.TIMED_OUT, "the job is expired"),
        (Fate(state=JobState.JOB_STATE_CANCELLED), RecordState.CANCELLED, "the job is cancelled"),
    ],
)
def test_states(google: FakeGoogleCloud, cloud: VertexJobs, fate: Fate, state: RecordState, reason: str) -> None:
    google.vertex.fate = lambda _job: fate
    cloud.create(grid_requests()[0])
    google.vertex.advance(10_000)

    (job,) = cloud.jobs()
    record = job_record(job, derived_cost(job))

    assert job_state(job) is record.state is state
    assert reason in record.reason
    assert bool(reason) == bool(record.reason)
    assert record.duration_s == 600


def test_a_job_that_has_ended_but_does_not_say_when_is_not_finished(google: FakeGoogleCloud, cloud: VertexJobs) -> None:
    request = grid_requests()[0]
    cloud.create(request)
    google.vertex.half_finished.add(request.plan.display_name)
    google.vertex.advance(10_000)

    (job,) = cloud.jobs()
    assert job.state is CloudState.SUCCEEDED
    assert not job.is_finished
    with pytest.raises(ValueError, match="not finished"):
        job_record(job, derived_cost(job))

    google.vertex.half_finished.clear()
    assert cloud.jobs()[0].is_finished


def test_lists_are_read_to_the_last_page_and_filtered_there(google: FakeGoogleCloud, cloud: VertexJobs) -> None:
    google.vertex.page_size = 3
    requests = grid_requests()
    for request in requests:
        cloud.create(request)
    cloud.create(grid_requests(name="other")[0])
    google.vertex.jobs["projects/p/locations/us-central1/customJobs/99"] = CustomJob(
        name="projects/p/locations/us-central1/customJobs/99",
        display_name="a stranger's",
        create_time=google.vertex.now,
    )
    google.vertex.jobs["projects/q/locations/us-central1/customJobs/1"] = CustomJob(
        name="projects/q/locations/us-central1/customJobs/1", labels={LABEL: "x"}, create_time=google.vertex.now
    )

    assert len(cloud.jobs()) == 9
    assert {job.job for job in cloud.jobs(grid="agnews")} == {request.plan.job for request in requests}
    found = cloud.jobs(job=requests[3].plan.job)
    assert [job.plan for job in found] == [requests[3].plan]
    assert cloud.jobs(since=google.vertex.now + timedelta(seconds=1)) == []
    assert len(cloud.jobs(since=google.vertex.now)) == 9


def test_jobs_that_others_submitted_are_told_of_with_what_is_known(google: FakeGoogleCloud, cloud: VertexJobs) -> None:
    cloud.create(grid_requests()[2])
    (job,) = google.vertex.jobs.values()
    for pool in job.job_spec.worker_pool_specs:
        pool.container_spec.env = [{"name": PLAN_VARIABLE, "value": "{no JSON"}]
    google.vertex.advance(10_000)

    (found,) = cloud.jobs()
    record = job_record(found, derived_cost(found))

    assert found.plan is None
    assert (record.configuration.instance_type, record.configuration.workers) == ("n1-standard-4", 3)
    assert record.task.task == job.display_name
    assert record.cost_usd is None


def test_a_description_that_is_another_jobs_is_refused(google: FakeGoogleCloud, cloud: VertexJobs) -> None:
    """A job cloned in the console, on other machines, still carries the first one's description."""
    cloud.create(grid_requests()[2])
    (job,) = google.vertex.jobs.values()
    job.job_spec.worker_pool_specs[0].machine_spec.machine_type = "e2-highmem-8"
    google.vertex.advance(10_000)

    (found,) = cloud.jobs()
    with pytest.raises(ValueError, match="ran on 3 x e2-highmem-8, but was planned for 3 x n1-standard-4"):
        job_record(found, derived_cost(found))


@pytest.mark.parametrize(
    ("code", "meaning"),
    [
        (grpc.StatusCode.RESOURCE_EXHAUSTED, CloudBusyError),
        (grpc.StatusCode.UNAVAILABLE, CloudUncertainError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, CloudUncertainError),
        (grpc.StatusCode.INTERNAL, CloudUncertainError),
        (grpc.StatusCode.UNKNOWN, CloudUncertainError),
        (grpc.StatusCode.ABORTED, CloudUncertainError),
        (grpc.StatusCode.CANCELLED, CloudUncertainError),
        (grpc.StatusCode.INVALID_ARGUMENT, CloudRefusedError),
        (grpc.StatusCode.FAILED_PRECONDITION, CloudRefusedError),
        (grpc.StatusCode.PERMISSION_DENIED, CloudForbiddenError),
        (grpc.StatusCode.UNAUTHENTICATED, CloudForbiddenError),
        (grpc.StatusCode.NOT_FOUND, CloudForbiddenError),
    ],
)
def test_what_a_failure_means(
    google: FakeGoogleCloud, cloud: VertexJobs, code: grpc.StatusCode, meaning: type[Exception]
) -> None:
    google.vertex.fail("CreateCustomJob", code, "told so")
    with pytest.raises(meaning, match=r"submit .*: .*told so") as raised:
        cloud.create(grid_requests()[0])
    assert type(raised.value) is meaning
    cloud.create(grid_requests()[0])
    assert len(google.vertex.jobs) == 1


def test_an_answer_that_is_lost_leaves_the_job_behind(google: FakeGoogleCloud, cloud: VertexJobs) -> None:
    request = grid_requests()[0]
    google.vertex.fail("CreateCustomJob", grpc.StatusCode.UNAVAILABLE, after=True)
    with pytest.raises(CloudUncertainError):
        cloud.create(request)

    found = single(cloud.jobs(job=request.plan.job), request.plan.job)
    assert found is not None
    assert found.plan == request.plan


def test_a_service_that_does_not_answer_is_given_up(
    google: FakeGoogleCloud, cloud: VertexJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    google.vertex.slow = threading.Event()
    monkeypatch.setattr(adapter, "_CALL_S", 0.2)
    with pytest.raises(CloudUncertainError):
        cloud.jobs()
    google.vertex.slow.set()


def test_nobody_listens() -> None:
    with FakeGoogleCloud() as google:
        settings = google.settings(billing=False)
    cloud, _ = open_providers(settings)
    with pytest.raises(CloudUncertainError, match="list jobs of projects/p"):
        cloud.jobs()


def test_without_credentials_the_remedy_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    with pytest.raises(CloudForbiddenError, match=r"none\.json"):
        open_transport("us-central1", None, None)

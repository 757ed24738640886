"""Finished jobs become records once, and only with a cost that is settled."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import pytest
from google.cloud.aiplatform_v1.types import JobState

from schemas.jobs import CostKind
from schemas.jobs import JobState as RecordState
from services.collector.cloud.ingestion import FILE_NAME, Ingestion, PollResult
from services.collector.cloud.ports import CloudUncertainError
from services.collector.cloud.providers import open_providers
from services.collector.write_ahead_log import Journal, JournalFullError
from tests.support.fake_google_cloud import FakeGoogleCloud, Fate, HttpFailure
from tests.support.grid_files import grid_requests

LABEL = "turnbuckle_job"
HOUR_S = 3_600.0


class Lab:
    """A fake cloud with jobs, and polls at it as time passes."""

    def __init__(self, google: FakeGoogleCloud, directory: Path, *, billing: bool = True) -> None:
        self.google, self.directory, self.billing = google, directory, billing
        self.journal = Journal(directory)
        self.jobs = [request.plan.job for request in grid_requests()]
        self.start()

    def start(self) -> None:
        """As a new process."""
        self.journal.close()
        self.journal = Journal(self.directory)
        settings = self.google.settings(
            billing=self.billing,
            cost_stable_polls=3,
            cost_min_age_hours=24,
            cost_timeout_hours=168,
            billing_poll_s=HOUR_S,
        )
        self.ingestion = Ingestion(open_providers(settings), self.journal, settings)

    def submit(self, count: int = 1) -> None:
        """Some jobs, that run for ten minutes after one in the queue."""
        cloud, _ = open_providers(self.google.settings(billing=False))
        for request in grid_requests()[:count]:
            cloud.create(request)

    def poll(self, after_s: float = 0.0, *, grid: str | None = None, dry_run: bool = False) -> PollResult:
        """Let time pass, then look."""
        self.google.vertex.advance(after_s)
        return self.ingestion.poll(self.google.vertex.now.timestamp(), grid=grid, dry_run=dry_run)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Lab]]:
    labs: list[Lab] = []
    with FakeGoogleCloud() as google:

        def lab(**how: bool) -> Lab:
            labs.append(Lab(google, tmp_path / f"journal{len(labs)}", **how))
            return labs[-1]

        yield lab
        for made in labs:
            made.journal.close()


def test_without_billing_a_job_is_recorded_when_it_ends(make: Callable[..., Lab]) -> None:
    lab = make(billing=False)
    lab.submit(3)
    assert (lab.poll().waiting, lab.poll(60).running, len(lab.journal)) == (3, 3, 0)

    result = lab.poll(600)

    assert [record.job for record in result.recorded] == lab.jobs[:3]
    # 0.2185 USD/h x 2 machines x 600 s = 0.0728 USD
    assert result.recorded[0].cost_usd == pytest.approx(0.2185 * 2 / 6)
    assert result.recorded[0].cost_kind is CostKind.DERIVED
    assert lab.poll().recorded == []
    lab.start()
    assert lab.poll().recorded == []
    assert len(lab.journal) == 3


def test_a_billed_job_waits_for_a_cost_that_stays(make: Callable[..., Lab]) -> None:
    lab = make()
    lab.submit(2)
    google = lab.google.bigquery
    lab.poll(660)
    google.charge({LABEL: lab.jobs[0]}, 0.05)
    for _hour in range(23):
        assert lab.poll(HOUR_S).recorded == []
    google.charge({LABEL: lab.jobs[0]}, 0.04, credits_usd=(-0.01,))  # the rest of it, late
    lab.poll(HOUR_S)
    lab.start()  # a new process knows what the old one saw
    lab.poll(HOUR_S)
    assert len(lab.journal) == 0

    result = lab.poll(HOUR_S)

    (record,) = result.recorded
    assert record.job == lab.jobs[0]
    assert record.cost_usd == pytest.approx(0.08)
    assert record.cost_kind is CostKind.BILLED
    assert result.unsettled == 1, "the other one has no cost yet"


def test_a_cost_that_never_comes_is_derived_in_the_end(make: Callable[..., Lab]) -> None:
    lab = make()
    lab.submit()
    lab.poll(660)
    assert lab.poll(167 * HOUR_S).recorded == []

    (record,) = lab.poll(HOUR_S).recorded
    assert (record.cost_kind, record.cost_usd) == (CostKind.DERIVED, pytest.approx(0.2185 * 2 / 6))


def test_a_job_that_never_ran_is_not_waited_for_so_long(make: Callable[..., Lab]) -> None:
    lab = make()
    lab.submit()
    (job,) = lab.google.vertex.jobs.values()
    job.state, job.end_time = JobState.JOB_STATE_FAILED, lab.google.vertex.now
    job.error = {"code": 8, "message": "no capacity"}

    assert lab.poll(HOUR_S).recorded == []
    (record,) = lab.poll(24 * HOUR_S).recorded
    assert (record.state, record.duration_s, record.cost_usd) == (RecordState.FAILED, None, None)
    assert record.reason == "no capacity"


def test_a_cost_below_zero_is_said_and_stops_no_other(make: Callable[..., Lab]) -> None:
    lab = make()
    lab.submit(2)
    lab.poll(660)
    lab.google.bigquery.charge({LABEL: lab.jobs[0]}, 0.1, credits_usd=(-5.0,))
    lab.google.bigquery.charge({LABEL: lab.jobs[1]}, 0.1, credits_usd=(-0.1,))
    polls = [lab.poll(HOUR_S) for _ in range(24)]

    assert [record.job for record in polls[-1].recorded] == [lab.jobs[1]]
    assert polls[-1].recorded[0].cost_usd == 0.0
    assert polls[-1].problems == [f"{lab.jobs[0]}: its billed cost with credits is -4.90 USD: less than nothing"]


def test_a_cost_without_a_rate_to_dollars_is_said_and_stops_no_other(make: Callable[..., Lab]) -> None:
    lab = make()
    lab.submit(2)
    lab.poll(660)
    lab.google.bigquery.charge({LABEL: lab.jobs[0]}, 9.0, currency=("EUR", None))
    lab.google.bigquery.charge({LABEL: lab.jobs[1]}, 0.1)
    polls = [lab.poll(HOUR_S / 2) for _ in range(48)]

    assert [record.job for one in polls for record in one.recorded] == [lab.jobs[1]]
    said = f"{lab.jobs[0]}: the billing export has no rate to US dollars for 1 of its rows"
    assert [one.problems for one in polls[1:]] == [[said]] * 47
    assert len(lab.google.bigquery.statements) == 25, "each look is billed: no more of them than told"


def test_a_cost_is_not_derived_because_the_first_look_at_billing_failed(make: Callable[..., Lab]) -> None:
    """A collector that starts after a week, at a moment when BigQuery does not answer."""
    lab = make()
    lab.submit()
    lab.google.bigquery.charge({LABEL: lab.jobs[0]}, 0.1)
    lab.google.bigquery.failures = [HttpFailure(403, "accessDenied")]

    assert lab.poll(200 * HOUR_S).recorded == []
    polls = [lab.poll(HOUR_S) for _ in range(3)]
    assert [record.cost_kind for one in polls for record in one.recorded] == [CostKind.BILLED]


def test_looks_at_one_grid_keep_what_was_seen_of_another(make: Callable[..., Lab]) -> None:
    lab = make()
    lab.submit()
    cloud, _ = open_providers(lab.google.settings(billing=False))
    cloud.create(grid_requests(name="other")[0])
    lab.poll(660)
    for job in lab.google.vertex.jobs.values():
        lab.google.bigquery.charge({LABEL: job.labels[LABEL]}, 0.1)
    for _ in range(24):
        lab.poll(HOUR_S, grid="agnews")
        lab.poll(HOUR_S, grid="other")
    assert len(lab.journal) == 2


def test_billing_away_delays_costs_and_says_so(make: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch) -> None:
    lab = make()
    lab.submit()
    lab.poll(660)
    lab.google.bigquery.charge({LABEL: lab.jobs[0]}, 0.1)
    lab.google.bigquery.failures = [HttpFailure(403, "accessDenied", times=2)]
    lab.poll(HOUR_S)
    result = lab.poll(HOUR_S)

    assert (len(result.problems), result.unsettled) == (1, 1)
    assert result.problems[0].startswith("billing: read p.billing.")
    for _ in range(30):
        result = lab.poll(HOUR_S)
    assert len(lab.journal) == 1


def test_billing_is_asked_only_as_often_as_told_and_only_where_someone_waits(make: Callable[..., Lab]) -> None:
    lab = make()
    for _ in range(10):
        lab.poll(HOUR_S)
    assert lab.google.bigquery.statements == []
    lab.submit()
    lab.poll(660)
    for _ in range(60):
        lab.poll(60)
    assert len(lab.google.bigquery.statements) == 2


def test_a_lost_file_of_costs_costs_time_only(make: Callable[..., Lab]) -> None:
    lab = make()
    lab.submit()
    lab.poll(660)
    lab.google.bigquery.charge({LABEL: lab.jobs[0]}, 0.1)
    for _ in range(23):
        lab.poll(HOUR_S)
    (lab.directory / FILE_NAME).write_bytes(b'{"torn')
    lab.start()
    assert [len(lab.poll(HOUR_S).recorded) for _ in range(3)] == [0, 0, 1]


def test_a_dry_run_notes_nothing(make: Callable[..., Lab]) -> None:
    lab = make(billing=False)
    lab.submit()
    assert len(lab.poll(660, dry_run=True).recorded) == 1
    assert len(lab.journal) == 0
    assert len(lab.poll().recorded) == 1


def test_two_jobs_of_one_label_are_one_record(make: Callable[..., Lab]) -> None:
    """Someone has submitted the grid from two machines at once: the first one counts."""
    lab = make(billing=False)
    lab.submit()
    lab.google.vertex.advance(10)
    lab.google.vertex.fate = lambda _job: Fate(runs_s=100)
    lab.submit()
    assert lab.poll(180).recorded == [], "the second one has ended before the first"
    (record,) = lab.poll(480).recorded
    assert record.duration_s == 600


def test_old_jobs_that_were_never_seen_are_left_alone(make: Callable[..., Lab]) -> None:
    lab = make(billing=False)
    lab.submit()
    assert lab.poll(61 * 24 * HOUR_S).recorded == []


def test_a_full_disk_is_said_and_the_next_look_goes_on(
    make: Callable[..., Lab], monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = make(billing=False)
    lab.submit(2)
    with monkeypatch.context() as patch:

        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patch.setattr("services.collector.write_ahead_log.os.fsync", full)
        with pytest.raises(JournalFullError):
            lab.poll(660)
    assert len(lab.poll().recorded) == 2


def test_vertex_away_raises(make: Callable[..., Lab]) -> None:
    lab = make()
    lab.google.vertex.fail("ListCustomJobs", grpc.StatusCode.UNAVAILABLE)
    with pytest.raises(CloudUncertainError):
        lab.poll()
    assert lab.poll().problems == []

"""Submitting a grid: bounded, patient, and never twice."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from google.cloud.aiplatform_v1.types import JobState

from services.collector.cloud.cloud_jobs import CloudJob
from services.collector.cloud.grid import JobRequest
from services.collector.cloud.ports import CloudForbiddenError, CloudUncertainError, TrainingCloud
from services.collector.cloud.providers import open_providers
from services.collector.cloud.submission import Intents, Pace, Submission, Tally
from services.collector.write_ahead_log import JournalFullError
from tests.support.fake_google_cloud import FakeGoogleCloud, Fate
from tests.support.fake_vertex import ENDED
from tests.support.grid_files import grid_requests
from tests.support.still_time import StillTime

LABEL = "turnbuckle_job"


class Lab:
    """A submission to a fake cloud whose time passes as the submission sleeps."""

    def __init__(self, google: FakeGoogleCloud, directory: Path) -> None:
        self.google = google
        self.vertex = google.vertex
        self.directory = directory
        self.cloud: TrainingCloud = open_providers(google.settings(billing=False))[0]
        self.said: list[str] = []
        self.most_active = 0

    def run(
        self,
        requests: list[JobRequest],
        *,
        pace: Pace | None = None,
        wait: bool = True,
        cloud: TrainingCloud | None = None,
    ) -> Tally:
        """A process that submits: intents are read from disk anew."""
        intents = Intents(self.directory)
        submission = Submission(
            cloud or self.cloud, requests, intents, pace or Pace(parallel=3, poll_s=300.0), self._told
        )
        submission.clock = StillTime(self._pass)
        try:
            return submission.run(wait=wait)
        finally:
            intents.close()

    def _pass(self, seconds: float) -> None:
        self.vertex.advance(seconds)

    def _told(self, what: str, _tally: Tally, _job: CloudJob | None) -> None:
        self.said.append(what)
        self.most_active = max(self.most_active, sum(job.state not in ENDED for job in self.vertex.jobs.values()))

    def times_submitted(self) -> Counter[str]:
        """How many cloud jobs there are of each label."""
        return Counter(job.labels[LABEL] for job in self.vertex.jobs.values())


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with FakeGoogleCloud() as google:
        yield Lab(google, tmp_path)


def test_everything_is_submitted_once_and_never_more_than_allowed_at_a_time(lab: Lab) -> None:
    requests = grid_requests()
    tally = lab.run(requests)

    assert lab.times_submitted() == Counter(request.plan.job for request in requests)
    assert lab.most_active == 3
    assert (tally.total, tally.created, tally.succeeded, tally.pending, tally.refused) == (8, 8, 8, 0, [])
    assert lab.said.count("created") == lab.said.count("ended") == 8


def test_without_waiting_it_ends_with_the_last_submission(lab: Lab) -> None:
    tally = lab.run(grid_requests(), pace=Pace(parallel=100), wait=False)
    assert (tally.created, tally.waiting, tally.succeeded) == (8, 8, 0)


def test_a_second_start_submits_nothing(lab: Lab) -> None:
    lab.run(grid_requests())
    again = lab.run(grid_requests())

    assert (again.found, again.created, again.succeeded) == (8, 0, 8)
    assert lab.vertex.calls.count("CreateCustomJob") == 8


def test_a_file_that_has_grown_submits_what_is_new(lab: Lab) -> None:
    lab.run(grid_requests())
    again = lab.run(grid_requests(workers=[2, 3, 4]))
    assert (again.total, again.found, again.created) == (12, 8, 4)


class Killed(BaseException):
    """Stands for kill -9: nothing of ours runs after it."""


class Deadly:
    """A cloud that kills us at a call: before it arrives, or after it was carried out."""

    def __init__(self, cloud: TrainingCloud, at_call: int, *, after: bool) -> None:
        self._cloud = cloud
        self._calls_left = at_call
        self._after = after

    def _maybe_die(self, *, after: bool) -> None:
        if after == self._after:
            self._calls_left -= 1
            if self._calls_left == 0:
                raise Killed

    def create(self, request: JobRequest) -> CloudJob:
        self._maybe_die(after=False)
        made = self._cloud.create(request)
        self._maybe_die(after=True)
        return made

    def jobs(self, **how: object) -> list[CloudJob]:
        self._maybe_die(after=False)
        found = self._cloud.jobs(**how)  # type: ignore[arg-type]
        self._maybe_die(after=True)
        return found


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("lag_s", [0.0, 25.0])
def test_killed_at_any_call_nothing_is_submitted_twice(lab: Lab, tmp_path: Path, lag_s: float, *, after: bool) -> None:
    """Also where the cloud's list is 25 s behind."""
    requests = grid_requests(batch_sizes=[16], workers=[2, 3])
    lab.vertex.list_lag_s = lag_s
    kills = 0
    for at_call in range(1, 60):
        lab.directory = tmp_path / str(at_call)
        lab.directory.mkdir()
        lab.vertex.jobs.clear()
        try:
            lab.run(requests, cloud=Deadly(lab.cloud, at_call, after=after))
        except Killed:
            kills += 1
        else:
            break
        lab.run(requests)
        assert lab.times_submitted() == Counter(request.plan.job for request in requests), at_call
    assert kills >= 6


def test_an_answer_that_is_lost_is_not_submitted_again(lab: Lab) -> None:
    lab.vertex.list_lag_s = 20.0
    for _ in range(3):
        lab.vertex.fail("CreateCustomJob", grpc.StatusCode.UNAVAILABLE, "connection reset", after=True)
    requests = grid_requests()
    tally = lab.run(requests)

    assert lab.times_submitted() == Counter(request.plan.job for request in requests)
    assert tally.succeeded == 8
    assert any("again in" in text and "connection reset" in text for text in lab.said)


def test_an_answer_that_never_came_is_submitted_again(lab: Lab) -> None:
    lab.vertex.fail("CreateCustomJob", grpc.StatusCode.UNAVAILABLE, times=3)
    requests = grid_requests()
    lab.run(requests)

    assert lab.times_submitted() == Counter(request.plan.job for request in requests)


def test_a_quota_is_waited_for(lab: Lab) -> None:
    """Two fit where three are allowed: the others come as those end, and nobody gives up."""
    lab.vertex.max_active = 2
    lab.vertex.fate = lambda _job: Fate(runs_s=4_000.0)  # longer than timeout_s
    tally = lab.run(grid_requests(batch_sizes=[16]))

    assert tally.succeeded == 4
    assert lab.most_active == 2
    assert any("quota metrics exceed quota limits" in text for text in lab.said)
    assert lab.vertex.calls.count("CreateCustomJob") < 200


def test_a_quota_that_never_comes_ends_it_and_says_so(lab: Lab) -> None:
    lab.vertex.max_active = 0
    with pytest.raises(Exception, match=r"nothing has worked for 3600 s: submit .* exceed quota limits"):
        lab.run(grid_requests())
    assert lab.vertex.calls.count("CreateCustomJob") < 100


def test_a_cloud_that_is_away_is_waited_for_and_then_given_up(lab: Lab) -> None:
    lab.vertex.fail("ListCustomJobs", grpc.StatusCode.UNAVAILABLE, times=5)
    assert lab.run(grid_requests()).succeeded == 8

    lab.vertex.fail("ListCustomJobs", grpc.StatusCode.UNAVAILABLE, times=10_000)
    with pytest.raises(CloudUncertainError, match="nothing has worked"):
        lab.run(grid_requests(name="other"))


def test_the_first_list_has_to_succeed_before_anything_is_created(lab: Lab) -> None:
    """What is there already is not known before."""
    lab.run(grid_requests())
    lab.vertex.fail("ListCustomJobs", grpc.StatusCode.UNAVAILABLE, times=3)
    assert lab.run(grid_requests()).created == 0


def test_without_rights_nothing_else_is_tried(lab: Lab) -> None:
    lab.vertex.fail("CreateCustomJob", grpc.StatusCode.PERMISSION_DENIED, "aiplatform.customJobs.create denied")
    with pytest.raises(CloudForbiddenError, match=r"customJobs\.create denied"):
        lab.run(grid_requests())
    assert lab.vertex.calls.count("CreateCustomJob") == 1


def test_a_job_that_is_refused_stops_no_other(lab: Lab) -> None:
    requests = grid_requests()
    lab.vertex.fail("CreateCustomJob", grpc.StatusCode.INVALID_ARGUMENT, "machine type is not supported")
    tally = lab.run(requests)

    assert tally.refused == [requests[0].plan.job]
    assert tally.succeeded == 7
    assert any("machine type is not supported" in text for text in lab.said)


def test_jobs_that_fail_count_as_ended(lab: Lab) -> None:
    lab.vertex.fate = lambda _job: Fate(state=JobState.JOB_STATE_FAILED, error="x")
    assert lab.run(grid_requests()).ended_otherwise == 8


def test_torn_intents_are_read_as_far_as_they_go(tmp_path: Path) -> None:
    first = Intents(tmp_path)
    first.note("a", 1.0)
    first.note("b", 2.0)
    first.close()
    path = tmp_path / "intents.jsonl"
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        intents = Intents(tmp_path)
        intents.note("c", 3.0)
        intents.close()
        again = Intents(tmp_path)
        assert set(again.tried_s) - {"a", "b"} == {"c"}
        again.close()


def test_an_intent_that_cannot_be_written_ends_it_before_the_creation(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("services.collector.cloud.submission.os.write", full)
    with pytest.raises(JournalFullError, match=r"no space left for .*intents\.jsonl: make room"):
        lab.run(grid_requests())
    assert lab.vertex.jobs == {}


def test_a_clock_that_was_set_back_costs_one_wait(lab: Lab) -> None:
    requests = grid_requests()
    intents = Intents(lab.directory)
    intents.note(requests[0].plan.job, 1.9e9)  # three years after what the clock says now
    intents.close()
    started = lab.vertex.now
    assert lab.run(requests, pace=Pace(parallel=100), wait=False).created == 8
    assert (lab.vertex.now - started).total_seconds() == 30

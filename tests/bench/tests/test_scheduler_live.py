"""What the live comparison reads out of the scheduler's stream, and what it makes of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from schemas.scheduling import (
    AttemptStart,
    AttemptStop,
    ClusterNode,
    JobAction,
    JobControlled,
    JobEnded,
    JobOutcome,
    JobSpec,
    JobSubmitted,
    RunTime,
    ScheduleDecision,
    ScheduleEvent,
    Trigger,
    WorkerChange,
    WorkEvent,
)
from services.scheduler.core.entries import decided
from services.scheduler.core.state import State, fold
from tests.bench.scheduler_live import WORKER
from tests.bench.scheduler_live_figures import (
    Costs,
    LiveJob,
    Presence,
    Recording,
    compare,
    costs,
    differing,
    overlapping,
    rank_correlation,
    scaled,
    simulated,
)
from tests.support.deadline import until

NODES = {"n1": 2, "n2": 2}
NS = 10**9


class Story:
    """Entries at seconds."""

    def __init__(self) -> None:
        self.recording = Recording()

    def at(self, second: float, **parts: Any) -> None:
        """One entry."""
        event = ScheduleEvent(leader="s1", time_ns=int(second * NS), **parts)
        self.recording.add(event, NODES)

    def submit(self, second: float, job: str, estimate: RunTime | None = None) -> None:
        spec = JobSpec(job=job, command=("x",), directory="/")
        self.at(second, submitted=(JobSubmitted(spec=spec, estimate=estimate),))

    def decide(self, second: float, starts: dict[str, tuple[int, tuple[str, ...]]], *stops: tuple[str, int]) -> None:
        """Starts by job: attempt and nodes."""
        decision = ScheduleDecision(
            trigger=Trigger.WORK,
            policy="index",
            starts=tuple(AttemptStart(job=job, attempt=number, nodes=on) for job, (number, on) in starts.items()),
            stops=tuple(AttemptStop(job=job, attempt=number) for job, number in stops),
        )
        self.at(second, decision=decision)

    def work(
        self, second: float, job: str, attempt: int, change: WorkerChange, *ranks: int, took_s: float = 0.0
    ) -> None:
        events = tuple(
            WorkEvent(job=job, attempt=attempt, rank=rank, node="n1", change=change, time_ns=0, took_s=took_s)
            for rank in ranks
        )
        self.at(second, worked=events)

    def end(self, second: float, job: str, submitted_s: float, **changes: Any) -> None:
        fields: dict[str, Any] = {
            "job": job,
            "outcome": JobOutcome.ENDED,
            "submitted_ns": int(submitted_s * NS),
            "ended_ns": int(second * NS),
            "workers": 1,
            "slots": 1,
        }
        self.at(second, ended=(JobEnded(**(fields | changes)),))


def test_the_first_small_jobs_are_scaled_and_clipped() -> None:
    rows = [
        {"job_id": "0", "num_gpu": "1", "submit_time": "600", "duration": "3600"},
        {"job_id": "1", "num_gpu": "8", "submit_time": "610", "duration": "3600"},
        {"job_id": "2", "num_gpu": "4", "submit_time": "720", "duration": "60"},
        {"job_id": "3", "num_gpu": "2", "submit_time": "900", "duration": "90000"},
        {"job_id": "4", "num_gpu": "2", "submit_time": "960", "duration": "600"},
    ]
    # (720 - 600) / 60 = 2 s; 3600 / 60 = 60 s; a minute is clipped to 10 s, 25 hours to 120 s.
    assert scaled(rows, 3) == [
        LiveJob("job-0", 1, 0.0, 60.0),
        LiveJob("job-2", 4, 2.0, 10.0),
        LiveJob("job-3", 2, 5.0, 120.0),
    ]
    assert scaled(rows, 2, pace=2.0)[1] == LiveJob("job-2", 4, 1.0, 5.0)
    assert [job.duration_s for job in scaled(rows, 3, clipped_s=(20.0, 160.0))] == [60.0, 20.0, 160.0]


def test_costs_are_medians_of_starts_and_stops() -> None:
    story = Story()
    story.submit(0, "a")
    for attempt, (start_s, stop_s) in enumerate([(0.5, 0.1), (0.7, 0.3), (2.0, 0.2)], start=1):
        begin = 10.0 * attempt
        story.decide(begin, {"a": (attempt, ("n1", "n1"))})
        story.work(begin + 0.1, "a", attempt, WorkerChange.READY, 0, took_s=0.03)
        story.work(begin + start_s, "a", attempt, WorkerChange.READY, 1, took_s=0.04)
        story.at(begin + 5, controlled=(JobControlled(job="a", action=JobAction.PREEMPT),))
        story.work(begin + 5 + stop_s, "a", attempt, WorkerChange.STOPPED, 0, 1, took_s=0.02)
    found = costs(story.recording, "a")
    assert (found.start_s, found.stop_s) == (pytest.approx(0.7), pytest.approx(0.2))
    assert found.preemption_s == pytest.approx(0.9)
    with pytest.raises(ValueError, match="b was never preempted"):
        costs(story.recording, "b")


def test_a_slot_that_is_given_twice_is_found() -> None:
    story = Story()
    story.decide(1, {"a": (1, ("n1", "n1"))})
    story.decide(2, {}, ("a", 1))
    story.work(3, "a", 1, WorkerChange.STOPPED, 0)
    story.decide(4, {"b": (1, ("n1",))})  # rank 0 has stopped: one slot is free
    assert story.recording.twice == []
    story.decide(5, {"c": (1, ("n1",))})
    assert story.recording.twice == ["c, attempt 1: 3 slots of n1 are held"]


def test_workers_that_are_there_together_are_found() -> None:
    story = Story()
    story.decide(1, {"a": (1, ("n1", "n1")), "b": (1, ("n1",)), "c": (1, ("n2",))})

    def there(job: str, rank: int, begin_s: float, end_s: float) -> Presence:
        return Presence(job, 1, rank, begin_s, end_s)

    apart = [there("a", 0, 0, 5), there("a", 1, 0, 4), there("b", 0, 4, 9), there("c", 0, 0, 9)]
    assert overlapping(apart, story.recording, NODES) == ()
    assert overlapping([*apart, there("c", 0, 8, 10)], story.recording, NODES) == (
        "c, attempt 1, rank 0: 2 workers on n2",
    )
    together = [there("a", 0, 0, 5), there("a", 1, 0, 4), there("b", 0, 3.9, 9)]
    assert overlapping(together, story.recording, NODES) == ("b, attempt 1, rank 0: 3 workers on n1",)


def test_a_run_is_compared_with_its_simulation() -> None:
    """Two jobs of one slot on one slot: the shorter one, that comes later, preempts."""
    story = Story()
    jobs = [LiveJob("long", 1, 0.0, 30.0), LiveJob("short", 1, 10.0, 4.0)]
    story.submit(100, "long", RunTime(low_s=29, median_s=30, high_s=31))
    story.submit(110, "short", RunTime(low_s=3.9, median_s=4, high_s=4.1))
    story.end(115, "short", 110, preemptions=0)
    story.end(137, "long", 100, preemptions=1, lost_s=0.5)
    run = simulated(jobs, story.recording, {"n1": 1}, Costs(start_s=0.5, stop_s=0.25))

    # Simulated: long runs 10 s, short 4.5 s, then long restores for 0.75 s and runs the other 20.5 s: ends at 35.75 s.
    assert {one.job.name: one.completion_s for one in run.ended} == {"short": 4.5, "long": 35.75}
    found = compare(story.recording, run, ["seen"])
    assert (found.live_jct_s, found.simulated_jct_s) == (21.0, 20.125)  # (5 + 37) / 2 and (4.5 + 35.75) / 2
    assert found.ratio == pytest.approx(21.0 / 20.125)
    assert (found.live_preemptions, found.simulated_preemptions) == (1, 1)
    assert (found.failed, found.lost_s, found.twice) == (0, 0.5, 1)
    assert found.rank_correlation == pytest.approx(1.0)


def test_rank_correlation_shares_ranks_of_equal_values() -> None:
    assert rank_correlation([1, 2, 3], [10, 20, 30]) == pytest.approx(1.0)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1.0)
    # Ranks 0, 1.5, 1.5, 3 and 0, 1, 2, 3: covariance 4.5, variances 4.5 and 5: 4.5 / sqrt(22.5) = 0.94868.
    assert rank_correlation([1, 2, 2, 3], [1, 2, 3, 4]) == pytest.approx(0.94868, abs=1e-5)


def ends(directory: Path) -> list[dict[str, Any]]:
    """What workers have noted at their ends, by attempt."""
    return [json.loads(file.read_text()) for file in sorted(directory.glob("*.end"))]


async def test_a_worker_saves_what_is_done_and_goes_on(tmp_path: Path) -> None:
    ready, checkpoints = tmp_path / "ready", tmp_path / "checkpoints"
    settings = {
        "TURNBUCKLE_JOB": "a",
        "TURNBUCKLE_CHECKPOINT_DIR": str(checkpoints),
        "TURNBUCKLE_READY_FILE": str(ready),
        "RANK": "0",
    }

    def start(seconds: float, attempt: int) -> subprocess.Popen[bytes]:
        ready.unlink(missing_ok=True)
        command = [sys.executable, "-S", "-E", str(WORKER), str(seconds), str(tmp_path)]
        return subprocess.Popen(command, env=settings | {"TURNBUCKLE_ATTEMPT": str(attempt)})

    first = start(600.0, 1)
    await until(ready.exists, what="it works")
    first.terminate()
    assert first.wait(60) == 0
    done_s = float((checkpoints / "rank-0").read_text())
    assert 0 < done_s < 600
    assert start(done_s + 0.05, 2).wait(60) == 0
    assert float((checkpoints / "rank-0").read_text()) >= done_s + 0.05
    notes = ends(tmp_path)
    assert [(note["attempt"], note["rank"]) for note in notes] == [(1, 0), (2, 0)]
    assert notes[0]["begin_s"] < notes[0]["end_s"] < notes[1]["begin_s"] < notes[1]["end_s"]


def test_entries_that_a_replay_decides_otherwise_are_found() -> None:
    node = ClusterNode(node="n1", slots=2)
    spec = JobSpec(job="a", command=("x",), directory="/")
    written, state = [], State()
    for parts in ({"nodes": (node,)}, {"submitted": (JobSubmitted(spec=spec),)}):
        entry, _ = decided(state, ScheduleEvent(leader="s1", time_ns=len(written) * NS, **parts), "index")
        written.append(entry)
        state = fold(state, [entry])
    assert written[1].decision is not None
    assert differing(written) == []
    assert differing([written[0], written[1].model_copy(update={"decision": None})]) == [1]

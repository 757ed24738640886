"""What calls for a decision, and what does not."""

from __future__ import annotations

import pytest

from schemas.scheduling import ScheduleEvent, WorkerChange
from services.scheduler.core.entries import decided, undecided
from services.scheduler.core.state import State
from tests.support.turns import HOUR_NS, START_NS, change, long_runs_short_waits


def entry(**content: object) -> ScheduleEvent:
    return ScheduleEvent(leader="a", time_ns=START_NS + HOUR_NS, **content)  # type: ignore[arg-type]


@pytest.fixture
def state() -> State:
    return long_runs_short_waits()


@pytest.mark.parametrize("what", [WorkerChange.STARTED, WorkerChange.READY])
def test_a_worker_that_gets_on_is_no_time_to_preempt_another_job(state: State, what: WorkerChange) -> None:
    told, outcome = decided(state, entry(worked=(change(what),)), "index")

    assert outcome is None
    assert told.decision is None
    assert decided(state, undecided(told), "index")[0] == told


def test_a_quantum_is(state: State) -> None:
    told, outcome = decided(state, entry(), "index")

    assert outcome is not None
    assert told.decision is not None
    assert [stop.job for stop in told.decision.stops] == ["long"]


def test_slots_that_become_free_are_given_away_at_once(state: State) -> None:
    told, _ = decided(state, entry(worked=(change(WorkerChange.ENDED),)), "index")

    assert told.decision is not None
    assert [start.job for start in told.decision.starts] == ["short"]
    assert [ended.job for ended in told.ended] == ["long"]


def test_a_worker_s_change_beside_a_request_hides_nothing(state: State) -> None:
    told, _ = decided(state, entry(worked=(change(WorkerChange.READY),), drained=("n2",)), "index")

    assert told.decision is not None

"""What the Slurm engine does next, and what it tells, over every situation and over made-up histories."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.scheduling import Preemption, WorkerChange
from services.runner.slurm.core.attempt import Attempt, Trace, changes, not_begun
from services.runner.slurm.core.output import SlurmJob, Where, where_is
from services.runner.slurm.core.steps import (
    NO_LINEAGE,
    Lineage,
    Refusal,
    Step,
    held_by,
    select,
    start,
    superfluous,
    tend,
)
from tests.support.slurm_jobs import HELD, LINEAGE, WAITING, slurm_job, slurm_order

ENDS = frozenset(WorkerChange) - {WorkerChange.STARTED, WorkerChange.READY}
STATES = (
    *("PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"),
    *("NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "BOOT_FAIL", "REQUEUE_HOLD", "SOMETHING_NEW"),
)
WANTED = Lineage("", "spec", (1, 1))
KNOWN = replace(WANTED, name=LINEAGE)
RUNNING = Trace(started_s=100.0, since_start_s=20.0)
ORDERED = not_begun(slurm_order())
BEGUN = replace(ORDERED, begun=True, workers=(RUNNING, RUNNING), preemption=Preemption.CHECKPOINT, grace_s=30.0)


def ended(code: int, order: float = 0.0, *, told: bool = False) -> Trace:
    """Of a worker that ran for 20 s, the last two of them after SIGTERM if it was told to stop."""
    return Trace(100.0, 21.0, stopping_s=118.0 if told else None, ended_s=120.0, exit_code=code, ended_order=order)


def last(attempt: Attempt, job: SlurmJob | None) -> list[tuple[int, WorkerChange]]:
    """Ends, in their order."""
    return [(change.rank, change.change) for change in changes(attempt, job) if change.change in ENDS]


# -- an order to run ---------------------------------------------------------------------------------------------------


def test_start() -> None:
    second = replace(ORDERED, attempt=2)
    assert start(ORDERED, None, NO_LINEAGE, WANTED) is Step.SUBMIT
    assert start(second, HELD, KNOWN, WANTED) is Step.RENEW
    assert start(second, slurm_job("COMPLETED"), KNOWN, WANTED) is Step.SUBMIT
    assert start(second, HELD, replace(KNOWN, spec="another"), WANTED) is Step.SUBMIT
    assert start(second, HELD, replace(KNOWN, shape=(2, 1)), WANTED) is Step.SUBMIT
    uneven = replace(WANTED, shape=(2, 1))
    assert start(second, HELD, replace(KNOWN, shape=(2, 1)), uneven) is Step.SUBMIT
    for job in (slurm_job("RUNNING"), slurm_job("COMPLETING"), WAITING):
        assert isinstance(start(second, job, KNOWN, WANTED), Refusal)


def test_what_is_held_for_an_attempt() -> None:
    others = (WAITING, slurm_job("RUNNING"), replace(HELD, attempt=2), replace(HELD, job="other"))
    assert held_by((*others, HELD), "resnet", 1) == (HELD,)


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "COMPLETED", "FAILED", "CANCELLED"])
def test_what_was_submitted_is_not_submitted_again(state: str) -> None:
    assert start(ORDERED, slurm_job(state), KNOWN, WANTED) is None


def test_a_crash_between_update_and_release_is_mended() -> None:
    second = replace(ORDERED, attempt=2)
    assert start(second, replace(HELD, attempt=2), KNOWN, WANTED) is Step.RENEW


@given(st.sampled_from(STATES), st.booleans(), st.integers(1, 3), st.booleans())
def test_what_has_begun_or_has_to_stop_is_never_started(state: str, held: bool, attempt: int, known: bool) -> None:
    job = slurm_job(state, attempt, held=held) if known else None
    for each in (
        BEGUN,
        replace(ORDERED, killed=True),
        replace(ORDERED, stop_asked_s=1.0),
        replace(ORDERED, refused="x"),
    ):
        assert start(each, job, KNOWN, WANTED) is None


def test_of_several_jobs_the_live_one_counts() -> None:
    done, queued, live = slurm_job("FAILED", job_id=1), replace(WAITING, job_id=2), slurm_job(job_id=3)
    older = slurm_job(job_id=4, lineage="99887766")
    jobs = (done, queued, live, older, slurm_job(job_id=6, job="other"))
    assert select(jobs, "resnet", LINEAGE) == live
    assert select((done,), "resnet", LINEAGE) == done
    assert select(jobs, "resnet", "") is None
    assert superfluous(jobs, live, "resnet") == (queued, older)


# -- what follows ------------------------------------------------------------------------------------------------------


def test_stopping() -> None:
    asked = replace(BEGUN, stop_asked_s=1000.0)
    job = slurm_job()
    assert tend(BEGUN, job, 1000.0) is None
    assert tend(asked, job, 1000.0) is Step.TERM
    assert tend(replace(asked, workers=(RUNNING, Trace())), job, 1001.0) is None  # it would die of the signal
    assert tend(replace(asked, workers=(RUNNING, ended(0, told=True))), job, 1001.0) is None
    assert tend(asked, job, 1030.0) is Step.REQUEUE
    assert tend(asked, slurm_job("COMPLETING"), 1030.0) is None
    assert tend(replace(asked, preemption=Preemption.RESTART), job, 1000.0) is Step.REQUEUE
    assert tend(asked, HELD, 1030.0) is None
    assert tend(replace(ORDERED, stop_asked_s=1000.0), WAITING, 1000.0) is Step.HOLD
    assert tend(BEGUN, WAITING, 1000.0) is Step.HOLD  # Slurm would start it a second time
    assert tend(replace(asked, killed=True), job, 1000.0) is Step.CANCEL
    assert tend(replace(BEGUN, workers=(ended(0), ended(0))), HELD, 1000.0) is Step.CANCEL
    assert tend(ORDERED, replace(WAITING, reason="BadConstraints"), 0.0) is Step.CANCEL


def test_saved_or_not() -> None:
    asked = replace(BEGUN, stop_asked_s=1000.0, workers=(ended(-15, told=True), ended(0, told=True)))
    assert last(asked, slurm_job()) == []  # it holds its slots until Slurm has them back
    assert last(asked, HELD) == [(0, WorkerChange.STOPPED), (1, WorkerChange.STOPPED)]
    (first, _) = (change for change in changes(asked, HELD) if change.change in ENDS)
    # 20 s from its start to its end, of which 2 s after SIGTERM.
    assert (first.ran_s, first.took_s, first.exit_code) == (20.0, 2.0, -15)
    never = replace(asked, preemption=Preemption.NEVER)
    assert last(never, HELD) == [(0, WorkerChange.UNSAVED), (1, WorkerChange.STOPPED)]
    killed = replace(asked, workers=(RUNNING, ended(1, told=True)))
    assert {change for _, change in last(killed, HELD)} == {WorkerChange.UNSAVED}
    assert "killed after 30 s of grace" in [change.reason for change in changes(killed, HELD)]
    assert last(replace(ORDERED, stop_asked_s=1.0), None) == [(0, WorkerChange.STOPPED), (1, WorkerChange.STOPPED)]


def test_a_worker_whose_script_outlives_it_for_a_moment_was_killed_all_the_same() -> None:
    """Slurm kills a step's processes one after another: the script has noted that its command was killed."""
    told = (ended(-9, order=1031.0, told=True), ended(-9, order=1029.0, told=True))
    asked = replace(BEGUN, stop_asked_s=5000.0, stop_noted_s=1000.0, workers=told)  # two clocks
    reasons = [change.reason for change in changes(asked, HELD) if change.change in ENDS]
    # The second one within its 30 s of grace: that was not Slurm, but perhaps a lack of memory.
    assert sorted(reasons) == ["exit code -9 when it had to stop", "killed after 30 s of grace"]
    for other in (replace(asked, killed=True), replace(asked, preemption=Preemption.NEVER)):
        assert {change.reason for change in changes(other, HELD) if change.change in ENDS} == {"killed"}


def test_failures() -> None:
    gang = replace(BEGUN, workers=(ended(-9, order=8.0), ended(3, order=7.0)))
    assert last(gang, slurm_job()) == [(1, WorkerChange.FAILED), (0, WorkerChange.UNSAVED)]
    beside = replace(BEGUN, workers=(RUNNING, ended(3, order=7.0)))
    assert last(beside, slurm_job()) == [(1, WorkerChange.FAILED)]
    assert last(beside, slurm_job("FAILED")) == [(1, WorkerChange.FAILED), (0, WorkerChange.UNSAVED)]
    assert last(replace(BEGUN, workers=(ended(0), RUNNING)), slurm_job()) == [(0, WorkerChange.ENDED)]
    assert last(replace(ORDERED, refused="sbatch: no"), None)[0] == (0, WorkerChange.FAILED)
    assert {change for _, change in last(ORDERED, replace(WAITING, reason="BadConstraints"))} == {WorkerChange.FAILED}


@pytest.mark.parametrize(
    ("state", "change"),
    [
        ("CANCELLED", WorkerChange.FAILED),
        ("TIMEOUT", WorkerChange.FAILED),
        ("OUT_OF_MEMORY", WorkerChange.FAILED),
        ("NODE_FAIL", WorkerChange.LOST),
        ("PREEMPTED", WorkerChange.LOST),
    ],
)
def test_what_slurm_ends(state: str, change: WorkerChange) -> None:
    assert {each for _, each in last(BEGUN, slurm_job(state))} == {change}
    stopping = replace(BEGUN, workers=(ended(0, told=True), ended(-15, told=True)))  # Slurm's own SIGTERM
    assert {each for _, each in last(stopping, slurm_job(state))} == {change}
    killed = [each.oom_kills for each in changes(BEGUN, slurm_job(state)) if each.change in ENDS]
    assert set(killed) == {int(state == "OUT_OF_MEMORY")}


def test_lost() -> None:
    for job in (None, HELD, WAITING, slurm_job("FAILED")):
        attempt = replace(BEGUN, again=job is not None and job.state == "FAILED")
        assert {change for _, change in last(attempt, job)} == {WorkerChange.LOST}
    unlaunched = replace(HELD, reason="launch failed requeued held")
    for attempt in (ORDERED, BEGUN):  # begun: slurmctld was killed, and has started again what it had forgotten to run
        assert {change for _, change in last(attempt, unlaunched)} == {WorkerChange.LOST}
    assert tend(ORDERED, unlaunched, 0.0) is Step.CANCEL
    assert last(ORDERED, None) == []
    assert {change for _, change in last(replace(ORDERED, checked=True), None)} == {WorkerChange.LOST}
    assert changes(BEGUN, None, settled=False) == changes(BEGUN, slurm_job())


def test_workers_that_slurm_killed_are_lost_although_their_scripts_outlived_them_for_a_moment() -> None:
    """A node kills a job that slurmctld has forgotten, or believes in the queue: it was killed before it had saved."""
    killed = replace(BEGUN, workers=(ended(-9, order=7.0), ended(1, order=8.0)))  # the second for want of the first
    for job in (None, WAITING, HELD, slurm_job("NODE_FAIL")):
        assert last(killed, job) == [(0, WorkerChange.LOST), (1, WorkerChange.LOST)]
    for job in (slurm_job(), slurm_job("FAILED")):
        assert last(killed, job) == [(0, WorkerChange.FAILED), (1, WorkerChange.FAILED)]
    first_failed = replace(BEGUN, workers=(ended(-9, order=8.0), ended(1, order=7.0)))
    assert last(first_failed, None) == [(1, WorkerChange.FAILED), (0, WorkerChange.UNSAVED)]
    assert last(replace(BEGUN, workers=(ended(0), ended(-9))), None) == [
        (0, WorkerChange.ENDED),
        (1, WorkerChange.LOST),
    ]


# -- made-up histories -------------------------------------------------------------------------------------------------

traces = st.builds(
    Trace,
    started_s=st.none() | st.floats(0, 1e6),
    since_start_s=st.floats(0, 1e6),
    ready_after_s=st.none() | st.floats(0, 1e3),
    waits_for_ready=st.booleans(),
    stopping_s=st.none() | st.floats(0, 1e6),
    ended_s=st.floats(0, 1e6),
    exit_code=st.none() | st.integers(-64, 255),
    ended_order=st.floats(0, 1e6),
)
attempts = st.builds(
    Attempt,
    job=st.just("resnet"),
    attempt=st.integers(1, 3),
    nodes=st.just(("n1", "n2", "n2")),
    preemption=st.sampled_from(Preemption),
    grace_s=st.floats(0.1, 100),
    begun=st.booleans(),
    again=st.booleans(),
    stop_asked_s=st.none() | st.floats(0, 1e3),
    stop_noted_s=st.floats(0, 1e3),
    killed=st.booleans(),
    checked=st.booleans(),
    refused=st.sampled_from(["", "sbatch: no"]),
    workers=st.tuples(traces, traces, traces),
)
jobs = st.none() | st.builds(
    slurm_job,
    st.sampled_from(STATES),
    st.integers(1, 3),
    held=st.booleans(),
    reason=st.sampled_from(["None", "launch failed", "BadConstraints"]),
)


@given(attempts, jobs)
def test_each_worker_ends_at_most_once_and_figures_are_plausible(attempt: Attempt, job: SlurmJob | None) -> None:
    found = changes(attempt, job)
    ends = [change.rank for change in found if change.change in ENDS]
    assert len(ends) == len(set(ends))
    assert all(change.ran_s >= 0 and change.took_s >= 0 for change in found)
    kinds = {change.change for change in found}
    if attempt.stop_asked_s is None and not attempt.killed:
        assert WorkerChange.STOPPED not in kinds
    if where_is(job) is Where.ACTIVE and not attempt.refused:
        # Whoever has not ended by himself still runs.
        running = {rank for rank, trace in enumerate(attempt.workers) if trace.exit_code is None}
        assert not running & set(ends)


@given(attempts, jobs)
def test_the_first_end_told_of_a_failing_gang_is_the_first_failure(attempt: Attempt, job: SlurmJob | None) -> None:
    failed = [
        (trace.ended_order, rank)
        for rank, trace in enumerate(attempt.workers)
        if trace.exit_code and trace.stopping_s is None
    ]
    if not failed or attempt.killed or attempt.stop_asked_s is not None or attempt.refused:
        return
    first = attempt.workers[min(failed)[1]].exit_code
    if first in {-9, -15} and where_is(job) is not Where.ACTIVE:  # perhaps by Slurm
        return
    told = [change for change in changes(attempt, job) if change.change is WorkerChange.FAILED]
    assert told[0].order == min(failed)[0]


@given(attempts, jobs, st.floats(0, 1e4))
def test_steps_need_a_job_and_what_is_asked_is_done_at_last(
    attempt: Attempt, job: SlurmJob | None, now_s: float
) -> None:
    step = tend(attempt, job, now_s)
    where = where_is(job)
    if where in {Where.GONE, Where.FINISHED}:
        assert step is None
    if step is Step.TERM:
        assert attempt.stop_asked_s is not None
        assert attempt.preemption is not Preemption.RESTART
    asked = attempt.killed or attempt.stop_asked_s is not None
    late = attempt.stop_asked_s is None or now_s >= attempt.stop_asked_s + attempt.grace_s
    if where in {Where.ACTIVE, Where.WAITING} and asked and late and job is not None and job.state != "COMPLETING":
        assert step in {Step.CANCEL, Step.REQUEUE, Step.HOLD}

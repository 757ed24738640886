"""Which entries tell of a job, and what they tell."""

from __future__ import annotations

from datetime import datetime

from hypothesis import given

from schemas.message import Message
from schemas.scheduling import (
    EstimateSource,
    JobOutcome,
    JobShift,
    JobSubmitted,
    RunTime,
    ScheduleDecision,
    ScheduleEvent,
    Trigger,
    WorkerChange,
    WorkEvent,
)
from services.scheduler.commands.explain_view import history_text
from services.scheduler.core.history import LINES_KEPT, SHIFTS_KEPT, Histories, lines, mentioned
from services.scheduler.core.state import State
from tests.support.message_strategies import MESSAGES
from tests.support.scheduled_jobs import BEGAN_NS, SECOND_NS, ending, entry, job_ended, job_spec, submission


def _jobs(event: ScheduleEvent) -> set[str]:
    """All whose names stand in it."""
    parts = (*event.controlled, *event.worked, *event.planned, *event.ended)
    decided = event.decision
    others = (*decided.starts, *decided.stops, *decided.reasons, *(decided.shifts or ())) if decided else ()
    return {each.job for each in (*parts, *others)} | {each.spec.job for each in event.submitted}


@given(MESSAGES[ScheduleEvent])
def test_an_entry_is_kept_for_the_jobs_of_which_it_tells_a_line(event: Message) -> None:
    assert isinstance(event, ScheduleEvent)
    told = {job for job in _jobs(event) if lines(job, [(1, event)])}
    assert mentioned(event) == told


def started(rank: int, reason: str = "") -> ScheduleEvent:
    change = WorkEvent(
        job="resnet", attempt=1, rank=rank, node="n1", change=WorkerChange.STARTED, time_ns=1, reason=reason
    )
    return entry(worked=(change,))


def test_a_job_is_told_from_its_submission_to_its_end() -> None:
    spec = job_spec()
    log = [submission(spec), started(0), started(1, "no control group"), ending(job_ended(spec))]
    histories = Histories()
    for sequence, each in enumerate(log, 1):
        histories.fold(each, sequence)

    assert histories.of("resnet") == (1, 3, 4), "that a worker was started is no line of its own"
    told = lines("resnet", [(sequence, log[sequence - 1]) for sequence in histories.of("resnet")])
    assert [(line.sequence, line.what) for line in told] == [
        (1, "submitted"),
        (3, "started"),
        (4, f"job {JobOutcome.ENDED}"),
    ]


def test_whose_estimate_it_is_stands_there_as_everywhere_else() -> None:
    estimate = RunTime(low_s=100, median_s=200, high_s=400)
    submitted = JobSubmitted(spec=job_spec(), estimate=estimate, estimate_source=EstimateSource.JOB)
    (told,) = lines("resnet", [(1, entry(submitted=(submitted,)))])

    assert told.why.endswith("by the job file")


def test_what_was_heard_late_is_told_with_the_time_when_it_happened() -> None:
    """Heard 100 s after it had happened, and 1 s after."""
    at_ns = BEGAN_NS + 100 * SECOND_NS
    changes = [
        WorkEvent(job="resnet", attempt=1, rank=0, node="n1", change=WorkerChange.STOPPED, time_ns=time_ns)
        for time_ns in (BEGAN_NS, at_ns - SECOND_NS)
    ]
    (late,), (prompt,) = [lines("resnet", [(7, entry(time_ns=at_ns, worked=(each,)))]) for each in changes]

    assert (late.time_ns, late.happened_ns) == (at_ns, BEGAN_NS)
    assert (prompt.time_ns, prompt.happened_ns) == (at_ns, 0)
    assert history_text(late).startswith(f"{_clock(BEGAN_NS)}  #7 stopped: worker 0 on n1; by its node's clock")
    assert _clock(at_ns) in history_text(late)
    assert history_text(prompt) == f"{_clock(at_ns)}  #7 stopped: worker 0 on n1"


def _clock(time_ns: int) -> str:
    return datetime.fromtimestamp(time_ns / 1e9).astimezone().strftime("%b %d %H:%M:%S")


def test_a_name_that_is_used_again_begins_a_new_history() -> None:
    histories = Histories()
    for sequence, each in enumerate([submission(job_spec()), ending(job_ended(job_spec())), submission(job_spec())], 1):
        histories.fold(each, sequence)
    assert histories.of("resnet") == (3,)


def test_the_latest_lines_are_kept_and_unknown_jobs_forgotten() -> None:
    histories = Histories()
    histories.fold(submission(job_spec()), 1)
    for sequence in range(2, LINES_KEPT + 50):
        histories.fold(started(0, "again"), sequence)
    assert histories.of("resnet") == tuple(range(50, LINES_KEPT + 50))
    assert histories.of("other") == ()

    kept = histories.mentions()
    for number in range(200):
        histories.fold(submission(job_spec(f"j{number}")), 1_000 + number)
    histories.forget(State())
    assert histories.mentions() == {}
    assert kept == {"resnet": tuple(range(50, LINES_KEPT + 50))}, "what was handed out is not changed"


def test_shifts_push_out_nothing_but_shifts() -> None:
    histories = Histories()
    histories.fold(submission(job_spec()), 1)
    for sequence in range(2, LINES_KEPT + 50):
        shift = JobShift(job="resnet", attempt=1, period_ms=1_000, shift_ms=sequence)
        decision = ScheduleDecision(trigger=Trigger.WORK, policy="index", shifts=(shift,))
        histories.fold(entry(decision=decision), sequence)

    assert histories.of("resnet") == (1, *range(LINES_KEPT + 50 - SHIFTS_KEPT, LINES_KEPT + 50))

"""A log in which a long job has run for an hour and a short one waits: at the next decision they change places."""

from __future__ import annotations

from typing import Final

from schemas.scheduling import (
    AttemptStart,
    ClusterNode,
    EstimateSource,
    JobSpec,
    JobSubmitted,
    Preemption,
    RunTime,
    ScheduleDecision,
    ScheduleEvent,
    Trigger,
    WorkerChange,
    WorkEvent,
)
from services.scheduler.core.state import State, fold

START_NS: Final = 10**18
HOUR_NS: Final = 3_600 * 10**9


def submitted(job: str, estimate_s: float) -> JobSubmitted:
    """A job of one worker that can be preempted."""
    spec = JobSpec(job=job, command=("train",), directory="/", preemption=Preemption.CHECKPOINT)
    estimate = RunTime(low_s=estimate_s / 2, median_s=estimate_s, high_s=2 * estimate_s)
    return JobSubmitted(spec=spec, estimate=estimate, estimate_source=EstimateSource.JOB)


def change(what: WorkerChange) -> WorkEvent:
    """Of the long job's worker."""
    return WorkEvent(job="long", attempt=1, rank=0, node="n1", change=what, time_ns=0, ran_s=1.0)


def long_runs_short_waits() -> State:
    """As of `START_NS` + `HOUR_NS`."""
    start = AttemptStart(job="long", attempt=1, nodes=("n1",))
    log = [
        ScheduleEvent(
            leader="a",
            time_ns=START_NS,
            nodes=(ClusterNode(node="n1", slots=1),),
            submitted=(submitted("long", 1e6),),
            decision=ScheduleDecision(trigger=Trigger.SUBMITTED, policy="index", starts=(start,)),
        ),
        ScheduleEvent(leader="a", time_ns=START_NS + HOUR_NS, submitted=(submitted("short", 60.0),)),
    ]
    return fold(State(), log)

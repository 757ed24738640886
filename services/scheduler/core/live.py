"""What is known of one job: values that `services.scheduler.core.state` makes of the log. Times in seconds. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from signal import Signals

from schemas.scheduling import (
    MAX_REASON_CHARACTERS,
    AttemptStart,
    ClusterNode,
    EstimateSource,
    JobEnded,
    JobOutcome,
    JobPlanned,
    JobSpec,
    JobSubmitted,
    RunTime,
    WorkerChange,
    WorkEvent,
)
from services.scheduler.core.jobs import Job, Phase, changed

OVER = frozenset(
    {WorkerChange.STOPPED, WorkerChange.UNSAVED, WorkerChange.ENDED, WorkerChange.FAILED, WorkerChange.LOST}
)
"""Changes after which a worker's slots are free."""
SPANS_KEPT = 20
LATE_S = 3.0
"""So long an event of a worker needs to the log only where no scheduler leads, if the clocks of hosts agree."""


@dataclass(frozen=True, slots=True)
class Span:
    """Time that an attempt held its slots."""

    attempt: int
    nodes: tuple[str, ...]
    """Of each worker, by rank."""
    begin_s: float
    end_s: float | None = None
    """None: it holds them still."""


@dataclass(frozen=True)  # no slots: see `changed`
class Live:
    """A job that has not ended."""

    job: Job
    submitted: JobSubmitted
    earlier_attempts: int = 0
    """Of jobs of the same name that have ended: no attempt of a name has the number of another."""
    attempt: int = 0
    """Of its latest start; `earlier_attempts`: it was never started."""
    start: AttemptStart | None = None
    """Its latest."""
    node: ClusterNode | None = None
    """Of rank 0, as of its latest start."""
    planned: JobPlanned | None = None
    """Of its latest start that the planner was asked about."""
    answers: tuple[JobPlanned, ...] = ()
    """The planner's latest about places for its next attempt, while it waits."""
    workers: tuple[WorkerChange | None, ...] = ()
    """Of that attempt by rank, while it holds slots: what each did last; None: nothing is known yet."""
    ran_s: tuple[float, ...] = ()
    """Progress of each in that attempt, at its end."""
    stop_asked_s: float = 0.0
    """When that attempt had to stop, by the clock of the log."""
    restore_s: float = 0.0
    """Longest time from its start until a worker was ready, in that attempt."""
    stop_took_s: float | None = None
    """From the decision until all had stopped and saved, by the clock of the log; None: the next start follows nothing
    like that, or is ready already."""
    cost_s: float | None = None
    """Of a preemption, as measured last: from each decision until all had stopped, and until all were ready again.
    Orders and what an engine needs between them count, which no worker measures."""
    preempted: bool = False
    """The scheduler or a person has stopped its latest attempt; not its runner, nor what failed."""
    cancelled: bool = False
    asked: bool = False
    """A person has asked for its slots."""
    not_before_s: float = 0.0
    """It is not started before: a person has preempted it for so long."""
    losses_s: tuple[float, ...] = ()
    """When attempts ended because workers were lost."""
    failures: int = 0
    """Attempts that ended because a worker failed."""
    failure: WorkEvent | None = None
    """What went wrong first in the latest attempt: a worker that failed, or else was lost."""
    unsaved: int = 0
    """Preemptions after which its work was lost."""
    lost_s: float = 0.0
    """Run time of attempts that were lost or could not save their state."""
    spans: tuple[Span, ...] = ()
    """The latest `SPANS_KEPT`, the last of them open while it holds slots."""

    @property
    def spec(self) -> JobSpec:
        """Without the values of its environment."""
        return self.submitted.spec

    @property
    def stopping(self) -> bool:
        """Whether its workers are to stop."""
        return self.job.phase is Phase.STOPPING

    @property
    def plan(self) -> str:
        """Of its latest attempt, in JSON; empty: it has none."""
        planned, start = self.planned, self.start
        if planned is None or start is None or (planned.attempt, planned.nodes) != (start.attempt, start.nodes):
            return ""
        return planned.plan

    def takes_part(self, now_s: float) -> bool:
        """Whether it is decided about: not while a person keeps it back."""
        return self.job.phase is not Phase.WAITING or self.not_before_s <= now_s

    @property
    def broken(self) -> bool:
        """Whether a worker has failed or is lost, so that the others cannot go on."""
        return not {WorkerChange.FAILED, WorkerChange.LOST}.isdisjoint(self.workers)

    def ranks(self, node: str, changes: frozenset[WorkerChange | None]) -> tuple[int, ...]:
        """Its workers on a node whose last change is one of these."""
        return tuple(
            rank
            for rank, (name, change) in enumerate(zip(self.job.nodes, self.workers, strict=True))
            if name == node and change in changes
        )

    def without_slots(self, at_s: float, job: Job) -> Live:
        """The same at the end of its attempt, at that time; `job` as it is from then on."""
        last = self.spans[-1]
        ended = Span(last.attempt, last.nodes, last.begin_s, at_s)
        return changed(self, job=job, workers=(), ran_s=(), spans=(*self.spans[:-1], ended))


@dataclass(frozen=True, slots=True)
class Finished:
    """A job that has ended."""

    last: Live
    """As it was at its end."""
    outcome: JobOutcome
    ended_s: float

    @property
    def attempts(self) -> int:
        """How often it was started."""
        return self.last.job.starts

    @property
    def service_slot_s(self) -> float:
        """Run time that was progress, times slots."""
        return self.last.job.executed_s * self.last.job.slots

    def message(self) -> JobEnded:
        """All that a record of it needs."""
        last, job, failure = self.last, self.last.job, self.last.failure
        failed = failure if self.outcome is JobOutcome.FAILED else None
        return JobEnded(
            job=job.name,
            outcome=self.outcome,
            submitted_ns=nanoseconds(job.submitted_s),
            started_ns=nanoseconds(job.first_start_s or 0.0),
            ended_ns=nanoseconds(self.ended_s),
            ran_s=job.executed_s,
            restoring_s=job.restoring_s,
            waited_s=job.waited_s,
            lost_s=last.lost_s,
            attempts=self.attempts,
            preemptions=job.preemptions,
            workers=last.spec.workers,
            slots=last.spec.slots,
            node=last.node,
            task=last.spec.task,
            run=last.spec.run,
            estimate=last.submitted.estimate,
            estimate_source=last.submitted.estimate_source,
            exit_code=failed.exit_code if failed else None,
            out_of_memory=failed is not None and failed.oom_kills > 0,
            reason=describe_worker(failed, f"worker {failed.rank} on {failed.node}") if failed else "",
        )


def is_late(time_ns: int, logged_s: float) -> bool:
    """Whether an event, of a time by its node's clock, came into the log much later."""
    return logged_s - seconds(time_ns) > LATE_S


def describe_worker(event: WorkEvent, whose: str) -> str:
    """What happened to a worker, or to several: ``worker 1 on n2: exit code 3: the last line that it wrote``."""
    code = event.exit_code if event.change in {WorkerChange.FAILED, WorkerChange.UNSAVED} else None
    before = ": ".join(filter(None, (whose, _ended_with(code))))
    room = MAX_REASON_CHARACTERS - len(before) - 2
    return f"{before}: {event.reason[-room:]}" if event.reason else before


def _ended_with(exit_code: int | None) -> str:
    if exit_code is None or exit_code >= 0:
        return "" if exit_code is None else f"exit code {exit_code}"
    try:
        return Signals(-exit_code).name
    except ValueError:
        return f"signal {-exit_code}"


def estimate_of(submitted: JobSubmitted) -> RunTime | None:
    """What its run time is taken to be; an estimate of zero seconds is none."""
    estimate = submitted.estimate
    known = submitted.estimate_source is not EstimateSource.NONE
    return estimate if known and estimate is not None and estimate.low_s > 0 else None


def seconds(time_ns: int) -> float:
    """Of the epoch."""
    return time_ns / 1e9


def nanoseconds(time_s: float) -> int:
    """Of the epoch, within a microsecond."""
    return round(time_s * 1e9)

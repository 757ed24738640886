"""What has happened to the workers of an attempt, by what they left in the shared directory and by Slurm. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Final

from schemas.scheduling import Preemption, WorkerChange, WorkOrder
from services.runner.slurm.core.output import SlurmJob, Where, where_is

SAVED: Final = frozenset({0, 143, -15})
"""Exit codes after SIGTERM that say: my state is saved."""
_SIGKILL: Final = -9
_KILLED: Final = frozenset({_SIGKILL, -15})
_TAKEN: Final = frozenset({"BOOT_FAIL", "NODE_FAIL", "PREEMPTED", "REVOKED"})
"""States of jobs whose nodes Slurm took away: they go on in another attempt."""
_NEVER: Final = frozenset(
    {"AccountNotAllowed", "BadConstraints", "InvalidAccount", "InvalidQOS", "PartitionNodeLimit", "PartitionTimeLimit"}
)
"""Reasons of jobs in the queue that no time will mend."""
_WHY_FINISHED: Final = {
    "CANCELLED": "cancelled in Slurm, not by the scheduler",
    "DEADLINE": "Slurm's deadline was reached",
    "OUT_OF_MEMORY": "Slurm: out of memory",
    "TIMEOUT": "Slurm's time limit was reached",
}


@dataclass(frozen=True, slots=True)
class Trace:
    """What one worker has left. Seconds of its node's uptime, which no clock changes."""

    started_s: float | None = None
    since_start_s: float = 0.0
    """By the file server's time and the adapter's: for ends without a note."""
    ready_after_s: float | None = None
    """From its start until it created its ready file."""
    waits_for_ready: bool = False
    """It has no ready file, and was started so recently that one may come."""
    stopping_s: float | None = None
    """It got SIGTERM."""
    ended_s: float | None = None
    exit_code: int | None = None
    """Negative: ended by that signal."""
    ended_order: float = 0.0
    """Of several workers' ends the least was first: the file server's time, seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of a job."""

    job: str
    attempt: int
    nodes: tuple[str, ...]
    """Of each worker, by rank."""
    preemption: Preemption = Preemption.NEVER
    grace_s: float = 30.0
    begun: bool = False
    """Slurm has started it: workers may run, or have run. It begins once only."""
    again: bool = False
    """Slurm has started it a second time, in vain."""
    stop_asked_s: float | None = None
    """When the scheduler wanted it to stop, seconds since the epoch."""
    stop_noted_s: float = 0.0
    """The same by the clock of `Trace.ended_order`."""
    killed: bool = False
    """The scheduler wanted it killed."""
    checked: bool = False
    """The scheduler knows that it has begun: if Slurm does not know of it, it is lost."""
    refused: str = ""
    """Why Slurm did not take it."""
    workers: tuple[Trace, ...] = ()

    @property
    def all_done(self) -> bool:
        """Whether each worker has ended by itself with exit code 0."""
        return all(trace.exit_code == 0 and trace.stopping_s is None for trace in self.workers)


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one worker."""

    rank: int
    change: WorkerChange
    exit_code: int | None = None
    oom_kills: int = 0
    ran_s: float = 0.0
    took_s: float = 0.0
    reason: str = ""
    order: float = field(default=0.0, compare=False)


def not_begun(order: WorkOrder) -> Attempt:
    """An attempt that is ordered, and of which nothing is known yet."""
    return Attempt(order.job, order.attempt, order.nodes, workers=(Trace(),) * len(order.nodes))


def changes(attempt: Attempt, job: SlurmJob | None, *, settled: bool = True) -> tuple[Change, ...]:
    """All changes so far: starts, then ends, the first one first. Called again, it repeats those that it named before.

    Args:
        attempt: what is known of it.
        job: Slurm's job of this attempt.
        settled: no note of a worker comes any more where its job has ended.
    """
    beginnings = [change for rank, trace in enumerate(attempt.workers) for change in _beginning(rank, trace)]
    ranks = range(len(attempt.workers))
    ends = [end for rank in ranks if (end := _end(attempt, rank, job, settled=settled)) is not None]
    return (*beginnings, *sorted(ends, key=lambda end: (end.order, end.rank)))


def _beginning(rank: int, trace: Trace) -> list[Change]:
    if trace.started_s is None:
        return []
    found = [Change(rank, WorkerChange.STARTED)]
    if trace.ready_after_s is not None or not trace.waits_for_ready or trace.exit_code is not None:
        found.append(Change(rank, WorkerChange.READY, took_s=trace.ready_after_s or 0.0))
    return found


def _end(attempt: Attempt, rank: int, job: SlurmJob | None, *, settled: bool) -> Change | None:
    """The end of a worker; None: it has not ended, or it is not known yet how."""
    trace, where = attempt.workers[rank], where_is(job)
    asked = attempt.killed or attempt.stop_asked_s is not None
    by_itself = trace.exit_code is not None and trace.stopping_s is None
    by_slurm = (asked and trace.exit_code in _KILLED) or (trace.exit_code != 0 and _is_taken(attempt, job))
    if by_itself and not by_slurm:
        return _ended_by_itself(attempt, rank)
    if attempt.refused:
        return _change(attempt, rank, WorkerChange.FAILED, attempt.refused)
    refused = job is not None and is_refused(job)
    if not (settled or trace.exit_code is not None) or not (refused or _is_over(attempt, where)):
        return None
    return _stopped(attempt, rank) if asked else _taken(attempt, rank, job)


def _is_over(attempt: Attempt, where: Where) -> bool:
    """Whether no worker of it runs, or will."""
    if where is Where.GONE:  # perhaps not submitted yet
        return attempt.begun or attempt.checked or attempt.killed or attempt.stop_asked_s is not None
    return where is not Where.ACTIVE and (attempt.begun or where is not Where.WAITING)


def _ended_by_itself(attempt: Attempt, rank: int) -> Change:
    code = attempt.workers[rank].exit_code
    if code == 0:
        return _change(attempt, rank, WorkerChange.ENDED)
    if code in _KILLED and rank != _first_failed(attempt):
        return _change(attempt, rank, WorkerChange.UNSAVED, "killed because another worker has failed")
    return _change(attempt, rank, WorkerChange.FAILED)


def _first_failed(attempt: Attempt) -> int | None:
    """The worker that failed first, by itself."""
    failed = [
        (trace.ended_order, rank)
        for rank, trace in enumerate(attempt.workers)
        if trace.exit_code and trace.stopping_s is None
    ]
    return min(failed)[1] if failed else None


def _is_taken(attempt: Attempt, job: SlurmJob | None) -> bool:
    """Whether Slurm killed its workers at once: its nodes do so with a job that slurmctld does not know there."""
    first = _first_failed(attempt)
    if first is None or attempt.workers[first].exit_code not in _KILLED:
        return False
    return where_is(job) not in {Where.ACTIVE, Where.FINISHED} or (job is not None and job.state in _TAKEN)


def _stopped(attempt: Attempt, rank: int) -> Change:
    trace = attempt.workers[rank]
    if not attempt.begun:
        return _change(attempt, rank, WorkerChange.STOPPED, "it had not begun")
    saves = attempt.preemption is Preemption.CHECKPOINT
    if trace.exit_code == 0 or (saves and trace.stopping_s is not None and trace.exit_code in SAVED):
        return _change(attempt, rank, WorkerChange.STOPPED)
    return _change(attempt, rank, WorkerChange.UNSAVED, _why_unsaved(attempt, trace))


def _why_unsaved(attempt: Attempt, trace: Trace) -> str:
    # Slurm kills a step's processes one after another: a worker's script may note its command's end before its own.
    killed = trace.exit_code in {None, _SIGKILL}
    in_time = trace.exit_code is not None and trace.ended_order < attempt.stop_noted_s + attempt.grace_s
    saves = attempt.preemption is Preemption.CHECKPOINT
    if attempt.preemption is Preemption.RESTART or (killed and (attempt.killed or not saves)):
        return "killed"
    if killed and not in_time:
        return f"killed after {attempt.grace_s:g} s of grace"
    return f"exit code {trace.exit_code} when it had to stop"


def _taken(attempt: Attempt, rank: int, job: SlurmJob | None) -> Change | None:
    """Ended by Slurm, or by another user of it, without an order of the scheduler."""
    if job is None:
        return _change(attempt, rank, WorkerChange.LOST, "Slurm does not know its job any more")
    if is_refused(job):  # a launch that failed says something about a node, not about the job
        change = WorkerChange.FAILED if job.reason in _NEVER else WorkerChange.LOST
        return _change(attempt, rank, change, f"Slurm: {job.reason}")
    if job.where is Where.FINISHED:
        return _finished(attempt, rank, job)
    if not attempt.begun:
        return None  # a person holds it
    return _change(attempt, rank, WorkerChange.LOST, f"requeued in Slurm, not by the scheduler ({job.reason})")


def _finished(attempt: Attempt, rank: int, job: SlurmJob) -> Change:
    said = f"Slurm: {job.state} ({job.reason})"
    never_begun = job.state == "FAILED" and not attempt.begun  # its node did not start the batch script
    if job.state in _TAKEN or attempt.again or never_begun:
        return _change(attempt, rank, WorkerChange.LOST, said)
    if _first_failed(attempt) is not None:
        return _change(attempt, rank, WorkerChange.UNSAVED, "killed because another worker has failed")
    out_of_memory = job.state == "OUT_OF_MEMORY"
    return _change(attempt, rank, WorkerChange.FAILED, _WHY_FINISHED.get(job.state, said), int(out_of_memory))


def is_refused(job: SlurmJob) -> bool:
    """Whether Slurm has it in the queue and will never start it, or could not."""
    if job.where not in {Where.HELD, Where.WAITING}:
        return False
    return job.reason in _NEVER or (job.held and "launch" in job.reason.lower())


def _change(attempt: Attempt, rank: int, change: WorkerChange, reason: str = "", oom_kills: int = 0) -> Change:
    trace = attempt.workers[rank]
    ran_s = took_s = 0.0
    if trace.started_s is not None:
        lived_s = trace.since_start_s if trace.ended_s is None else trace.ended_s - trace.started_s
        ran_s = max(0.0, lived_s - (trace.ready_after_s or 0.0))
    if trace.stopping_s is not None and trace.ended_s is not None:
        took_s = max(0.0, trace.ended_s - trace.stopping_s)
    order = trace.ended_order if trace.exit_code is not None else inf
    return Change(rank, change, trace.exit_code, oom_kills, ran_s, took_s, reason, order)

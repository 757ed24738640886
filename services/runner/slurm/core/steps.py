"""What to do next about a training job in Slurm: one step at a time, each safe to repeat. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from schemas.scheduling import Preemption
from services.runner.slurm.core.attempt import Attempt, is_refused
from services.runner.slurm.core.output import SlurmJob, Where, where_is


class Step(Enum):
    """One step."""

    SUBMIT = "submit"
    """``sbatch``, as a job of a new lineage."""
    RENEW = "renew"
    """Give the held job its new nodes and release it."""
    TERM = "term"
    """SIGTERM to its workers, not to its batch script: srun would kill them for that."""
    REQUEUE = "requeue"
    """Kill it, and hold it in the queue."""
    HOLD = "hold"
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True)
class Refusal:
    """An order cannot be obeyed now."""

    reason: str


@dataclass(frozen=True, slots=True)
class Lineage:
    """What Slurm's job of a training job was submitted with."""

    name: str
    """As `SlurmJob.lineage`; empty: it was never submitted."""
    spec: str
    """Digest of the job's spec, environment included: Slurm keeps the environment."""
    shape: tuple[int, ...]
    """Workers on each node, in the order of the nodes' names: Slurm keeps the allocation's shape."""


NO_LINEAGE: Final = Lineage("", "", ())


def select(jobs: Iterable[SlurmJob], job: str, lineage: str) -> SlurmJob | None:
    """Slurm's job of a training job; of several (an answer of sbatch was lost) the first that is not finished."""
    found = sorted(
        (each for each in jobs if (each.job, each.lineage) == (job, lineage)),
        key=lambda each: (each.where is Where.FINISHED, each.where is not Where.ACTIVE, each.job_id),
    )
    return found[0] if found else None


def superfluous(jobs: Iterable[SlurmJob], chosen: SlurmJob | None, job: str) -> tuple[SlurmJob, ...]:
    """Others under the same name that are not finished: of an earlier training job, or submitted twice."""
    return tuple(each for each in jobs if each.job == job and each != chosen and each.where is not Where.FINISHED)


def held_by(jobs: Iterable[SlurmJob], job: str, attempt: int) -> tuple[SlurmJob, ...]:
    """Those that wait, held, for the attempt after this one."""
    return tuple(each for each in jobs if (each.job, each.attempt, each.where) == (job, attempt, Where.HELD))


def start(attempt: Attempt, job: SlurmJob | None, known: Lineage, wanted: Lineage) -> Step | Refusal | None:
    """The next step of an attempt that is to run; None: nothing, it begins by itself or has begun.

    Args:
        attempt: to run.
        job: Slurm's job of the lineage `known`.
        known: the lineage of the job's attempts until now.
        wanted: what this attempt needs; without name.
    """
    where = where_is(job)
    if attempt.begun or attempt.refused or attempt.killed or attempt.stop_asked_s is not None:
        return None
    if job is not None and job.attempt == attempt.attempt and where is not Where.HELD:
        return None
    if where in {Where.ACTIVE, Where.WAITING}:
        assert job is not None
        return Refusal(f"attempt {job.attempt} is still in Slurm's hands (job {job.job_id}, {job.state})")
    renewable = where is Where.HELD and (known.spec, known.shape) == (wanted.spec, wanted.shape)
    return Step.RENEW if renewable and is_even(wanted.shape) else Step.SUBMIT


def is_even(shape: Sequence[int]) -> bool:
    """Whether each node has as many workers: only such an allocation can move to other nodes."""
    return len(set(shape)) == 1


def tend(attempt: Attempt, job: SlurmJob | None, now_s: float) -> Step | None:
    """The next step of an attempt that was ordered before, by what became of it.

    Args:
        attempt: the latest of its job.
        job: Slurm's job of it.
        now_s: seconds since the epoch, by the clock of `Attempt.stop_asked_s`.
    """
    where = where_is(job)
    if job is None or where is Where.FINISHED or job.state == "COMPLETING":
        return None
    in_vain = is_refused(job) if not attempt.begun else where is Where.HELD and attempt.all_done
    if attempt.killed or in_vain:
        return Step.CANCEL
    if where is Where.HELD:
        return None
    if where is Where.WAITING:
        return Step.HOLD if attempt.begun or attempt.stop_asked_s is not None else None
    return None if attempt.stop_asked_s is None else _stop(attempt, now_s)


def _stop(attempt: Attempt, now_s: float) -> Step | None:
    """The next step of an attempt on its nodes that has to give them up."""
    assert attempt.stop_asked_s is not None
    if attempt.preemption is Preemption.RESTART or now_s >= attempt.stop_asked_s + attempt.grace_s:
        return Step.REQUEUE
    # A worker that has not set its trap yet would die of the signal; those that come later see that they are to stop.
    ready = all(trace.started_s is not None for trace in attempt.workers)
    reported = any(trace.stopping_s is not None for trace in attempt.workers)
    return Step.TERM if ready and not reported else None

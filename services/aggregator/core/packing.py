"""Which aggregator has which job: as few as slow no job beyond a limit. Pure.

In one cycle, the longest iteration among an aggregator's jobs, job j is aggregated floor(cycle / iteration of j) times.
Where that takes more than the cycle, its jobs become slower in proportion: busy / cycle - 1. The design is ours, after
the abstract of AutoPS. A job that slows itself beyond the limit has an aggregator to itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Final

OVERLOAD: Final = 2.0
"""Times the limit: from here on measured jobs are separated. Placed up to the limit, they are not moved to and fro."""
_UNMEASURED_US: Final = 1_000_000


@dataclass(frozen=True, slots=True, order=True)
class JobLoad:
    """What one job asks of its aggregator."""

    job: str
    iteration_us: int
    """From one step to the next, without waiting for the aggregator's other jobs; above 0."""
    busy_us: int
    """Processor time of the aggregator per iteration."""

    @classmethod
    def unmeasured(cls, job: str) -> JobLoad:
        """Of a job without steps: that it keeps an aggregator busy all the time."""
        return cls(job, _UNMEASURED_US, _UNMEASURED_US)


@dataclass(frozen=True, slots=True)
class Placed:
    """An aggregator for a job, and why this one."""

    aggregator: int
    slowdown: float
    """Predicted for all jobs there; above the limit only where the job is alone."""
    opened: bool
    """It had no job before: with the new one, all others would have exceeded the limit."""


@dataclass(frozen=True, slots=True)
class Move:
    """A job that changes its aggregator."""

    job: str
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class Packing:
    """The jobs of each aggregator that has any; numbers of aggregators are used again."""

    jobs: dict[int, tuple[JobLoad, ...]]

    def with_job(self, aggregator: int, job: JobLoad) -> Packing:
        """This one and a job more."""
        return Packing(self.jobs | {aggregator: tuple(sorted((*self.jobs.get(aggregator, ()), job)))})

    def without(self, aggregator: int) -> Packing:
        """All other aggregators."""
        return Packing({number: jobs for number, jobs in self.jobs.items() if number != aggregator})

    def without_job(self, job: str) -> Packing:
        """All other jobs.

        Raises:
            KeyError: it is nowhere.
        """
        number = self.aggregator_of(job)
        left = tuple(each for each in self.jobs[number] if each.job != job)
        return Packing(self.jobs | {number: left}) if left else self.without(number)

    def measured(self, loads: Mapping[str, JobLoad]) -> Packing:
        """With these loads, by job; others stay as they are."""
        return Packing(
            {number: tuple(sorted(loads.get(each.job, each) for each in jobs)) for number, jobs in self.jobs.items()}
        )

    def moved(self, move: Move) -> Packing:
        """After a move."""
        load = next(each for each in self.jobs[move.source] if each.job == move.job)
        return self.without_job(move.job).with_job(move.target, load)

    def aggregator_of(self, job: str) -> int:
        """Where a job is.

        Raises:
            KeyError: nowhere.
        """
        for number, jobs in self.jobs.items():
            if any(each.job == job for each in jobs):
                return number
        raise KeyError(job)


def occupancy(jobs: Collection[JobLoad]) -> float:
    """Busy time in a cycle as a share of it; above 1 the jobs wait for each other."""
    if not jobs:
        return 0.0
    cycle_us = max(job.iteration_us for job in jobs)
    return sum(cycle_us // job.iteration_us * job.busy_us for job in jobs) / cycle_us


def predicted_slowdown(jobs: Collection[JobLoad]) -> float:
    """By how much iterations become longer, as a share of them: 0.1 is a tenth."""
    return max(0.0, occupancy(jobs) - 1)


def place(packing: Packing, job: JobLoad, loss_limit: float, full: Collection[int] = ()) -> tuple[Packing, Placed]:
    """Best fit: the aggregator that is busiest with the job and slows none beyond the limit, or else a new one.

    Args:
        packing: where other jobs are.
        job: to place.
        loss_limit: slowdown that is allowed.
        full: aggregators whose memory has no room for it.
    """
    best = max(
        (
            (occupancy((*jobs, job)), -number)
            for number, jobs in packing.jobs.items()
            if number not in full and predicted_slowdown((*jobs, job)) <= loss_limit
        ),
        default=None,
    )
    number = -best[1] if best else next(number for number in count() if number not in packing.jobs)
    placed = packing.with_job(number, job)
    return placed, Placed(number, predicted_slowdown(placed.jobs[number]), opened=best is None)


def end(packing: Packing, job: str, loss_limit: float) -> tuple[Packing, tuple[Move, ...]]:
    """Take a job out, then try to empty the least occupied aggregator, for as long as that succeeds.

    Without its longest job an aggregator's cycle is shorter, and may round to more runs of the others: where these
    exceed the limit then, they are placed anew.

    Raises:
        KeyError: it is nowhere.
    """
    before, number = packing, packing.aggregator_of(job)
    left = [each for each in packing.jobs[number] if each.job != job]
    packing = packing.without(number)
    if left and predicted_slowdown(left) > loss_limit and len(left) > 1:
        packing = _place_all(packing, left, loss_limit)
    elif left:
        packing = Packing(packing.jobs | {number: tuple(left)})
    packing = _with_fewest(packing, loss_limit)
    return packing, _moves(before, packing, job)


def rebalance(packing: Packing, loss_limit: float) -> tuple[Packing, tuple[Move, ...]]:
    """By what was measured: separate jobs that slow each other beyond `OVERLOAD` limits, then empty aggregators."""
    before = packing
    for number, jobs in sorted(before.jobs.items()):
        if len(jobs) > 1 and predicted_slowdown(jobs) > OVERLOAD * loss_limit:
            packing = _place_all(packing.without(number), jobs, loss_limit)
    packing = _with_fewest(packing, loss_limit)
    return packing, _moves(before, packing)


def _with_fewest(packing: Packing, loss_limit: float) -> Packing:
    while (emptied := _emptied(packing, loss_limit)) is not None:
        packing = emptied
    return packing


def _emptied(packing: Packing, loss_limit: float) -> Packing | None:
    """Without its least occupied aggregator, or None where the others have no room."""
    if len(packing.jobs) < 2:
        return None
    least = min(packing.jobs, key=lambda number: (occupancy(packing.jobs[number]), -number))
    tried = _place_all(packing.without(least), packing.jobs[least], loss_limit)
    return tried if len(tried.jobs) < len(packing.jobs) else None


def _place_all(packing: Packing, jobs: Iterable[JobLoad], loss_limit: float) -> Packing:
    """The busiest first: what is small fits into what is left."""
    for job in sorted(jobs, key=lambda job: (-job.busy_us / job.iteration_us, job)):
        packing, _ = place(packing, job, loss_limit)
    return packing


def _moves(before: Packing, after: Packing, ended: str = "") -> tuple[Move, ...]:
    targets = {job.job: number for number, jobs in after.jobs.items() for job in jobs}
    return tuple(
        Move(job.job, source, targets[job.job])
        for source, jobs in sorted(before.jobs.items())
        for job in jobs
        if job.job != ended and targets[job.job] != source
    )

"""In which order jobs want slots. A policy is a value: what it remembers of a job stands in the job.

``fifo`` and ``fjf`` (first job that fits), ``sjf`` (fewest slots), ``shortest`` and ``shortest-gpu`` (least remaining
time, least remaining slot-seconds) order as the released Tiresias simulator does. Of the last two there is an oracle,
for simulations, and one that goes by estimates, for the service.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

import numpy as np

from services.scheduler.core import gittins
from services.scheduler.core.attained import executed_s, progress_slot_s, service_slot_s, waited_s
from services.scheduler.core.jobs import Job, Phase, changed

HOLD_COSTS: Final = 10
"""A job is held for so many times what its preemption costs: at most a tenth of the work is lost to preemptions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Settles what it remembers of the jobs, and orders them. This one keeps their order, and learns nothing."""

    preemptive: bool = True
    """Whether a job may take the slots of one that runs."""
    backfills: bool = True
    """Whether a job may start that is behind one for which there are too few slots."""
    holds: bool = False
    """Whether a job is kept running until it has earned what its preemption costs."""
    remembers: bool = False
    """Whether the next decision begins with the jobs as this one has settled them, such as in their queues."""

    def settle(self, jobs: Sequence[Job], _now_s: float, /) -> list[Job]:
        """Queues, ranks and windows as of now. The order of what is returned is kept until the next time."""
        return list(jobs)

    def order(self, jobs: Sequence[Job]) -> list[Job]:
        """Settled jobs, the most wanted first."""
        return list(jobs)

    def next_change_s(self, _jobs: Sequence[Job], _now_s: float, /) -> float:
        """When the order changes although nothing happens; infinite: never."""
        return math.inf

    def ended(self, _job: Job, /) -> Self:
        """The policy that knows of one more job that has ended, its counters as of then."""
        return self

    def informed(self, _observed: gittins.Observed, /) -> Self:
        """The policy that knows of all jobs that have ended."""
        return self

    def order_reason(self, _job: Job, _now_s: float, /) -> str:
        """What a job is ordered by, for people; empty: by its arrival, or by an index."""
        return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalOrder(Policy):
    """First come, first served. Without backfilling the head of the queue blocks all behind it (YARN's FIFO)."""

    preemptive: bool = False
    backfills: bool = False

    def order(self, jobs: Sequence[Job]) -> list[Job]:
        """By arrival."""
        return sorted(jobs, key=lambda job: job.number)


def fewest_slots(job: Job, _now_s: float) -> float:
    """``sjf``."""
    return job.slots


def _slots_text(_job: Job) -> str:
    return "the fewest slots go first"


def remaining_s(job: Job, now_s: float) -> float:
    """``shortest``: an oracle."""
    return (math.inf if job.duration_s is None else job.duration_s) - executed_s(job, now_s)


def remaining_slot_s(job: Job, now_s: float) -> float:
    """``shortest-gpu``, also called SRSF: an oracle."""
    return remaining_s(job, now_s) * job.slots


def estimated_remaining_s(job: Job, now_s: float) -> float:
    """As `remaining_s`, by the job's estimate: 0 once it has run for longer, infinite where it has none."""
    return math.inf if job.estimate is None else max(0.0, job.estimate.median_s - executed_s(job, now_s))


def estimated_remaining_slot_s(job: Job, now_s: float) -> float:
    """As `remaining_slot_s`, by the job's estimate."""
    return estimated_remaining_s(job, now_s) * job.slots


def estimate_text(job: Job) -> str:
    """How one that is ordered by its estimate is placed, for people."""
    if job.estimate is None:
        return "without an estimate it goes behind those that have one"
    return "what has the least left by its estimate goes first"


@dataclass(frozen=True, slots=True, kw_only=True)
class Smallest(Policy):
    """The smallest value of a key first. Equal ones keep the order in which they are given.

    The order changes only when something happens: a running job's remaining time falls, so that it stays in front.
    """

    key: Callable[[Job, float], float]
    text: Callable[[Job], str] = _slots_text
    """What is told people of a job's place."""

    def settle(self, jobs: Sequence[Job], now_s: float, /) -> list[Job]:
        """Sorted."""
        return sorted(jobs, key=lambda job: self.key(job, now_s))

    def order_reason(self, job: Job, _now_s: float, /) -> str:
        """By its key."""
        return self.text(job)


QUANTUM_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LargestIndex(Policy):
    """The default: the largest Gittins index first, from a job's estimate, or from the jobs that have ended.

    With exact estimates it orders as SRSF does; with none and a falling rate of ends, as least attained service does.
    """

    observed: gittins.Observed = gittins.NOTHING_OBSERVED
    quantum_s: float = QUANTUM_S
    """So often the order is looked at while jobs wait."""
    wait_at_most_s: float = math.inf
    """A job that has waited so long in all goes first, and is held until its end. Infinite: the index alone decides.

    In a cluster that is overloaded for longer than that it turns the order into that of arrival (decision 66).
    """
    uses_estimates: bool = True
    holds: bool = True

    def settle(self, jobs: Sequence[Job], now_s: float, /) -> list[Job]:
        """The index as of now is `Job.rank`; that of a job that has waited too long is infinite."""
        attained = [service_slot_s(job, now_s) for job in jobs]
        ranks = self._estimated(jobs, attained, now_s)
        unknown = [place for place in range(len(jobs)) if place not in ranks]
        ranks |= zip(unknown, self.observed.indices([attained[place] for place in unknown]), strict=True)
        if self.wait_at_most_s < math.inf:
            ranks |= {place: math.inf for place, job in enumerate(jobs) if waited_s(job, now_s) >= self.wait_at_most_s}
        return [job if job.rank == ranks[place] else changed(job, rank=ranks[place]) for place, job in enumerate(jobs)]

    def _estimated(self, jobs: Sequence[Job], attained: Sequence[float], now_s: float) -> dict[int, float]:
        """The index by each job's estimate, by place. Not of a job that has run longer than all of it: wrong."""
        known = [(place, job.estimate, job.slots) for place, job in enumerate(jobs) if job.estimate]
        if not known or not self.uses_estimates:
            return {}
        median = np.array([estimate.median_s * slots for _, estimate, slots in known])
        sigma = np.array([gittins.sigma_of(estimate.low_s, estimate.high_s) for _, estimate, _ in known])
        # An estimate is for as many workers as a job asks for: so much of it has passed.
        services = np.array(
            [
                attained[place] if jobs[place].elastic is None else progress_slot_s(jobs[place], now_s)
                for place, _, _ in known
            ]
        )
        found = gittins.indices(gittins.estimated(median, sigma), services).tolist()
        return {place: index for (place, _, _), index in zip(known, found, strict=True) if index > 0}

    def order(self, jobs: Sequence[Job]) -> list[Job]:
        """By falling index. Ties: the earlier submission, then the name."""
        return sorted(jobs, key=lambda job: (-job.rank, job.submitted_s, job.name))

    def next_change_s(self, jobs: Sequence[Job], now_s: float, /) -> float:
        """After a quantum, while jobs wait."""
        return now_s + self.quantum_s if any(job.phase is Phase.WAITING for job in jobs) else math.inf

    def ended(self, job: Job, /) -> Self:
        """The distribution of service gains one."""
        return replace(self, observed=self.observed.ended(service_slot_s(job, job.counted_s)))

    def informed(self, observed: gittins.Observed, /) -> Self:
        """The distribution of service is that of these jobs."""
        return replace(self, observed=observed)

"""Least attained service in queues, as the released Tiresias simulator does it (NSDI 2019, section 3.2).

A job begins in the first queue and falls into the next when it has had a queue's limit of service; in a queue the
running go before the waiting. ``dlas`` counts run time, ``dlas-gpu`` slot-seconds, ``dlas-gpu-gittins`` orders each
queue by the Gittins index over given samples. Times are whole seconds, and so is the arithmetic, down to its roundings.
In the service clocks have parts of a second, the order is looked at when a job has had its limit (`exact`), and the
samples are the jobs that have ended (`learns`).
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_UP, Decimal
from functools import lru_cache
from typing import Any, Final, Self

from services.scheduler.core.attained import promoted, window_s, window_slot_s, window_waited_s
from services.scheduler.core.gittins import Observed
from services.scheduler.core.jobs import Job, Phase, changed
from services.scheduler.core.policies import Policy

LIMITS: Final = (3250, 7200)
"""Of all queues but the last, seconds (dlas) or slot-seconds."""
DELTA: Final = 3250
"""Of the Gittins table: the service that a job would get next, seconds."""
_LEAST_S: Final = 1.0
"""From one look at the order to the next: in whole seconds it never is less, and parts of one could shrink for ever."""


@dataclass(frozen=True, slots=True)
class GittinsTable:
    """The rank of a job by its attained service, from durations of other jobs (`run_sim.py`, line 1950).

    Kept as released: integer division of the expected service, raw durations in its sum, rounding half away from zero.
    """

    samples: tuple[int, ...]
    """Ascending."""
    ranks: tuple[float, ...]
    """Of attained service up to each sample."""

    @classmethod
    def of(cls, durations: Iterable[int]) -> GittinsTable:
        """The table of a sample, seconds."""
        samples = tuple(sorted(durations))
        return cls(samples, tuple(cls._rank(samples, value - 1) for value in samples))

    @staticmethod
    def _rank(samples: tuple[int, ...], attained: int) -> float:
        count, last = len(samples), samples[-1]
        if attained > last - 1:
            return 0.0
        first = bisect_right(samples, attained)
        behind = count - 1 if attained + DELTA > last - 1 else bisect_right(samples, attained + DELTA)
        probability = _rounded((behind - first) / (count - first), 5)
        spent = (sum(samples[first:behind]) + DELTA * (count - behind)) // (count - first)
        return _rounded(probability * 1_000_000 / spent, 4)

    def rank(self, attained: float) -> float:
        """0 where every sample has passed."""
        place = bisect_right(self.samples, attained)
        return self.ranks[place] if place < len(self.ranks) else 0.0


def _rounded(value: float, digits: int) -> float:
    """Python 2's `round`."""
    return float(Decimal(value).quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP))


@lru_cache(maxsize=4)
def _table_of(services: tuple[float, ...]) -> GittinsTable | None:
    """Of the service of jobs that have ended, slot-seconds; None: none has."""
    return GittinsTable.of(int(service) for service in services) if services else None


@dataclass(frozen=True, slots=True, kw_only=True)
class AttainedService(Policy):
    """Discretised least attained service; with a table, each queue by its Gittins index."""

    remembers: bool = True
    limits: tuple[int, ...] = LIMITS
    counts_slots: bool = True
    table: GittinsTable | None = None
    promote_after: float = 0.0
    """A job that has waited so many times as long as it has run returns to the first queue; 0: never."""
    learns: bool = False
    """The table is that of the jobs that have ended."""
    exact: bool = False
    """It looks at the order when a job has had its limit; the released simulator may look later."""

    def settle(self, jobs: Sequence[Job], now_s: float, /) -> list[Job]:
        """Jobs change their queue, one queue at a time, in the order of their arrival, and stay in that order here."""
        known = list(_requeued(jobs, key=lambda job: job.phase is not Phase.RUNNING))
        places = itertools.count(1 + max((job.position for job in known), default=0))
        arrived = [changed(job, level=0, position=next(places)) if job.level is None else job for job in known]
        moved = [self._moved(job, now_s, places) for job in sorted(arrived, key=lambda job: job.number)]
        if self.table is not None:
            moved = [_with_rank(job, self.table.rank(self._attained(job, now_s))) for job in moved]
            moved = sorted(_requeued(moved, key=lambda job: (-job.rank, job.submitted_s)), key=lambda job: job.number)
        return moved

    def _attained(self, job: Job, now_s: float) -> float:
        return window_slot_s(job, now_s) if self.counts_slots else window_s(job, now_s)

    def _moved(self, job: Job, now_s: float, places: Iterator[int]) -> Job:
        """The job in its next queue, behind all others, where it has had this one's limit or has waited too long."""
        level = job.level or 0
        if job.phase is Phase.RUNNING:
            ends = level < len(self.limits) and self._attained(job, now_s) >= self.limits[level]
            return changed(job, level=level + 1, position=next(places)) if ends else job
        waits = self.promote_after > 0 and level > 0 and job.window_s > 0
        if waits and window_waited_s(job, now_s) >= int(job.window_s * self.promote_after):
            return changed(promoted(job, now_s), level=0, position=next(places))
        return job

    def order(self, jobs: Sequence[Job]) -> list[Job]:
        """One queue after the other."""
        return sorted(jobs, key=lambda job: (job.level or 0, job.position))

    def next_change_s(self, jobs: Sequence[Job], now_s: float, /) -> float:
        """When the first job changes its queue, if all go on as they do."""
        return min((self._leaves_queue_s(job, now_s) for job in jobs), default=math.inf)

    def informed(self, observed: Observed, /) -> Self:
        """With the table of the jobs that have ended, where it learns."""
        return replace(self, table=_table_of(observed.services)) if self.learns else self

    def order_reason(self, job: Job, now_s: float, /) -> str:
        """Its queue, and what it had of it."""
        had = f"{self._attained(job, now_s):.0f} {'slot-seconds' if self.counts_slots else 's'}"
        limits = ", ".join(map(str, self.limits))
        return f"queue {(job.level or 0) + 1} of {len(self.limits) + 1}: it had {had}, and they end at {limits}"

    def _leaves_queue_s(self, job: Job, now_s: float) -> float:
        level = job.level or 0
        if job.phase is Phase.RUNNING:
            if level >= len(self.limits):
                return math.inf
            return now_s + max(_LEAST_S, self._until_limit_s(job, level, now_s))
        if not self.promote_after or level == 0 or job.window_s == 0:
            return math.inf
        left = int(job.window_s * self.promote_after - window_waited_s(job, now_s))
        return now_s + left if left > 0 else math.inf

    def _until_limit_s(self, job: Job, level: int, now_s: float) -> float:
        if self.exact or job.elastic is not None:
            slots = job.slots if job.elastic is None else job.held_slots
            return (self.limits[level] - self._attained(job, now_s)) / (slots if self.counts_slots else 1)
        # As released: of slot-seconds the limit, less wall-clock seconds, over slots.
        left = self.limits[level] - window_s(job, now_s)
        return left // job.slots if self.counts_slots else left


def _with_rank(job: Job, rank: float) -> Job:
    return job if job.rank == rank else changed(job, rank=rank)


def _requeued(jobs: Iterable[Job], key: Callable[[Job], Any]) -> Iterator[Job]:
    """Each queue sorted by a key, ties as they stood: its positions are shared out anew. Jobs in no queue as well."""
    queues: defaultdict[int | None, list[Job]] = defaultdict(list)
    for job in jobs:
        queues[job.level].append(job)
    yield from queues.pop(None, ())
    for queue in queues.values():
        stood = sorted(queue, key=lambda job: job.position)
        for before, job in zip(stood, sorted(stood, key=key), strict=True):
            yield job if job.position == before.position else changed(job, position=before.position)

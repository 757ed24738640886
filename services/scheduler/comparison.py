"""A trace under several policies: the figures of each run. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Final

import numpy as np

from services.scheduler.core.attained import service_slot_s
from services.scheduler.core.attained_service import AttainedService, GittinsTable
from services.scheduler.core.gittins import INTERVAL_SIGMAS
from services.scheduler.core.jobs import Estimate, Job
from services.scheduler.core.policies import (
    ArrivalOrder,
    LargestIndex,
    Policy,
    Smallest,
    fewest_slots,
    remaining_s,
    remaining_slot_s,
)
from services.scheduler.core.simulation import Run

SHORT_S: Final = 600.0
"""For stretch, completion over duration, a job counts as at least so long."""
INDEX_ESTIMATED: Final = "index-estimated"

POLICIES: Final[Mapping[str, tuple[str, Callable[[Sequence[Job]], Policy]]]] = {
    "index": ("largest Gittins index, from the jobs that have ended", lambda _: LargestIndex(uses_estimates=False)),
    INDEX_ESTIMATED: ("the same from estimates of each job", lambda _: LargestIndex()),
    "srsf": ("shortest remaining service first: an oracle", lambda _: Smallest(key=remaining_slot_s)),
    "shortest": ("shortest remaining time first, whatever slots: an oracle", lambda _: Smallest(key=remaining_s)),
    "las": ("Tiresias' least attained service, three queues", lambda _: AttainedService()),
    "dlas": ("the same by run time, whatever slots", lambda _: AttainedService(counts_slots=False)),
    "gittins": (
        "Tiresias' Gittins queues, given all durations beforehand",
        lambda jobs: AttainedService(table=GittinsTable.of(int(job.duration_s or 0) for job in jobs)),
    ),
    "sjf": ("fewest slots first", lambda _: Smallest(key=fewest_slots)),
    "backfill": ("first come, first served; who fits may pass", lambda _: ArrivalOrder(backfills=True)),
    "fifo": ("first come, first served", lambda _: ArrivalOrder()),
}
"""By name: what it is, and the policy for a trace."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one run; times in seconds."""

    policy: str
    jobs: int
    mean_jct_s: float
    median_jct_s: float
    p95_jct_s: float
    p99_stretch: float
    mean_wait_s: float
    makespan_s: float
    preemptions_per_job: float
    lost_share: float
    """Of the slot-seconds that jobs held, spent on loading checkpoints, and on changes of the number of workers."""
    decisions: int
    elastic: bool
    """Whether jobs had numbers of workers that may change."""
    resizes_per_job: float
    """Changes of the number of workers."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


def figures(policy: str, run: Run) -> Figures:
    """The figures of a run.

    Raises:
        ValueError: no job of it has ended.
    """
    if not run.ended:
        raise ValueError("no job fits into the cluster")
    completions = np.array([each.completion_s for each in run.ended])
    stretches = [each.completion_s / max(each.job.duration_s or 0, SHORT_S) for each in run.ended]
    productive = sum(service_slot_s(each.job, each.ended_s) for each in run.ended)
    restoring = _restoring_slot_s(run)
    return Figures(
        policy,
        len(run.ended),
        float(completions.mean()),
        float(np.median(completions)),
        float(np.quantile(completions, 0.95)),
        float(np.quantile(stretches, 0.99)),
        fmean(each.job.waited_s for each in run.ended),
        max(each.ended_s for each in run.ended) - min(each.job.submitted_s for each in run.ended),
        fmean(each.job.preemptions for each in run.ended),
        restoring / (productive + restoring) if productive else 0.0,
        run.decisions,
        any(each.job.elastic for each in run.ended),
        fmean(each.job.resizes for each in run.ended),
    )


def _restoring_slot_s(run: Run) -> float:
    """Slot-seconds without progress: of elastic jobs what they held less what they were served with."""
    elastic = {each.job.name: each for each in run.ended if each.job.elastic is not None}
    held = sum(
        (span.end_s - span.begin_s) * len(span.nodes) * span.slots_per_worker
        for span in run.spans
        if span.job in elastic
    )
    served = sum(service_slot_s(each.job, each.ended_s) for each in elastic.values())
    others = sum(each.job.restoring_s * each.job.slots for each in run.ended if each.job.elastic is None)
    return others + max(0.0, held - served)


def with_estimates(jobs: Iterable[Job], error: float, share: float, seed: int) -> list[Job]:
    """Jobs with estimates as a calibrated advisor would give them: lognormal errors, intervals that hold nine of ten.

    Args:
        jobs: with their durations.
        error: logarithmic standard deviation: 0.25 is about 25 % off.
        share: of the jobs that have one.
        seed: of everything random.
    """
    rng = np.random.default_rng(seed)
    return [_with_estimate(job, rng.normal(0, error), error) if rng.random() < share else job for job in jobs]


def _with_estimate(job: Job, off: float, error: float) -> Job:
    median = max(job.duration_s or 0.0, 1.0) * float(np.exp(off))
    half = float(np.exp(error * INTERVAL_SIGMAS / 2))
    return replace(job, estimate=Estimate(median / half, median, median * half))

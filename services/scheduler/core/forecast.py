"""When jobs will start and end, if all go on as is known of them: a simulation from now on. Pure.

What a job has left is the median of what its estimate, or the jobs that have ended, say of one that has had as much.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from services.scheduler.core.attained import executed_s
from services.scheduler.core.gittins import Observed, estimated, sigma_of
from services.scheduler.core.jobs import Job, Node
from services.scheduler.core.policies import Policy
from services.scheduler.core.simulation import simulate_from


@dataclass(frozen=True, slots=True)
class Left:
    """Run time that a job still needs, seconds: median, and an interval that holds nine of ten."""

    low_s: float
    median_s: float
    high_s: float
    samples: int | None
    """Ended jobs that had at least as much service; None: from the job's own estimate."""


def left(job: Job, observed: Observed, now_s: float) -> Left | None:
    """What is known of it; None: nothing, as no job that has ended had as much service.

    Args:
        job: running or waiting.
        observed: the jobs that have ended.
        now_s: by the clock of the job's times.
    """
    had_s = executed_s(job, now_s)
    if job.estimate is not None:
        sigma = np.array([sigma_of(job.estimate.low_s, job.estimate.high_s)])
        ahead = estimated(np.array([job.estimate.median_s]), sigma)[0] - had_s
        if (ahead > 0).any():
            return _left(ahead[ahead > 0], None)
    services = np.array([service for service in observed.services if service > had_s * job.slots])
    return _left(services / job.slots - had_s, len(services)) if len(services) else None


def _left(ahead_s: np.ndarray[tuple[int], np.dtype[np.float64]], samples: int | None) -> Left:
    low_s, median_s, high_s = np.quantile(ahead_s, [0.05, 0.5, 0.95]).tolist()
    return Left(low_s, median_s, high_s, samples)


@dataclass(frozen=True, slots=True)
class Situation:
    """What is known now."""

    jobs: tuple[Job, ...]
    """All that have not ended."""
    nodes: tuple[Node, ...]
    observed: Observed
    now_s: float
    """By the clock of the jobs' times."""
    preemption_cost_s: float


@dataclass(frozen=True, slots=True)
class Expected:
    """Of one job, by the clock of the jobs' times."""

    start_s: float
    """Of a waiting job; infinite: never, or not known. A running job: now."""
    end_s: float
    """Infinite: never, or nothing is known of it."""


def forecast(situation: Situation, policy: Policy) -> dict[str, Expected]:
    """When each job starts and ends.

    One of which nothing is known is taken to run for ever: when those start that wait for its end is not known either.
    """
    now_s = situation.now_s
    jobs = [_with_duration(job, left(job, situation.observed, now_s), now_s) for job in situation.jobs]
    run = simulate_from(jobs, situation.nodes, policy, now_s, situation.preemption_cost_s)
    ends = {each.job.name: each.ended_s for each in run.ended}
    starts: dict[str, float] = {}
    for span in run.spans:
        starts[span.job] = min(span.begin_s, starts.get(span.job, math.inf))
    return {
        job.name: Expected(max(now_s, starts.get(job.name, math.inf)), ends.get(job.name, math.inf))
        for job in situation.jobs
    }


def _with_duration(job: Job, known: Left | None, now_s: float) -> Job:
    return replace(job, duration_s=executed_s(job, now_s) + (known.median_s if known else math.inf))

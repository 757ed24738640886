"""Discrete events over `services.scheduler.core.decide`: how long jobs of known durations take under a policy."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from services.scheduler.core.attained import counted, ends_s, preempted, resized, started
from services.scheduler.core.decide import Decision, Terms, decide
from services.scheduler.core.jobs import Job, Node, Phase, changed
from services.scheduler.core.placement import Room
from services.scheduler.core.policies import HOLD_COSTS, Policy
from services.scheduler.core.sizes import next_size_change_s

MOST_IDLE: Final = 200
"""Decisions in a row by which no job starts for the first time or ends: then a run that may have no end is given up."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A job at its end."""

    job: Job
    """Counters as of its end."""
    ended_s: float

    @property
    def completion_s(self) -> float:
        """From submission to end: its job completion time, JCT."""
        return self.ended_s - self.job.submitted_s


@dataclass(frozen=True, slots=True)
class Span:
    """A job on its slots, from a start or a change of its workers to the next, to a preemption or its end."""

    job: str
    nodes: tuple[str, ...]
    """Of each worker, by rank."""
    slots_per_worker: int
    begin_s: float
    end_s: float
    """Infinite: it held them when the run was given up."""


@dataclass(frozen=True, slots=True)
class Run:
    """A whole simulation."""

    ended: tuple[Ended, ...]
    """By end; of those that end together, as the policy has them."""
    too_large: tuple[Job, ...]
    """For the cluster, even if it is empty: they take no part."""
    spans: tuple[Span, ...]
    decisions: int


def simulate(jobs: Iterable[Job], nodes: Sequence[Node], policy: Policy, preemption_cost_s: float = 0) -> Run:
    """Run all jobs to their ends.

    Args:
        jobs: each with `Job.duration_s`; numbered here in the order of their submission.
        nodes: of the cluster.
        policy: of the order.
        preemption_cost_s: run time that a preempted job needs to load its checkpoint, once it goes on.

    Raises:
        ValueError: the duration of a job is not known.
    """
    numbered = _numbered(jobs)
    too_large = _too_large(numbered, nodes)
    clock = _Clock(nodes, policy, preemption_cost_s)
    clock.arrivals = [job for job in reversed(numbered) if job not in too_large]
    return clock.run(too_large)


def simulate_from(
    jobs: Iterable[Job], nodes: Sequence[Node], policy: Policy, now_s: float, preemption_cost_s: float
) -> Run:
    """Run jobs to their ends that have run or waited until now, and no others.

    A job that is stopping gives its slots back at once. One whose duration is infinite never ends: what waits for its
    end does not start. See `simulate`.
    """
    known = [preempted(job, now_s) if job.phase is Phase.STOPPING else job for job in jobs]
    too_large = _too_large([job for job in known if job.phase is Phase.WAITING], nodes)
    clock = _Clock(nodes, policy, preemption_cost_s, most_idle=MOST_IDLE)
    clock.active = [job for job in known if job not in too_large]
    clock.change_s = now_s
    return clock.run(too_large)


def _too_large(jobs: Iterable[Job], nodes: Sequence[Node]) -> tuple[Job, ...]:
    empty = Room(nodes)
    return tuple(job for job in jobs if empty.find(_smallest(job)) is None)


def _smallest(job: Job) -> Job:
    return job if job.elastic is None else changed(job, slots=job.least_slots)


def _numbered(jobs: Iterable[Job]) -> list[Job]:
    by_submission = sorted(jobs, key=lambda job: job.submitted_s)
    return [replace(job, number=number, counted_s=job.submitted_s) for number, job in enumerate(by_submission)]


@dataclass(slots=True)
class _Clock:
    """The state between two events."""

    nodes: Sequence[Node]
    policy: Policy
    cost_s: float
    most_idle: float = math.inf
    arrivals: list[Job] = field(default_factory=list)
    """The first is the last."""
    active: list[Job] = field(default_factory=list)
    ended: list[Ended] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    decisions: int = 0
    idle: int = 0
    """Decisions since a job has ended, or has started for the first time."""
    change_s: float = math.inf

    def run(self, too_large: tuple[Job, ...]) -> Run:
        """To the end, or until nothing new comes of it."""
        while (now_s := self.next_s()) < math.inf and not self.is_stuck():
            self.advance(now_s)
        running = [_span(job, math.inf) for job in self.active if job.phase is Phase.RUNNING]
        return Run(tuple(self.ended), too_large, (*self.spans, *running), self.decisions)

    def is_stuck(self) -> bool:
        """Whether jobs without an end hold what the others wait for."""
        if not self.idle or math.isinf(self.most_idle):
            return False
        running = [job for job in self.active if job.phase is Phase.RUNNING]
        moves = any((self.policy.preemptive and job.preemptible) or ends_s(job) < math.inf for job in running)
        return self.idle >= self.most_idle or not moves

    def next_s(self) -> float:
        """When something happens: a job ends or arrives, or the policy's order changes."""
        arrival_s = self.arrivals[-1].submitted_s if self.arrivals else math.inf
        end_s = min((ends_s(job) for job in self.active if job.phase is Phase.RUNNING), default=math.inf)
        return min(arrival_s, end_s, self.change_s)

    def advance(self, now_s: float) -> None:
        """Ends first, then arrivals, then a decision."""
        over = [job for job in self.active if job.phase is Phase.RUNNING and ends_s(job) == now_s]
        for job in over:
            at_end = counted(job, now_s)
            self.active.remove(job)
            self.spans.append(_span(job, now_s))
            self.ended.append(Ended(at_end, now_s))
            self.policy = self.policy.ended(at_end)
        while self.arrivals and self.arrivals[-1].submitted_s == now_s:
            self.active.append(self.arrivals.pop())
        decision = decide(self.active, self.nodes, self.policy, now_s, Terms(stops_at_once=True))
        self.decisions += 1
        starting = {start.job for start in decision.starts}
        fresh = any(job.first_start_s is None for job in decision.jobs if job.name in starting)
        self.idle = 0 if over or fresh else self.idle + 1
        self.active = self._carried_out(decision, now_s)
        self.change_s = min(self.policy.next_change_s(self.active, now_s), next_size_change_s(self.active, now_s))

    def _carried_out(self, decision: Decision, now_s: float) -> list[Job]:
        starts = {start.job: start.nodes for start in decision.starts}
        resizes = {resize.job: resize.nodes for resize in decision.resizes}
        stops = set(decision.preempts)
        self.spans += [_span(job, now_s) for job in decision.jobs if job.name in stops or job.name in resizes]
        return [
            started(job, now_s, starts[job.name], self.cost_s, HOLD_COSTS * self.cost_s)
            if job.name in starts
            else preempted(job, now_s)
            if job.name in stops
            else resized(job, now_s, resizes[job.name])
            if job.name in resizes
            else job
            for job in decision.jobs
        ]


def _span(job: Job, end_s: float) -> Span:
    return Span(job.name, job.nodes, job.slots_per_worker, job.started_s, end_s)

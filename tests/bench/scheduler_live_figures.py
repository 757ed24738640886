"""What a live run of the scheduler did, and the simulation of the same jobs. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from statistics import fmean, median
from typing import Any, Final

import numpy as np

from schemas.scheduling import AttemptStart, JobEnded, JobOutcome, RunTime, ScheduleEvent, WorkerChange, WorkEvent
from services.scheduler.core.entries import decided, says_nothing, undecided
from services.scheduler.core.jobs import Estimate, Job, Node
from services.scheduler.core.policies import LargestIndex
from services.scheduler.core.simulation import Run, Span, simulate
from services.scheduler.core.state import State, fold
from tests.bench.figures import Spread

_NS: Final = 1e9
_OVER: Final = frozenset(
    {WorkerChange.STOPPED, WorkerChange.UNSAVED, WorkerChange.ENDED, WorkerChange.FAILED, WorkerChange.LOST}
)
CLIPPED_S: Final = (10.0, 120.0)
TIME_SCALE: Final = 60.0
MOST_SLOTS: Final = 4


@dataclass(frozen=True, slots=True)
class LiveJob:
    """A job of the trace as it is submitted; seconds of the scaled clock."""

    name: str
    workers: int
    submit_s: float
    """Since the first one."""
    duration_s: float


def scaled(
    rows: Iterable[Mapping[str, str]], count: int, pace: float = 1.0, clipped_s: tuple[float, float] = CLIPPED_S
) -> list[LiveJob]:
    """The first jobs of a trace that need few slots, a minute of it as a second.

    Args:
        rows: of the trace.
        count: of jobs.
        pace: so many times as fast.
        clipped_s: the shortest and the longest duration.
    """
    few = [row for row in rows if int(row["num_gpu"]) <= MOST_SLOTS][:count]
    first_s = float(few[0]["submit_time"])
    low_s, high_s = clipped_s
    return [
        LiveJob(
            f"job-{row['job_id']}",
            int(row["num_gpu"]),
            (float(row["submit_time"]) - first_s) / TIME_SCALE / pace,
            min(high_s, max(low_s, float(row["duration"]) / TIME_SCALE)) / pace,
        )
        for row in few
    ]


@dataclass(slots=True)
class Attempt:
    """One start of a job."""

    start: AttemptStart
    begin_s: float
    stop_asked_s: float | None = None
    ready: dict[int, float] = field(default_factory=dict)
    """When each rank was, by the leader's clock."""
    over: dict[int, float] = field(default_factory=dict)

    @property
    def end_s(self) -> float | None:
        """When the last rank was over; None: it holds its slots still."""
        return max(self.over.values()) if len(self.over) == len(self.start.nodes) else None

    @property
    def start_took_s(self) -> float | None:
        """Until all ranks made progress."""
        return max(self.ready.values()) - self.begin_s if len(self.ready) == len(self.start.nodes) else None

    @property
    def stop_took_s(self) -> float | None:
        """From the decision until the slots were free."""
        return None if self.stop_asked_s is None or self.end_s is None else self.end_s - self.stop_asked_s


@dataclass(slots=True)
class Recording:
    """The scheduler's stream as it was written."""

    attempts: dict[tuple[str, int], Attempt] = field(default_factory=dict)
    submitted_s: dict[str, float] = field(default_factory=dict)
    estimates: dict[str, RunTime] = field(default_factory=dict)
    ended: dict[str, JobEnded] = field(default_factory=dict)
    twice: list[str] = field(default_factory=list)
    """Starts on slots that were held."""

    def add(self, event: ScheduleEvent, slots_of_node: Mapping[str, int]) -> None:
        """Take the next entry."""
        at_s = event.time_ns / _NS
        for submitted in event.submitted:
            self.submitted_s[submitted.spec.job] = at_s
            if submitted.estimate is not None:
                self.estimates[submitted.spec.job] = submitted.estimate
        for controlled in event.controlled:
            for attempt in self.attempts.values():
                if attempt.start.job == controlled.job and attempt.end_s is None:
                    attempt.stop_asked_s = at_s
        for worked in event.worked:
            self._worked(worked, at_s)
        if event.decision is not None:
            for stop in event.decision.stops:
                self.attempts[stop.job, stop.attempt].stop_asked_s = at_s
            for start in event.decision.starts:
                self._start(start, at_s, slots_of_node)
        self.ended |= {ended.job: ended for ended in event.ended}

    def _worked(self, event: WorkEvent, at_s: float) -> None:
        attempt = self.attempts.get((event.job, event.attempt))
        if attempt is None:
            return
        if event.change is WorkerChange.READY:
            attempt.ready.setdefault(event.rank, at_s)
        elif event.change in _OVER:
            attempt.over.setdefault(event.rank, at_s)

    def _start(self, start: AttemptStart, at_s: float, slots_of_node: Mapping[str, int]) -> None:
        held: defaultdict[str, int] = defaultdict(int)
        for attempt in self.attempts.values():
            for rank, node in enumerate(attempt.start.nodes):
                held[node] += rank not in attempt.over
        for node in start.nodes:
            held[node] += 1
            if held[node] > slots_of_node.get(node, 0):
                self.twice.append(f"{start.job}, attempt {start.attempt}: {held[node]} slots of {node} are held")
        self.attempts[start.job, start.attempt] = Attempt(start, at_s)

    def spans(self, jobs: Iterable[str]) -> tuple[Span, ...]:
        """Who ran where, seconds since the first submission of these jobs."""
        names = set(jobs)
        first_s = min(self.submitted_s[name] for name in names)
        return tuple(
            Span(job, one.start.nodes, 1, one.begin_s - first_s, one.end_s - first_s)
            for (job, _), one in self.attempts.items()
            if job in names and one.end_s is not None
        )


@dataclass(frozen=True, slots=True)
class Costs:
    """Of starts and stops, as measured; medians, seconds."""

    start_s: float
    stop_s: float

    @property
    def preemption_s(self) -> float:
        """Of one preemption."""
        return self.start_s + self.stop_s


def costs(recording: Recording, job: str) -> Costs:
    """Measured on one job that was preempted several times.

    Raises:
        ValueError: it never was.
    """
    attempts = [one for (name, _), one in recording.attempts.items() if name == job]
    starts = [one.start_took_s for one in attempts if one.start_took_s is not None]
    stops = [one.stop_took_s for one in attempts if one.stop_took_s is not None]
    if not starts or not stops:
        raise ValueError(f"{job} was never preempted")
    return Costs(median(starts), median(stops))


def simulated(
    jobs: Sequence[LiveJob],
    recording: Recording,
    nodes: Mapping[str, int],
    measured: Costs,
    longer: Callable[[], float] = lambda: 0.0,
) -> Run:
    """The same jobs, submitted when they were; each start takes what starts take, each preemption a stop more.

    Args:
        jobs: what was run.
        recording: of the live run.
        nodes: slots by name.
        measured: what starts and stops took.
        longer: what each job takes more than that, seconds.
    """
    first_s = min(recording.submitted_s[job.name] for job in jobs)
    known = [
        Job(
            job.name,
            job.workers,
            recording.submitted_s[job.name] - first_s,
            duration_s=job.duration_s + measured.start_s + longer(),
            estimate=_estimate(recording.estimates.get(job.name)),
        )
        for job in jobs
    ]
    places = [Node(*one) for one in nodes.items()]
    return simulate(known, places, LargestIndex(), measured.preemption_s)


def _estimate(found: RunTime | None) -> Estimate | None:
    return None if found is None else Estimate(found.low_s, found.median_s, found.high_s)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One run beside its simulation; seconds."""

    jobs: int
    failed: int
    live_jct_s: float
    simulated_jct_s: float
    rank_correlation: float
    """Of completion times, by Spearman."""
    live_preemptions: int
    simulated_preemptions: int
    lost_s: float
    twice: int

    @property
    def ratio(self) -> float:
        """Of the means: live over simulated."""
        return self.live_jct_s / self.simulated_jct_s

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {name: getattr(self, name) for name in self.__slots__} | {"ratio": self.ratio}


def completions(recording: Recording, run: Run) -> dict[str, tuple[float, float]]:
    """Completion time of each job, live and simulated."""
    return {
        one.job.name: (
            (recording.ended[one.job.name].ended_ns - recording.ended[one.job.name].submitted_ns) / _NS,
            one.completion_s,
        )
        for one in run.ended
    }


def compare(recording: Recording, run: Run, overlaps: Sequence[str]) -> Comparison:
    """A live run with the simulation of it; ``overlaps``: what else was seen on a slot at the same time."""
    pairs = completions(recording, run)
    live, simulation = zip(*pairs.values(), strict=True)
    ended = [recording.ended[name] for name in pairs]
    return Comparison(
        len(pairs),
        sum(one.outcome is not JobOutcome.ENDED for one in ended),
        fmean(live),
        fmean(simulation),
        rank_correlation(live, simulation),
        sum(one.preemptions for one in ended),
        sum(one.job.preemptions for one in run.ended),
        sum(one.lost_s for one in ended),
        len(recording.twice) + len(overlaps),
    )


MOVED_S: Final = 0.2
MOVED_RUNS: Final = 20


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """How far simulations are from each other whose jobs take up to `MOVED_S` longer: what no live run can undercut."""

    rank_correlation: Spread
    ratio: Spread
    """Of the means."""

    @property
    def text(self) -> str:
        """Such as ``0.91 (0.85-0.95)``: the rank correlation."""
        return self.rank_correlation.text(2)


def sensitivity(
    jobs: Sequence[LiveJob], recording: Recording, nodes: Mapping[str, int], measured: Costs, run: Run
) -> Sensitivity:
    """Of a simulation, as `simulated` has made it."""
    random = Random(0)
    before = {one.job.name: one.ended_s - one.job.submitted_s for one in run.ended}
    ranks, ratios = [], []
    for _ in range(MOVED_RUNS):
        moved = simulated(jobs, recording, nodes, measured, lambda: random.uniform(0, MOVED_S))
        after = {one.job.name: one.ended_s - one.job.submitted_s for one in moved.ended}
        ranks.append(rank_correlation([before[name] for name in before], [after[name] for name in before]))
        ratios.append(fmean(after.values()) / fmean(before.values()))
    return Sensitivity(Spread.of(ranks), Spread.of(ratios))


def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's: the correlation of ranks; equal values share the mean of theirs."""
    return float(np.corrcoef(_ranks(one), _ranks(other))[0, 1])


def _ranks(values: Sequence[float]) -> list[float]:
    ordered = sorted(values)
    return [(ordered.index(value) + len(ordered) - 1 - ordered[::-1].index(value)) / 2 for value in values]


@dataclass(frozen=True, slots=True)
class Presence:
    """A worker's process, by its own notes; seconds of the host's monotonic clock."""

    job: str
    attempt: int
    rank: int
    begin_s: float
    end_s: float


def overlapping(
    presences: Iterable[Presence], recording: Recording, slots_of_node: Mapping[str, int]
) -> tuple[str, ...]:
    """Moments at which more workers were there than their node has slots, or one was there twice."""
    changes: list[tuple[float, int, Presence]] = []
    for one in presences:
        changes += [(one.begin_s, 1, one), (one.end_s, -1, one)]
    there: defaultdict[str, int] = defaultdict(int)
    running: defaultdict[tuple[str, int], int] = defaultdict(int)
    found = []
    for _, step, one in sorted(changes, key=lambda change: change[:2]):  # who ends goes before who begins
        node = recording.attempts[one.job, one.attempt].start.nodes[one.rank]
        there[node] += step
        running[one.job, one.rank] += step
        if there[node] > slots_of_node[node] or running[one.job, one.rank] > 1:
            found.append(f"{one.job}, attempt {one.attempt}, rank {one.rank}: {there[node]} workers on {node}")
    return tuple(found)


def differing(entries: Iterable[ScheduleEvent]) -> list[int]:
    """Places of those entries of the log for which a replay of what went before decides something else."""
    state, found = State(), []
    for place, entry in enumerate(entries):
        if not says_nothing(entry) and decided(state, undecided(entry), "index")[0] != entry:
            found.append(place)
        state = fold(state, [entry])
    return found

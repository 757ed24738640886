"""How many workers elastic jobs have, once it is decided which jobs run. Pure.

A job shrinks where another would else wait, or be preempted: of the jobs that run those first that the policy wants
last, none below its least number of workers. It grows into slots that are left then; none is shrunk for another to
grow. A number of workers that was changed is held, as a start is: for so many times what the change costs.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from services.scheduler.core.attained import executed_s, pace, service_slot_s
from services.scheduler.core.jobs import Elastic, Job, Phase

_NAMED: Final = 3
"""Jobs for which another shrinks, at most."""


@dataclass(frozen=True, slots=True)
class Resize:
    """A running job has other workers from now on."""

    job: str
    nodes: tuple[str, ...]
    """Of each worker, by rank."""


@dataclass(frozen=True, slots=True)
class Goal:
    """The number of workers that a job should not exceed, and why."""

    workers: int
    why: str
    is_bound: bool = False
    """A running job with more workers gives some up although no other wants their slots."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The numbers of workers of all elastic jobs that run from now on."""

    workers: Mapping[str, int] = field(default_factory=dict)
    goals: Mapping[str, Goal] = field(default_factory=dict)


def is_size_held(job: Job, now_s: float) -> bool:
    """Whether a running job keeps its number of workers, unless it would else be preempted."""
    return job.phase is Phase.RUNNING and now_s < job.size_held_until_s


def needed_slots(job: Job, free_slots: int, now_s: float) -> int:
    """Slots without which an elastic job does not run: a waiting one as few as it may have.

    Args:
        job: waiting, or running on nodes that can all be used.
        free_slots: left for it.
        now_s: by the clock of the job's times.
    """
    if job.phase is Phase.WAITING:
        return job.least_slots
    if is_size_held(job, now_s) and job.held_slots <= free_slots:
        return job.held_slots
    return min(job.held_slots, job.least_slots)


def next_size_change_s(jobs: Sequence[Job], now_s: float) -> float:
    """When the next running job may have another number of workers although nothing happens; infinite: none."""
    held = (job.size_held_until_s for job in jobs if job.elastic is not None and is_size_held(job, now_s))
    return min(held, default=float("inf"))


def goal(job: Job, now_s: float) -> Goal:
    """The number of workers that a job should have if slots were free.

    Without a deadline or a budget the fastest. With a deadline the cheapest that meets it, if the job takes as long as
    the upper end of its estimate; the fastest if none does, or nothing is known. With a budget the fastest with which
    all slot-seconds stay below, by the same; the cheapest if none does, or nothing is known.
    """
    elastic = _elastic(job)
    sizes = range(elastic.least_workers, elastic.most_workers + 1)
    fastest = max(sizes, key=lambda workers: (elastic.speedups[workers - 1], -workers))
    if elastic.deadline_s is None and elastic.budget_slot_s is None:
        return Goal(fastest, f"{fastest} workers are its fastest")
    left_s = None if job.estimate is None else job.estimate.high_s - executed_s(job, now_s)
    if left_s is not None and left_s <= 0:
        left_s = None  # it has run for longer than its estimate has it: that is wrong
    cheapest = min(sizes, key=lambda workers: (workers / elastic.speedups[workers - 1], workers))
    times = None if left_s is None else _run_times(job, left_s, now_s)
    if elastic.deadline_s is not None:
        return _by_deadline(elastic.deadline_s - now_s, times, fastest)
    assert elastic.budget_slot_s is not None
    return _by_budget(job, elastic.budget_slot_s - service_slot_s(job, now_s), times, cheapest)


def _by_deadline(until_s: float, times: Mapping[int, float] | None, fastest: int) -> Goal:
    """Args: until_s: to the deadline. times: until its end, by number of workers."""
    if times is None:
        return Goal(fastest, f"{fastest} workers are its fastest, and nothing says whether it meets its deadline")
    meeting = [workers for workers, time_s in times.items() if time_s <= until_s]
    if not meeting:
        why = f"no size meets its deadline: {fastest} workers take {times[fastest]:.0f} s of {until_s:.0f} s"
        return Goal(fastest, why)
    workers = min(meeting, key=lambda each: (each * times[each], each))
    why = (
        f"{workers} workers are the cheapest that meet its deadline: {times[workers]:.0f} s at most of {until_s:.0f} s"
    )
    return Goal(workers, why, is_bound=True)


def _by_budget(job: Job, left_slot_s: float, times: Mapping[int, float] | None, cheapest: int) -> Goal:
    """Args: left_slot_s: of the budget. times: until its end, by number of workers."""
    if times is None:
        why = f"{cheapest} workers are its cheapest, and nothing says whether it stays below its budget"
        return Goal(cheapest, why, is_bound=True)
    costs = {workers: workers * job.slots_per_worker * time_s for workers, time_s in times.items()}
    below = [workers for workers, cost in costs.items() if cost <= left_slot_s]
    if not below:
        needed = f"{cheapest} workers need {costs[cheapest]:.0f} of {left_slot_s:.0f} slot-seconds"
        return Goal(cheapest, f"no size stays below its budget: {needed}", is_bound=True)
    workers = max(below, key=lambda each: (pace(job, each), -each))
    needed = f"{costs[workers]:.0f} of {left_slot_s:.0f} slot-seconds at most"
    return Goal(workers, f"{workers} workers are the fastest below its budget: {needed}", is_bound=True)


def _run_times(job: Job, left_s: float, now_s: float) -> dict[int, float]:
    """Until its end with each number of workers, with the pause of a change.

    Args:
        job: an elastic one.
        left_s: with as many workers as it asks for.
        now_s: by the clock of the job's times.
    """
    elastic, runs = _elastic(job), job.phase is Phase.RUNNING
    restoring_s = max(0.0, job.productive_from_s - now_s) if runs else 0.0
    return {
        workers: left_s / pace(job, workers)
        + max(restoring_s, elastic.pause_s if runs and workers != len(job.nodes) else 0.0)
        for workers in range(elastic.least_workers, elastic.most_workers + 1)
    }


def _elastic(job: Job) -> Elastic:
    assert job.elastic is not None
    return job.elastic


# -- sizes ------------------------------------------------------------------------------------------------------------


def sized(admitted: Mapping[str, int], jobs: Mapping[str, Job], free_slots: int, now_s: float) -> Sizes:
    """The numbers of workers from those with which the jobs were admitted, and the slots that are left.

    Args:
        admitted: of each elastic job that runs from now on and may be resized, the most wanted first.
        jobs: by name.
        free_slots: wanted by no job, if each has as many workers as it was admitted with.
        now_s: by the clock of the jobs' times.
    """
    growing = _Growing(dict(admitted), free_slots)
    goals = {name: goal(jobs[name], now_s) for name in admitted}
    for name, workers in admitted.items():  # first each keeps what it has
        job = jobs[name]
        if job.phase is Phase.RUNNING and len(job.nodes) > workers:
            wanted = min(len(job.nodes), goals[name].workers) if goals[name].is_bound else len(job.nodes)
            growing.take(job, min(max(wanted, workers), workers + growing.free_slots // job.slots_per_worker))
    candidates = [jobs[name] for name in admitted if _may_grow(jobs[name], growing.workers[name], now_s)]
    for job in candidates:
        if _elastic(job).deadline_s is not None:  # it needs its size; others only have use for it
            while (more := _best(job, growing, goals[job.name].workers, now_s)) is not None:
                growing.take(job, more[1])
    growing.spread([job for job in candidates if _elastic(job).deadline_s is None], goals, now_s)
    return Sizes(growing.workers, goals)


def _may_grow(job: Job, workers: int, now_s: float) -> bool:
    """Not while it is held, and not where it gives workers up at the same moment."""
    return job.phase is Phase.WAITING or (not is_size_held(job, now_s) and workers >= len(job.nodes))


@dataclass(slots=True)
class _Growing:
    """Numbers of workers, while free slots are handed out."""

    workers: dict[str, int]
    free_slots: int

    def take(self, job: Job, workers: int) -> None:
        """Let it have so many."""
        self.free_slots -= (workers - self.workers[job.name]) * job.slots_per_worker
        self.workers[job.name] = workers

    def spread(self, jobs: Sequence[Job], goals: Mapping[str, Goal], now_s: float) -> None:
        """Each slot goes where it adds the most speed; of equal ones to the job that the policy wants most."""
        queue = list[tuple[float, int, int]]()

        def push(place: int) -> None:
            best = _best(jobs[place], self, goals[jobs[place].name].workers, now_s)
            if best is not None:
                heapq.heappush(queue, (-best[0], place, best[1]))

        for place in range(len(jobs)):
            push(place)
        while queue and self.free_slots > 0:
            _, place, workers = heapq.heappop(queue)
            job = jobs[place]
            if (workers - self.workers[job.name]) * job.slots_per_worker <= self.free_slots:
                self.take(job, workers)
            push(place)


def _best(job: Job, growing: _Growing, most: int, now_s: float) -> tuple[float, int] | None:
    """The next larger number of workers, by the speed that each further slot adds; None: no larger one is of use."""
    has, speedups = growing.workers[job.name], _elastic(job).speedups
    most = min(most, has + growing.free_slots // job.slots_per_worker)
    gains = [
        ((speedups[workers - 1] - speedups[has - 1]) / ((workers - has) * job.slots_per_worker), workers)
        for workers in range(has + 1, most + 1)
        if speedups[workers - 1] > speedups[has - 1] and _pays(job, workers, now_s)
    ]
    return max(gains, key=lambda gain: (gain[0], -gain[1]), default=None)


def _pays(job: Job, workers: int, now_s: float) -> bool:
    """Whether a running job gains more time than the change costs, as far as its estimate says what it has left."""
    if job.phase is not Phase.RUNNING or job.estimate is None:
        return True
    left_s = job.estimate.median_s - executed_s(job, now_s)
    if left_s <= 0:
        return True  # its estimate is wrong: nothing is known
    gained_s = left_s / pace(job, len(job.nodes)) - left_s / pace(job, workers)
    return gained_s > _elastic(job).pause_s


def kept_nodes(job: Job, workers: int) -> tuple[str, ...]:
    """Where so many of its workers stay, by rank: those leave first that are alone on their nodes."""
    on_node = Counter(job.nodes)
    leaving = sorted(range(len(job.nodes)), key=lambda rank: (on_node[job.nodes[rank]], job.nodes[rank], rank))
    gone = set(leaving[: len(job.nodes) - workers])
    return tuple(name for rank, name in enumerate(job.nodes) if rank not in gone)


# -- reasons ----------------------------------------------------------------------------------------------------------


def size_reasons(
    jobs: Sequence[Job], sizes: Sizes, after: Mapping[str, int], chosen: Sequence[str], now_s: float
) -> dict[str, str]:
    """Of each elastic job that runs from now on: why it has so many workers.

    Args:
        jobs: as they were.
        sizes: what was decided.
        after: numbers of workers of those that start or change: added are only those for which there is room.
        chosen: jobs that run from now on, the most wanted first.
        now_s: by the clock of the jobs' times.
    """
    if not sizes.workers:
        return {}
    waiting = {job.name for job in jobs if job.phase is Phase.WAITING}
    starting = [name for name in chosen if name in waiting]
    return {
        job.name: _size_reason(job, after.get(job.name, len(job.nodes)), sizes.goals[job.name], starting, now_s)
        for job in jobs
        if job.name in sizes.workers and (job.nodes or job.name in after)
    }


def _size_reason(job: Job, workers: int, wanted: Goal, starting: Sequence[str], now_s: float) -> str:
    elastic, had = _elastic(job), len(job.nodes)
    between = f"of {elastic.least_workers} to {elastic.most_workers}"
    if job.phase is Phase.WAITING:
        return f"starts with {workers} workers {between}: {elastic.speedups[workers - 1]:.2f} times as fast as one"
    if workers > had:
        faster = pace(job, workers) / pace(job, had)
        return f"grows from {had} to {workers} workers {between}: {faster:.2f} times as fast, on slots that were free"
    if workers < had:
        others = [name for name in starting if name != job.name][:_NAMED]
        given = f"{(had - workers) * job.slots_per_worker} slots are for {' '.join(others) or 'others'}"
        chosen = wanted.is_bound and workers == wanted.workers
        return f"shrinks from {had} to {workers} workers {between}: {wanted.why if chosen else given}"
    if is_size_held(job, now_s):
        return (
            f"keeps {had} workers {between} for {job.size_held_until_s - now_s:.0f} s: a change pauses it for "
            f"{elastic.pause_s:g} s, and {elastic.hold_s:g} s have to be between two"
        )
    return f"has {had} workers {between}; {wanted.why}"

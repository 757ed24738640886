"""Which jobs run from now on: the only place where it is decided, for the service and for simulations."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from services.scheduler.core.jobs import Job, Node, Phase, changed
from services.scheduler.core.placement import Room
from services.scheduler.core.policies import Policy
from services.scheduler.core.sizes import Resize, Sizes, kept_nodes, needed_slots, size_reasons, sized


@dataclass(frozen=True, slots=True)
class Start:
    """All workers of a job begin."""

    job: str
    nodes: tuple[str, ...]
    """Of each worker, by rank."""


class Turn(NamedTuple):
    """One job in the order of the policy, and what was left for it."""

    job: str
    free_slots: int
    """Not wanted by those before it; those that wait for a job that is stopping count."""
    chosen: bool
    held: bool = False
    """It goes first because it was started or preempted a short time ago, or has waited too long."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What changes, and why."""

    jobs: tuple[Job, ...]
    """As settled by the policy, before the changes."""
    starts: tuple[Start, ...]
    preempts: tuple[str, ...]
    turns: tuple[Turn, ...]
    """The most wanted first."""
    unplaced: Mapping[str, str] = field(default_factory=dict)
    """Why waiting jobs that have enough free slots do not start, where it is for the planner's answers."""
    resizes: tuple[Resize, ...] = ()
    """Elastic jobs that run on with other workers."""
    size_reasons: Mapping[str, str] = field(default_factory=dict)
    """Of the elastic jobs that run from now on: why they have so many workers."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What else a decision goes by."""

    stops_at_once: bool = False
    """A preempted job's slots are free in the same moment, as in simulations. Otherwise a job starts only on slots that
    are free, and those of jobs that are stopping are kept for whose turn it is: what becomes free piece by piece would
    else go to small jobs, for which others then have to stop again."""
    passed_over: Collection[str] = ()
    """Waiting jobs that get no slots: those that are free are of no use to them."""


def decide(
    jobs: Sequence[Job], nodes: Sequence[Node], policy: Policy, now_s: float, terms: Terms = Terms()
) -> Decision:
    """Go down the policy's order; who fits into what is left gets its slots, whole or not at all.

    An elastic job needs no more slots than it has to have: what is left in the end is for it to keep, or to grow into.

    Args:
        jobs: all that have not ended, in the order of the last decision's, new ones last.
        nodes: of the cluster.
        policy: of the order.
        now_s: by the clock of the jobs' times.
        terms: of a live cluster, unless they say otherwise.
    """
    settled = policy.settle(jobs, now_s)
    order = _yielding(policy.order(settled))
    waiting, running, stopping = _by_phase(settled)
    scattered, shapes = set(terms.passed_over), _Shapes(nodes)
    while True:
        rules = _Rules(policy, now_s, frozenset(scattered), shapes)
        fit = _first_fit(running, stopping, order, nodes, rules)
        chosen = [turn.job for turn in fit.turns if turn.chosen]
        begin = [waiting[name] for name in chosen if name in waiting]
        preempts = _preempted(running, set(chosen))
        sizes = _sizes(settled, fit, now_s)
        shrinks = tuple(_shrinks(running, sizes))
        later = _after_stops([*running, *stopping] if terms.stops_at_once else running, preempts, shrinks)
        room = Room(nodes, later)
        waits = not terms.stops_at_once and bool(stopping or preempts or shrinks)
        is_ample = waits and not fit.admitted and room.holds(begin)  # wherever each is placed: none has to be tried
        starts, without_room = ((), set[str]()) if is_ample else _placed(begin, room, sizes)
        # Slots that are enough in number but scattered over nodes go to the next: no job stops for them in vain.
        if without_room:
            scattered |= _alike(order, without_room)
            continue
        if waits:
            room = Room(nodes, [*running, *stopping])
            if is_ample:
                starts = _placed(begin, room, sizes)[0]
            else:
                starts = _before_stops(begin, starts, room, Room(nodes, later), sizes)
        all_start = len(starts) == len(begin)
        resizes = (*shrinks, *(_grows(running, sizes, room) if all_start else ()))
        after = {start.job: len(start.nodes) for start in starts}
        after |= {resize.job: len(resize.nodes) for resize in resizes}
        reasons = size_reasons(settled, sizes, after, chosen, now_s)
        return Decision(tuple(settled), starts, preempts, fit.turns, resizes=resizes, size_reasons=reasons)


def _by_phase(settled: Sequence[Job]) -> tuple[dict[str, Job], list[Job], list[Job]]:
    """Those that wait, by name, those that run, and those that are stopping: each in the order given."""
    waiting, running, stopping = dict[str, Job](), list[Job](), list[Job]()
    is_waiting, is_running = Phase.WAITING, Phase.RUNNING  # Python 3.11 takes as long to find these as all of the rest
    for job in settled:
        if job.phase is is_waiting:
            waiting[job.name] = job
        elif job.phase is is_running:
            running.append(job)
        else:
            stopping.append(job)
    return waiting, running, stopping


def _yielding(order: Sequence[Job]) -> list[Job]:
    """A waiting job that a person has preempted goes behind those that waited then: its slots are for them."""
    found = list(order)
    for job in [job for job in order if job.yields_to_s and job.phase is Phase.WAITING]:
        place = found.index(job)
        del found[place]
        last = max((at for at, other in enumerate(found) if _goes_before(other, job)), default=-1)
        found.insert(max(place, last + 1), job)
    return found


def _goes_before(other: Job, job: Job) -> bool:
    return other.phase is Phase.WAITING and not other.yields_to_s and other.submitted_s <= job.yields_to_s


def _shape(job: Job) -> tuple[int, int]:
    """What a place is for: slots of all workers, and of each."""
    return (job.slots, job.slots_per_worker)


class _Shapes:
    """Which numbers and sizes of workers the nodes have a place for while they are empty: jobs have few of these."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._empty = Room(nodes)
        self._known: dict[tuple[int, int], bool] = {}

    def has_place(self, job: Job) -> bool:
        """Whether there is one for a job; of an elastic one that is not asked, as it has several numbers."""
        shape = _shape(job)
        if shape not in self._known:
            self._known[shape] = self._empty.find(job) is not None
        return self._known[shape] or job.elastic is not None


@dataclass(frozen=True, slots=True)
class _Rules:
    policy: Policy
    now_s: float
    scattered: frozenset[str]
    """Jobs for whose workers no node has enough slots, or that are passed over."""
    shapes: _Shapes

    def keeps(self, job: Job) -> bool:
        """Whether a job that has slots keeps them whatever the order says."""
        if not self.policy.preemptive or not job.preemptible:
            return True
        return self.policy.holds and self.now_s < job.held_until_s

    def is_passed_over(self, job: Job) -> bool:
        """Whether slots that a waiting job needs are of no use to it, however many are left."""
        return job.name in self.scattered or not self.shapes.has_place(job)


@dataclass(frozen=True, slots=True)
class _Fit:
    turns: tuple[Turn, ...]
    admitted: Mapping[str, int]
    """Of each elastic job that is chosen and may be resized, in the order of turns: the fewest workers for now."""
    free_slots: int
    """Wanted by none, if elastic jobs have so few."""


def _first_fit(
    running: Sequence[Job], stopping: Sequence[Job], order: Sequence[Job], nodes: Sequence[Node], rules: _Rules
) -> _Fit:
    free = Room(nodes).slots
    usable = {node.name for node in nodes if node.available}
    kept = {job.name: job for job in running if rules.keeps(job)}
    turns, blocked = [Turn(job.name, free, chosen=False, held=True) for job in stopping], False
    first, admitted = {*kept, *(job.name for job in stopping)}, dict[str, int]()
    is_waiting, is_passed_over, backfills = Phase.WAITING, rules.is_passed_over, rules.policy.backfills
    for job in (*kept.values(), *(job for job in order if job.name not in first)):
        # A running job takes what it has on nodes that can be used: on a drained one it may stay.
        waits = job.phase is is_waiting
        needs = job.slots if waits else job.slots_per_worker * sum(name in usable for name in job.nodes)
        is_resizable = job.elastic is not None and (waits or usable.issuperset(job.nodes))
        if is_resizable:
            needs = needed_slots(job, free, rules.now_s)
        fits = needs <= free and not (waits and (blocked or is_passed_over(job)))
        turns.append(Turn(job.name, free, fits, job.name in kept))
        if fits:
            free -= needs
            if is_resizable:
                admitted[job.name] = needs // job.slots_per_worker
        elif not backfills:
            blocked = True
    return _Fit(tuple(turns), admitted, free)


def _sizes(settled: Sequence[Job], fit: _Fit, now_s: float) -> Sizes:
    if not fit.admitted:
        return Sizes()
    return sized(fit.admitted, {job.name: job for job in settled}, fit.free_slots, now_s)


def _shrinks(running: Sequence[Job], sizes: Sizes) -> Iterator[Resize]:
    for job in running:
        workers = sizes.workers.get(job.name, len(job.nodes))
        if workers < len(job.nodes):
            yield Resize(job.name, kept_nodes(job, workers))


def _grows(running: Sequence[Job], sizes: Sizes, room: Room) -> Iterator[Resize]:
    """With as many of the workers that it should get as there is room for."""
    for job in running:
        more = sizes.workers.get(job.name, len(job.nodes)) - len(job.nodes)
        if more > 0 and (where := _find(job, range(more, 0, -1), room)) is not None:
            room.take(where, job.slots_per_worker)
            yield Resize(job.name, (*job.nodes, *where))


def _find(job: Job, sizes: Sequence[int], room: Room) -> tuple[str, ...] | None:
    """The nodes of so many workers: the first of these numbers for which there is room."""
    found = (room.find(changed(job, slots=workers * job.slots_per_worker)) for workers in sizes)
    return next((where for where in found if where is not None), None)


def _preempted(running: Sequence[Job], chosen: set[str]) -> tuple[str, ...]:
    return tuple(job.name for job in running if job.name not in chosen)


def _after_stops(holding: Sequence[Job], preempts: Collection[str], shrinks: Sequence[Resize]) -> list[Job]:
    """The jobs that hold slots once all that stop have stopped.

    Args:
        holding: running ones, and those that are stopping where these are done at once.
        preempts: jobs that stop.
        shrinks: jobs that run on with fewer workers.
    """
    less = {each.job: each.nodes for each in shrinks}
    return [
        changed(job, nodes=less[job.name]) if job.name in less else job for job in holding if job.name not in preempts
    ]


def _before_stops(
    begin: Sequence[Job], planned: tuple[Start, ...], now: Room, later: Room, sizes: Sizes
) -> tuple[Start, ...]:
    """What starts before others have stopped: what there is room for, if the rest has room later all the same.

    Else what is planned on slots that are free already; if even that leaves too little room for the rest, nothing.

    Args:
        begin: the chosen jobs that wait.
        planned: their starts, if each waited until all that stop have stopped.
        now: what is free; it loses what starts.
        later: what is free once all that stop have stopped.
        sizes: of elastic jobs.
    """
    size = {job.name: job.slots_per_worker for job in begin}
    for starts in (_placed(begin, now.copy(), sizes)[0], tuple(_free(planned, now.copy(), size)), ()):
        left, started = later.copy(), {start.job for start in starts}
        _take(starts, left, size)
        if not _placed([job for job in begin if job.name not in started], left, sizes)[1]:
            break
    _take(starts, now, size)
    return starts


def _alike(order: Sequence[Job], names: set[str]) -> set[str]:
    """These jobs, and those that wait behind one of them for as many slots in pieces of the same size.

    To try each in a round of its own would take hundreds of these, where thousands wait.
    """
    found, shapes = set(names), set[tuple[int, int]]()
    for job in order:
        if job.elastic is not None:
            continue
        if job.name in names:
            shapes.add(_shape(job))
        elif job.phase is Phase.WAITING and _shape(job) in shapes:
            found.add(job.name)
    return found


def _free(starts: Sequence[Start], room: Room, size: Mapping[str, int]) -> Iterator[Start]:
    """Those for all of whose workers there is room where they are to be."""
    for start in starts:
        if room.has(start.nodes, size[start.job]):
            room.take(start.nodes, size[start.job])
            yield start


def _take(starts: Sequence[Start], room: Room, size: Mapping[str, int]) -> None:
    for start in starts:
        room.take(start.nodes, size[start.job])


def _placed(begin: Sequence[Job], room: Room, sizes: Sizes) -> tuple[tuple[Start, ...], set[str]]:
    """Starts of chosen jobs, which take their slots, and the names of those for which there is no room."""
    starts, without_room = [], set[str]()
    missing = set[tuple[int, int]]()  # nothing becomes free here, so the next job of that shape finds no room either
    for job in begin:
        if job.elastic is None:
            where = None if _shape(job) in missing else room.find(job)
        else:
            where = _find(job, range(sizes.workers[job.name], job.elastic.least_workers - 1, -1), room)
        if where is None:
            without_room.add(job.name)
            missing |= {_shape(job)} if job.elastic is None else set()
            continue
        starts.append(Start(job.name, where))
        room.take(where, job.slots_per_worker)
    return tuple(starts), without_room

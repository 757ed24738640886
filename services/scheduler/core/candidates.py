"""The best of several places for each job that starts: by the planner's answers, and by how links are shared. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import dropwhile
from typing import Final

from schemas.scheduling import JobPlanned, TrafficProfile
from services.scheduler.core.decide import Decision, Start
from services.scheduler.core.interleaving.all_links import Shared
from services.scheduler.core.interleaving.plan import fit
from services.scheduler.core.jobs import Job, Node, Phase
from services.scheduler.core.live import Live
from services.scheduler.core.placement import Room
from services.scheduler.core.planned_places import (
    MOST_NAMES,
    Place,
    Question,
    best,
    compared,
    does_not_fit,
    question,
)
from services.scheduler.core.shared_links import LinkUse, profile_of, users
from services.scheduler.core.state import State

CANDIDATES: Final = 8
MOST_ASKED: Final = 16
"""Jobs about which a decision asks; those behind them are asked about once these are answered."""
_DIGITS: Final = 6
"""Placements whose scores are equal to so many are equally good."""


@dataclass(slots=True)
class Placed:
    """The starts of a decision, each at its place."""

    starts: list[Start] = field(default_factory=list)
    planned: list[JobPlanned] = field(default_factory=list)
    """The planner's answer about the place of each that has a model."""
    asked: dict[str, Question] = field(default_factory=dict)
    """Of jobs that start once these are answered: until then their slots are kept."""
    behind: list[str] = field(default_factory=list)
    """Jobs that are to be asked about later: their slots are kept as well."""
    unfit: dict[str, str] = field(default_factory=dict)
    """Jobs that fit nowhere by the planner, and why: their slots are of use to others."""


def well_placed(state: State, decision: Decision, nodes: Sequence[Node]) -> Placed:
    """The starts of a decision, each at the best of up to `CANDIDATES` places; of equal ones at the first.

    The first is where the decision has it; once a start has moved, those behind it may have lost these places: then it
    is where `Room.find` has them. A place that leaves no room for a later start is none.

    Args:
        state: before the decision.
        decision: whose starts fit beside each other.
        nodes: of the cluster.
    """
    jobs = {job.name: job for job in decision.jobs}
    placed = Placed(unfit=dict(_still_unfit(state, decision, nodes, jobs)))
    with_model = {start.job for start in decision.starts if state.live[start.job].spec.model}
    if not with_model and not (state.traffic.links and state.traffic.profiles):
        placed.starts += decision.starts
        return placed
    room, links, moved = Room(nodes, decision.jobs), _Links.of(state), False
    for place, start in enumerate(decision.starts):
        later = [jobs[each.job] for each in decision.starts[place + 1 :]]
        first, live = None if moved else start.nodes, state.live[start.job]
        turn = _Turn(links, room, jobs[start.job], later, first)
        where = turn.planned(live, state, placed) if start.job in with_model else turn.best()
        if where is None:  # what is behind it fits beside it, not always instead of it: that is decided anew
            placed.unfit |= _unfit_behind(start.job, state, decision, room)
            return placed
        if start.job not in placed.asked and start.job not in placed.behind:
            placed.starts.append(Start(start.job, where))
            links.add(start.job, where)
        moved = moved or where != start.nodes
        room.take(where, jobs[start.job].slots_per_worker)
    return placed


def _still_unfit(
    state: State, decision: Decision, nodes: Sequence[Node], jobs: Mapping[str, Job]
) -> Iterator[tuple[str, str]]:
    """Jobs for which others are to stop although they would not fit there either, by what the planner has answered."""
    starting = {start.job for start in decision.starts}
    for turn in decision.turns:
        job, live = jobs[turn.job], state.live[turn.job]
        if turn.chosen and live.answers and job.name not in starting:
            stay = (job for job in decision.jobs if job.phase is Phase.RUNNING and job.name not in decision.preempts)
            if _is_refused(job, live, Room(nodes, stay)):
                yield job.name, does_not_fit(live.answers)


def _unfit_behind(first: str, state: State, decision: Decision, room: Room) -> dict[str, str]:
    """Waiting jobs behind this one that do not fit into what is free, either: one by one that takes a decision each."""
    jobs = {job.name: job for job in decision.jobs if job.phase is Phase.WAITING and state.live[job.name].answers}
    behind = dropwhile(lambda name: name != first, (turn.job for turn in decision.turns))
    return {
        name: does_not_fit(state.live[name].answers)
        for name in behind
        if name in jobs and _is_refused(jobs[name], state.live[name], room)
    }


def _is_refused(job: Job, live: Live, room: Room) -> bool:
    """Whether it has places there, and fits into none of them by the planner."""
    found = room.candidates(job, _most(live), by_device=True)
    return bool(found) and {answer.nodes for answer in live.answers if answer.missing_bytes}.issuperset(found)


def _most(live: Live) -> int:
    return max(1, min(CANDIDATES, MOST_NAMES // live.spec.workers))


@dataclass(frozen=True, slots=True)
class _Turn:
    """One job that starts, and what is free for it."""

    links: _Links
    room: Room
    job: Job
    later: Sequence[Job]
    """Jobs that start behind it."""
    first: Place | None
    """Where it leaves room for all of these; None: where `Room.find` has it."""

    def _candidates(self, most: int, *, by_device: bool = False) -> list[Place]:
        """Places for it; the first leaves room for those behind it, of the others that is not known."""
        if most == 1 and self.first is not None:
            return [self.first]
        found = self.room.candidates(self.job, most, by_device=by_device)
        if self.first is None:
            return found
        return [self.first, *(place for place in found if sorted(place) != sorted(self.first))][:most]

    def best(self) -> Place:
        """Where the links score best."""
        if self.job.name not in self.links.profiles:
            return self._candidates(1)[0]
        candidates = self._candidates(CANDIDATES)
        scores = self.links.scores(self.job.name, candidates)
        order = sorted(range(len(candidates)), key=lambda place: (-scores[place], place))
        return next(candidates[place] for place in order if place == 0 or self._leaves_room(candidates[place]))

    def planned(self, live: Live, state: State, placed: Placed) -> Place | None:
        """Where its step is the shortest, or the first place, which is kept until the planner has answered.

        None: it fits into none of the places.
        """
        name, answers = self.job.name, live.answers
        if not answers and len(placed.asked) >= MOST_ASKED:
            placed.behind.append(name)
            return self._candidates(1)[0]
        found = self._candidates(_most(live), by_device=True)
        candidates = [place for place in found if place == found[0] or self._leaves_room(place)]
        first = candidates[0]
        free = [each for each in answers if not each.missing_bytes and self._is_free(each.nodes, first)]
        places = {answer.nodes for answer in free}
        if (asked := question(live, candidates, places, state.nodes)) is not None:
            placed.asked[name] = asked
            return first
        if not free:
            placed.unfit[name] = does_not_fit(answers)
            return None
        ordered = sorted(
            places, key=lambda place: (candidates.index(place) if place in candidates else CANDIDATES, place)
        )
        scores = self.links.scores(name, ordered) if name in self.links.profiles else [0.0] * len(ordered)
        chosen = best(free, dict(zip(ordered, scores, strict=True)))
        placed.planned.append(chosen.model_copy(update={"compared": compared(chosen, answers, places)}))
        return chosen.nodes

    def _is_free(self, place: Place, first: Place) -> bool:
        return place == first or (self.room.has(place, self.job.slots_per_worker) and self._leaves_room(place))

    def _leaves_room(self, where: Place) -> bool:
        left = self.room.copy()
        left.take(where, self.job.slots_per_worker)
        if left.holds(self.later):
            return True
        for each in self.later:
            found = left.find(each)
            if found is None:
                return False
            left.take(found, each.slots_per_worker)
        return True


@dataclass(slots=True)
class _Links:
    """Who uses which link while jobs are placed."""

    use: LinkUse
    rates: Mapping[str, float]
    users: dict[str, tuple[str, ...]]
    profiles: Mapping[str, TrafficProfile]
    _known: dict[tuple[str, tuple[str, ...]], float] = field(default_factory=dict)

    @classmethod
    def of(cls, state: State) -> _Links:
        """As of now; a job that waits has the profile that it had where it ran before."""
        profiles = {
            name: profile
            for name, live in state.live.items()
            if (profile := profile_of(state, live) if live.workers else state.traffic.profiles.get(name)) is not None
        }
        rates = {link.link: float(link.bits_per_s) for link in state.traffic.links}
        return cls(LinkUse(state.traffic.links), rates, users(state), profiles)

    def add(self, job: str, nodes: Sequence[str]) -> None:
        """A job starts there."""
        for link in self.use.links(nodes):
            self.users[link] = tuple(sorted((*self.users.get(link, ()), job)))

    def scores(self, job: str, candidates: Sequence[Sequence[str]]) -> list[float]:
        """The sum over all links that one of the candidates uses, for each of them."""
        used = [set(self.use.links(nodes)) for nodes in candidates]
        touched = sorted(set[str]().union(*used))
        return [round(sum(self._score(link, job if link in own else "") for link in touched), _DIGITS) for own in used]

    def _score(self, link: str, job: str) -> float:
        jobs = tuple(name for name in self.users.get(link, ()) if name in self.profiles)
        jobs = tuple(sorted((*jobs, job))) if job else jobs
        if (link, jobs) not in self._known:
            alone = len(jobs) < 2
            self._known[link, jobs] = 1.0 if alone else fit(Shared(self.rates[link], jobs), self.profiles)
        return self._known[link, jobs]

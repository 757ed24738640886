"""A decision in words: why a job runs, or waits, behind whom, and until when. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from services.scheduler.core.attained import executed_s
from services.scheduler.core.decide import Decision, Turn
from services.scheduler.core.forecast import Expected, Left, Situation, left
from services.scheduler.core.jobs import Job, Node, Phase, changed
from services.scheduler.core.placement import Room
from services.scheduler.core.policies import Policy

_SHORTEST_S = 0.5
"""Of a run time that is not shown as 0 s."""
_NAMED = 3
"""Jobs that another waits for, at most."""
_UNITS_S = ((86_400, "d"), (3_600, "h"), (60, "min"))


@dataclass(frozen=True, slots=True)
class Explanation:
    """Of one job."""

    job: str
    why: str
    """Why it runs or waits, with the numbers that decided."""
    left: Left | None
    """Run time that it still needs; None: not known."""
    expected: Expected | None
    ahead: tuple[str, ...]
    """Jobs before it in the order that hold or get slots; the most wanted first."""


class Explainer:
    """Explains the jobs of one decision."""

    def __init__(
        self, situation: Situation, decision: Decision, expected: Mapping[str, Expected], policy: Policy
    ) -> None:
        self.policy = policy
        self._situation = situation
        self._decision = decision
        self._expected = expected
        self._jobs = {job.name: job for job in decision.jobs}
        self._places = {turn.job: place for place, turn in enumerate(decision.turns)}
        self._chosen = [turn.job for turn in decision.turns if turn.chosen]
        self._chosen_before = [0, *accumulate(turn.chosen for turn in decision.turns)]
        """Of each place."""

    def explain(self, name: str) -> Explanation:
        """Why a job runs or waits.

        Raises:
            KeyError: the decision knows no such job.
        """
        job, place, situation = self._jobs[name], self._places[name], self._situation
        turns = self._decision.turns
        before = self._chosen[: self._chosen_before[place]]
        known = left(job, situation.observed, situation.now_s)
        parts = (
            _state(job, turns[place], situation, self._decision, self._behind(place)),
            self._decision.size_reasons.get(name, ""),
            self.policy.order_reason(job, situation.now_s) or _rank(job, before, self._jobs),
            _knowledge(job, known, situation),
            self._why_unknown_start(job, place),
        )
        return Explanation(name, "; ".join(filter(None, parts)), known, self._expected.get(name), tuple(before))

    def _behind(self, place: int) -> str:
        """That a waiting job may not pass one before it, whatever is left; empty: it may, or there is none."""
        first = self._blocking
        if first is None or place <= first:
            return ""
        return f"waits behind {self._decision.turns[first].job}, which has no room: no job passes another here"

    @cached_property
    def _blocking(self) -> int | None:
        """The place of the first job without room, where none may pass it."""
        if self.policy.backfills:
            return None
        turns = enumerate(self._decision.turns)
        is_stopping = {name: job.phase is Phase.STOPPING for name, job in self._jobs.items()}
        return next((place for place, turn in turns if not turn.chosen and not is_stopping[turn.job]), None)

    def _why_unknown_start(self, job: Job, place: int) -> str:
        """Why a waiting job has no expected start although it will have one; empty: it has one, or none was asked."""
        expected = self._expected.get(job.name)
        if expected is None or job.phase is not Phase.WAITING or not math.isinf(expected.start_s):
            return ""
        if Room(self._situation.nodes).find(job) is None:
            return ""  # never, as was said
        before = [name for name in self._endless if self._places[name] < place][:_NAMED]
        if not before:
            return "when it starts is too far ahead to be told"
        never = [name for name in before if not self._jobs[name].preemptible]
        kept = f", and {' '.join(never)} may not be preempted" if never else ""
        return f"when it starts is not known: nothing tells when {' '.join(before)} will end{kept}"

    @cached_property
    def _endless(self) -> tuple[str, ...]:
        """Chosen jobs of which nothing is known, so that they may run for ever; in their order."""
        situation = self._situation
        return tuple(
            name for name in self._chosen if left(self._jobs[name], situation.observed, situation.now_s) is None
        )


def _state(job: Job, turn: Turn, situation: Situation, decision: Decision, behind: str) -> str:
    if job.phase is Phase.STOPPING:
        return f"preempted: it saves its state, and still holds {_held(job)} slots"
    if job.phase is Phase.RUNNING:
        return _running(job, turn, situation.now_s, decision)
    if job.name in {start.job for start in decision.starts}:
        return f"starts now: {turn.free_slots} slots were left at its turn"
    return _waiting(job, turn, situation, decision, behind)


def _running(job: Job, turn: Turn, now_s: float, decision: Decision) -> str:
    if job.name in decision.preempts:
        needs = f"it holds {job.slots}" if job.elastic is None else f"it needs {job.least_slots}"
        return f"preempted now: {turn.free_slots} slots are left for it, and {needs}"
    if not job.preemptible:
        return "may not be preempted"
    if turn.held and now_s < job.held_until_s:
        return f"held for {duration(job.held_until_s - now_s)}: to stop it before would cost more than it gains"
    return f"runs: {turn.free_slots} slots were left at its turn"


def _waiting(job: Job, turn: Turn, situation: Situation, decision: Decision, behind: str) -> str:
    needs = job.least_slots
    evenly = ", as many workers on each of its nodes" if any(node.equal_workers for node in situation.nodes) else ""
    if (why := _no_place(changed(job, slots=needs), situation.nodes, evenly)) is not None:
        return why
    if (why := decision.unplaced.get(job.name)) is not None:
        return why
    if turn.chosen:
        stopping = [each.name for each in situation.jobs if each.phase is Phase.STOPPING]
        return f"starts as soon as {' '.join([*stopping, *decision.preempts][:3]) or 'others'} have stopped"
    if needs <= turn.free_slots and behind:
        return behind
    if needs <= turn.free_slots:
        each = f"{job.slots_per_worker} on one node for each worker{evenly}"
        return f"{turn.free_slots} slots are left for it, but not {each}: no job is preempted for it"
    return f"needs {needs} slots, and {turn.free_slots} are left behind those before it"


def _no_place(job: Job, nodes: Sequence[Node], evenly: str) -> str | None:
    """Why a job would not start on empty nodes either; None: it would."""
    usable = Room(nodes)
    if usable.find(job) is not None:
        return None
    needs, every = f"needs {job.slots} slots{_in_pieces(job)}{evenly}", Room(replace(n, available=True) for n in nodes)
    if every.find(job) is None:
        return f"{needs}, and the cluster has {every.slots}: it will never start"
    missing = [node.name for node in nodes if not node.available]
    more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
    waits = f"it waits for {' '.join(missing[:_NAMED])}{more}, where nothing can be started"
    return f"{needs}, and the nodes that can be used now have {usable.slots}: {waits}"


def _held(job: Job) -> int:
    return job.slots if job.elastic is None else job.held_slots


def _in_pieces(job: Job) -> str:
    return f" in pieces of {job.slots_per_worker}" if job.slots_per_worker > 1 else ""


def _rank(job: Job, before: list[str], jobs: Mapping[str, Job]) -> str:
    """By which index it stands where it stands, and who is next before it."""
    if math.isinf(job.rank):
        return "it has waited so long that it goes first"
    ahead = next((jobs[name] for name in reversed(before) if jobs[name].rank > 0), None)
    if not job.rank or ahead is None:
        return ""
    # Per second of service the index is tiny: its inverse is the service after which an end is to be expected.
    return f"index {3_600 * job.rank:.3g} per slot-hour, {ahead.name}'s {3_600 * ahead.rank:.3g}"


def _knowledge(job: Job, known: Left | None, situation: Situation) -> str:
    had = executed_s(job, situation.now_s)
    if known is None:
        return f"nothing is known of jobs that have run for {duration(had)}"
    if known.samples is None:
        source = job.estimate.source if job.estimate is not None else ""
        whose = f"the {source}'s" if source else "its"
        return f"by {whose} estimate {_interval(known)} are left"
    if had < _SHORTEST_S:
        return f"no estimate: {known.samples} jobs that have ended took {_interval(known)}"
    return f"no estimate: {known.samples} jobs that ran for {duration(had)} had {_interval(known)} left"


def _interval(known: Left) -> str:
    return f"{duration(known.median_s)} ({duration(known.low_s)} to {duration(known.high_s)})"


def duration(seconds: float) -> str:
    """Such as ``48 s``, ``12 min``, ``1.5 h``, ``3 d``; ``never`` where it is infinite."""
    if math.isinf(seconds):
        return "never"
    for unit_s, unit in _UNITS_S:
        if seconds >= unit_s:
            value = seconds / unit_s
            return f"{value:.1f} {unit}" if value < 10 and unit != "min" else f"{value:.0f} {unit}"
    return f"{seconds:.0f} s"

"""What follows from the state now: which attempts begin and stop, why, and when the next decision may differ. Pure.

`services.scheduler.core.decide` decides, here as in simulations; this module puts its decision into the log's words.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from schemas.scheduling import (
    MAX_REASON_CHARACTERS,
    MAX_REASONS,
    AttemptStart,
    AttemptStop,
    JobPlanned,
    JobReason,
    ScheduleDecision,
    Trigger,
)
from services.scheduler.core.attained import service_slot_s
from services.scheduler.core.candidates import Placed, well_placed
from services.scheduler.core.decide import Decision, Start, Terms, decide
from services.scheduler.core.explain import Explainer
from services.scheduler.core.forecast import Situation
from services.scheduler.core.jobs import Job, Phase, changed
from services.scheduler.core.live_policies import live_policy, remembers
from services.scheduler.core.planned_places import Question
from services.scheduler.core.policies import LargestIndex, Policy
from services.scheduler.core.state import State

MOST_CHANGES: Final = 100
MOST_WORKERS: Final = 4_096
"""Starts, stops, and workers that start in one decision, so that it fits into an entry; the others come next."""
FIRST_PORT: Final = 29_500
PORTS: Final = 400


@dataclass(frozen=True, slots=True)
class Outcome:
    """One decision about the state."""

    decision: Decision
    situation: Situation
    message: ScheduleDecision
    """Without starts and stops it need not be stored."""
    next_change_s: float
    """When it may be another one although nothing happens; infinite: never."""
    settled: Mapping[str, tuple[Job, Job]]
    """Each job as the state had it, and as the policy settled it."""
    questions: tuple[Question, ...] = ()
    """For the planner: about jobs that wait for nothing else."""
    planned: tuple[JobPlanned, ...] = ()
    """Of jobs with a model that start: the planner's answer about the place."""

    @property
    def changes(self) -> bool:
        """Whether anything starts or stops."""
        return bool(self.message.starts or self.message.stops)

    @property
    def is_stored(self) -> bool:
        """Whether the next decision depends on it: also where jobs have only moved in the queues of the policy."""
        return self.changes or (
            remembers(self.message.policy)
            and any(
                (before.level, before.position) != (after.level, after.position)
                for before, after in self.settled.values()
            )
        )


def evaluate(state: State, now_s: float, policy: str, trigger: Trigger, last: Outcome | None = None) -> Outcome:
    """Decide as of now.

    Args:
        state: of all jobs.
        now_s: seconds since the epoch, by the clock of the log's entries.
        policy: one of `services.scheduler.core.live_policies`.
        trigger: what it is looked at for.
        last: the outcome before, which changes nothing of this one: jobs that are the same need not be copied again.
    """
    situation, informed = situation_of(state, now_s), live_policy(policy, state.observed)
    known = last.settled if last is not None and not informed.remembers else {}
    jobs = [_settled(job, known) for job in situation.jobs]
    decision, placed = _placed(state, jobs, situation, informed)
    starts = tuple(_numbered(state, _first(decision.starts)))
    preempts = decision.preempts[:MOST_CHANGES]
    explainer = Explainer(situation, decision, {}, informed)
    stops = tuple(
        AttemptStop(job=name, attempt=state.live[name].attempt, why=cut(explainer.explain(name).why))
        for name in preempts
    )
    changing = {start.job for start in starts} | set(preempts)
    reasons = _reasons(decision, changing, explainer, now_s)
    message = ScheduleDecision(trigger=trigger, policy=policy, starts=starts, stops=stops, reasons=reasons)
    later = [live.not_before_s for live in state.live.values() if live.not_before_s > now_s]
    complete = len(starts) == len(decision.starts) and preempts == decision.preempts
    again_s = math.inf if complete else now_s
    running = _started(decision.jobs, {start.job for start in starts}, now_s)
    next_s = min(informed.next_change_s(running, now_s), again_s, *later, math.inf)
    after = {job.name: job for job in decision.jobs}  # in the policy's order
    settled = {job.name: (job, after[job.name]) for job in situation.jobs}
    planned = tuple(answer for answer in placed.planned if answer.job in changing)
    return Outcome(decision, situation, message, next_s, settled, tuple(placed.asked.values()), planned)


def _placed(state: State, jobs: Sequence[Job], situation: Situation, policy: Policy) -> tuple[Decision, Placed]:
    """The decision with its starts where they are best; slots that are of no use to a job go to the next."""
    unfit: dict[str, str] = {}
    while True:
        decision = decide(jobs, situation.nodes, policy, situation.now_s, Terms(passed_over=unfit))
        placed = well_placed(state, decision, situation.nodes)
        if not placed.unfit:
            waits = "starts as soon as the planner has answered about {} places, within seconds"
            asked = {job: waits.format(len(each.places)) for job, each in placed.asked.items()}
            asked |= dict.fromkeys(placed.behind, "the planner is asked about it once it has answered about others")
            return replace(decision, starts=tuple(placed.starts), unplaced=unfit | asked), placed
        unfit |= placed.unfit


def _started(jobs: Sequence[Job], names: set[str], now_s: float) -> list[Job]:
    """As they are once these have been started: for when the order changes, if nothing happens."""
    return [changed(job, phase=Phase.RUNNING, counted_s=now_s) if job.name in names else job for job in jobs]


def _settled(job: Job, known: Mapping[str, tuple[Job, Job]]) -> Job:
    before, settled = known.get(job.name, (None, job))
    return settled if before is job else job


def situation_of(state: State, now_s: float) -> Situation:
    """What decisions, explanations and forecasts see: all jobs but those that a person keeps back."""
    jobs = tuple(live.job for live in state.live.values() if live.takes_part(now_s))
    return Situation(jobs, state.places, state.observed, now_s, state.usual_cost_s)


def forecasting(policy: str, situation: Situation, longest_s: float) -> Policy:
    """The policy for a forecast: it evaluates the order a hundred times at most while the longest job runs."""
    informed = live_policy(policy, situation.observed)
    if not isinstance(informed, LargestIndex):
        return informed
    return replace(informed, quantum_s=max(informed.quantum_s, longest_s / 100))


def _first(starts: Sequence[Start]) -> list[Start]:
    """As many as fit into one decision: at least one."""
    found, workers = list(starts[:MOST_CHANGES]), 0
    for count, start in enumerate(found):
        workers += len(start.nodes)
        if count and workers > MOST_WORKERS:
            return found[:count]
    return found


def _numbered(state: State, starts: Sequence[Start]) -> Iterator[AttemptStart]:
    """As attempts, each with an address and a port that no other attempt has."""
    taken = {
        (live.start.master_address, live.start.master_port)
        for live in state.live.values()
        if live.start is not None and live.workers
    }
    for start in starts:
        attempt = state.live[start.job].attempt + 1
        node = state.nodes.get(start.nodes[0])
        address = node.address if node else ""
        first = zlib.crc32(f"{start.job}.{attempt}".encode())
        ports = (FIRST_PORT + (first + step) % PORTS for step in range(PORTS))
        port = next((port for port in ports if (address, port) not in taken), FIRST_PORT + first % PORTS)
        taken.add((address, port))
        yield AttemptStart(job=start.job, attempt=attempt, nodes=start.nodes, master_address=address, master_port=port)


def _reasons(decision: Decision, changing: set[str], explainer: Explainer, now_s: float) -> tuple[JobReason, ...]:
    """Of the jobs that start or stop, then of those nearest to them in the order."""
    places = [place for place, turn in enumerate(decision.turns) if turn.job in changing]
    near = (place + step * way for step in range(1, MAX_REASONS) for place in places for way in (-1, 1))
    inside = (place for place in near if 0 <= place < len(decision.turns))
    included = list(dict.fromkeys((*places, *inside)))[:MAX_REASONS]
    jobs = {job.name: job for job in decision.jobs} if included else {}
    return tuple(reason(decision, place, jobs, explainer, now_s) for place in sorted(included))


def reason(decision: Decision, place: int, jobs: Mapping[str, Job], explainer: Explainer, now_s: float) -> JobReason:
    """The turn of one job.

    Args:
        decision: of all.
        place: of the job in its order.
        jobs: the decision's, by name.
        explainer: of the decision.
        now_s: as of when.
    """
    turn = decision.turns[place]
    job = jobs[turn.job]
    return JobReason(
        job=turn.job,
        turn=place,
        free_slots=max(0, turn.free_slots),
        chosen=turn.chosen,
        held=turn.held,
        index=index_of(job, explainer.policy),
        service_slot_s=service_slot_s(job, now_s),
        why=cut(explainer.explain(turn.job).why),
    )


def index_of(job: Job, policy: Policy) -> float:
    """Per slot-hour; 0: the policy has none, or the job has waited so long that it goes first."""
    if not isinstance(policy, LargestIndex) or math.isinf(job.rank):
        return 0.0
    return max(0.0, 3_600 * job.rank)


def cut(text: str) -> str:
    """At most as long as a reason may be."""
    return text if len(text) <= MAX_REASON_CHARACTERS else text[: MAX_REASON_CHARACTERS - 1] + "…"

"""The next entry of the log: what has happened, the decision that follows, and the jobs that end by it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from schemas.codec import encode
from schemas.scheduling import JobEnded, ScheduleDecision, ScheduleEvent, Trigger, WorkEvent
from services.scheduler.core.decision import Outcome, evaluate
from services.scheduler.core.jobs import Phase
from services.scheduler.core.orders import lost
from services.scheduler.core.planned_places import that_fit
from services.scheduler.core.shared_links import interleaved, is_other, sharing
from services.scheduler.core.state import State, accepted, fold

MOST_ENTRY_BYTES: Final = 448 << 10
"""With plans, of the 512 KiB that the stream takes: the rest is for headers and shifts."""


def gathered(state: State, requests: ScheduleEvent, events: Sequence[WorkEvent], lost_after_s: float) -> ScheduleEvent:
    """An entry of requests and nodes, with what is news of workers, and those that count as lost by now."""
    gone = lost(state, max(state.now_s, requests.time_ns / 1e9), lost_after_s, requests.time_ns)
    return requests.model_copy(update={"worked": accepted(state, requests, (*events, *gone))})


def decided(
    state: State, entry: ScheduleEvent, policy: str, last: Outcome | None = None
) -> tuple[ScheduleEvent, Outcome | None]:
    """The entry with its decision and the ends of jobs; a replay of the log finds the same.

    None: the order was not evaluated, because no job can start by what the entry tells, such as that a worker is ready
    or how much a job sends. Else that would be done more often than once a quantum, and jobs of equal rank would take
    turns. Shifts may change all the same.

    Args:
        state: before it.
        entry: what has happened.
        policy: one of `services.scheduler.core.live_policies`.
        last: the outcome of the evaluation before, if it is known: it saves time.
    """
    after = fold(state, [entry])
    outcome = evaluate(after, after.now_s, policy, _trigger(entry), last) if _is_turn(state, after, entry) else None
    decision = outcome.message if outcome is not None and outcome.is_stored else None
    content = entry.model_copy(update={"decision": decision, "ended": _ended(state, after)})
    if outcome is not None and outcome.planned:
        planned = that_fit(outcome.planned, MOST_ENTRY_BYTES - len(encode(content)))
        content = content.model_copy(update={"planned": tuple(planned)})
    return _shifted(state, after, content, policy), outcome


def _shifted(before: State, after: State, entry: ScheduleEvent, policy: str) -> ScheduleEvent:
    """With new shifts of jobs that share links, if they follow from the entry."""
    if not (after.traffic.links or after.traffic.scores):
        return entry
    if entry.decision is not None:
        after = fold(after, [ScheduleEvent(leader=entry.leader, time_ns=entry.time_ns, decision=entry.decision)])
    now = sharing(after)
    if not is_other(now, before):
        return entry
    found, known = interleaved(now), after.traffic
    if found.shifts == tuple(known.shifts.values()) and found.scores == known.scores:
        return entry
    decision = entry.decision or ScheduleDecision(trigger=_trigger(entry), policy=policy)
    shifts = {"shifts": found.shifts, "link_scores": found.scores}
    return entry.model_copy(update={"decision": decision.model_copy(update=shifts)})


def _is_turn(before: State, after: State, entry: ScheduleEvent) -> bool:
    """Whether the order is to be evaluated: at a quantum, or if a job's phase has changed or more has happened."""
    content = entry.model_copy(update={"worked": (), "profiles": (), "links": None})
    if not says_nothing(content) or says_nothing(entry):
        return True
    jobs = {event.job for event in entry.worked}
    return any(_phase(before, name) is not _phase(after, name) for name in jobs)


def _phase(state: State, name: str) -> Phase | None:
    live = state.live.get(name)
    return None if live is None else live.job.phase


def undecided(entry: ScheduleEvent) -> ScheduleEvent:
    """What had happened when an entry was written."""
    return entry.model_copy(update={"planned": (), "decision": None, "ended": ()})


def says_nothing(entry: ScheduleEvent) -> bool:
    """Whether it need not be stored."""
    return entry == ScheduleEvent(leader=entry.leader, time_ns=entry.time_ns, by=entry.by)


def _ended(before: State, after: State) -> tuple[JobEnded, ...]:
    return tuple(
        finished.message() for name, finished in after.finished.items() if before.finished.get(name) is not finished
    )


def _trigger(entry: ScheduleEvent) -> Trigger:
    if entry.submitted:
        return Trigger.SUBMITTED
    if entry.controlled or entry.drained or entry.undrained:
        return Trigger.CONTROL
    if entry.worked or entry.profiles:
        return Trigger.WORK
    return Trigger.QUANTUM if entry.nodes is None and entry.links is None else Trigger.NODE

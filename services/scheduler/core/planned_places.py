"""Where a job with a model starts: at the place of which the planner predicts the shortest step. Pure.

Answers are facts of the log (`ScheduleEvent.answered`). A job whose places the planner has not answered about does not
start in a decision; nothing waits for it but the job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from schemas.codec import encode
from schemas.reasons import quantity
from schemas.scheduling import MAX_REASON_CHARACTERS, ClusterNode, JobPlanned, JobSpec
from services.scheduler.core.live import Live

MOST_NAMES: Final = 1_024
"""Of nodes in one question: a job with many workers has fewer places."""
_ENOUGH: Final = 16
"""So many answers are compared without further questions, if the job may start by one of them."""
_NAMED: Final = 3
"""Places that do not do, in a sentence."""
Place = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """Places for a waiting job that the planner is asked about."""

    spec: JobSpec
    attempt: int
    """That would begin there."""
    places: tuple[tuple[ClusterNode, ...], ...]
    """Of each worker, by rank."""


def question(
    live: Live, candidates: Sequence[Place], free: Collection[Place], nodes: Mapping[str, ClusterNode]
) -> Question | None:
    """What is to be asked before a job starts; None: enough is known.

    Args:
        live: the job.
        candidates: places for it now.
        free: places that were answered about where it may start now.
        nodes: by name.
    """
    known = {answer.nodes for answer in live.answers}
    places = [place for place in candidates if place not in known]
    if not places or (free and len(known) >= _ENOUGH):
        return None
    return Question(live.spec, live.attempt + 1, tuple(tuple(nodes[name] for name in place) for place in places))


def best(answers: Iterable[JobPlanned], scores: Mapping[Place, float]) -> JobPlanned:
    """The answer with the shortest step; of equal ones that on the fewest nodes, then that whose links score best.

    Args:
        answers: about places where the job may start, one or more; those of which no step is known count last.
        scores: of those places' links, in the order of candidates.
    """
    order = {place: number for number, place in enumerate(scores)}

    def cost(answer: JobPlanned) -> tuple[float, int, float, int]:
        nodes, place = len(set(answer.nodes)) if answer.step_us else 0, answer.nodes
        return (answer.step_us or float("inf"), nodes, -scores[place], order[place])

    return min(answers, key=cost)


def compared(chosen: JobPlanned, answers: Sequence[JobPlanned], free: Collection[Place]) -> tuple[str, ...]:
    """Each place in a sentence, the chosen one first; empty: there is only one.

    Args:
        chosen: the best of them.
        answers: about all.
        free: places where the job may start now.
    """
    others = sorted(
        (answer for answer in answers if answer.nodes != chosen.nodes),
        key=lambda answer: (answer.missing_bytes > 0, answer.step_us or float("inf")),
    )
    if not others:
        return ()
    first = _cut(f"{names(chosen.nodes)}: {_step(chosen)}: chosen")
    return (first, *(_cut(f"{names(each.nodes)}: {_why_not(each, chosen, free)}") for each in others))


def does_not_fit(answers: Iterable[JobPlanned]) -> str:
    """Why a job does not start on what is free, by the answers."""
    short = [f"{names(each.nodes)} ({_missing(each)})" for each in answers if each.missing_bytes]
    more = f" and {len(short) - _NAMED} more places" if len(short) > _NAMED else ""
    return _cut(f"by the planner it does not fit into the memory of free nodes: {', '.join(short[:_NAMED])}{more}")


def that_fit(answers: Iterable[JobPlanned], room_bytes: int) -> Iterator[JobPlanned]:
    """The same answers, without plans for which an entry of the log has no room behind those before them."""
    for answer in answers:
        has_room = len(encode(answer)) <= room_bytes
        why = "the entry of the log that starts it has no room for its plan"
        kept = answer if has_room else answer.model_copy(update={"plan": "", "why": why})
        room_bytes -= len(encode(kept))
        yield kept


def names(place: Place) -> str:
    """Such as ``n1 n2x4``."""
    return " ".join(name if count == 1 else f"{name}x{count}" for name, count in Counter(place).items())


def _step(answer: JobPlanned) -> str:
    return f"step {answer.step_us / 1e6:.3g} s" if answer.step_us else f"no plan: {answer.why}"


def _why_not(answer: JobPlanned, chosen: JobPlanned, free: Collection[Place]) -> str:
    if answer.missing_bytes:
        return f"does not fit: {_missing(answer)}"
    if not answer.step_us:
        return _step(answer)
    if answer.nodes not in free:
        return f"{_step(answer)}, but there is no room any more"
    if answer.step_us > chosen.step_us:
        return f"{_step(answer)}, {answer.step_us / chosen.step_us:.3g} times as long"
    more = " on more nodes" if len(set(answer.nodes)) > len(set(chosen.nodes)) else ""
    return f"{_step(answer)}, as long{more}"


def _missing(answer: JobPlanned) -> str:
    return f"{quantity('memory', answer.missing_bytes)} of memory are missing"


def _cut(text: str) -> str:
    return text if len(text) <= MAX_REASON_CHARACTERS else text[: MAX_REASON_CHARACTERS - 1] + "…"

"""What happened to each job, line by line, as the log has it. Pure.

Kept is only which entries mention a job: they are read, and made into lines, when a person asks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from schemas.scheduling import (
    MAX_REASON_CHARACTERS,
    EstimateSource,
    JobHistoryLine,
    JobReason,
    JobShift,
    JobSubmitted,
    ScheduleDecision,
    ScheduleEvent,
    WorkerChange,
    WorkEvent,
)
from services.scheduler.core.explain import duration
from services.scheduler.core.live import describe_worker, is_late, seconds
from services.scheduler.core.state import Folding, State

SHIFTED: Final = "shifted"
LINES_KEPT: Final = 200
"""Of each job, the latest."""
SHIFTS_KEPT: Final = 20
"""Of each job, entries that only shift it; more would push out when it was submitted and started."""
_SPARE: Final = 100
"""Jobs that are not known any more are forgotten once there are so many of them."""


class _Happening(NamedTuple):
    job: str
    what: str
    why: str
    reason: JobReason | None = None
    """Its turn."""
    happened_ns: int = 0


@dataclass(slots=True)
class Histories:
    """Which entries of the log mention each job that is known."""

    _mentions: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Sequences, the latest `LINES_KEPT`; below 0 of entries that only shift it. Tuples are replaced, never changed."""

    def of(self, job: str) -> tuple[int, ...]:
        """Sequences of the entries that mention one job, ascending."""
        return tuple(abs(sequence) for sequence in self._mentions.get(job, ()))

    def mentions(self) -> dict[str, tuple[int, ...]]:
        """Of all jobs, as of now."""
        return dict(self._mentions)

    def fold(self, entry: ScheduleEvent, sequence: int) -> None:
        """One entry of the log more."""
        for submitted in entry.submitted:
            self._mentions[submitted.spec.job] = ()
        otherwise = _mentioned_otherwise(entry)
        for job in otherwise:
            if (known := self._mentions.get(job)) is not None:
                self._mentions[job] = (*known, sequence)[-LINES_KEPT:]
        if entry.decision is None:
            return
        for job in _shifted_jobs(entry.decision) - otherwise:
            if (known := self._mentions.get(job)) is not None:
                shifts = [each for each in known if each < 0]
                oldest = shifts[0] if len(shifts) >= SHIFTS_KEPT else None
                self._mentions[job] = (*(each for each in known if each != oldest), -sequence)[-LINES_KEPT:]

    def forget(self, state: State | Folding) -> None:
        """Drop jobs that ended too long ago to be known."""
        if len(self._mentions) > len(state.live) + len(state.finished) + _SPARE:
            known = state.live.keys() | state.finished.keys()
            self._mentions = {job: sequences for job, sequences in self._mentions.items() if job in known}


def lines(job: str, entries: Iterable[tuple[int, ScheduleEvent]]) -> tuple[JobHistoryLine, ...]:
    """Lines of one job from entries with their sequences: the latest `LINES_KEPT` lines."""
    found: list[JobHistoryLine] = []
    for sequence, entry in entries:
        for happening in _happenings(entry):
            if happening.job == job and not (happening.what == SHIFTED and _is_known(found, happening.why)):
                found.append(
                    JobHistoryLine(
                        time_ns=entry.time_ns,
                        happened_ns=happening.happened_ns,
                        sequence=sequence,
                        what=happening.what,
                        why=happening.why,
                        reason=happening.reason,
                    )
                )
    return tuple(found[-LINES_KEPT:])


def mentioned(entry: ScheduleEvent) -> set[str]:
    """Jobs of which an entry makes a line at least."""
    shifted = set[str]() if entry.decision is None else _shifted_jobs(entry.decision)
    return _mentioned_otherwise(entry) | shifted


def _shifted_jobs(decision: ScheduleDecision) -> set[str]:
    return {shift.job for shift in decision.shifts or ()}


def _mentioned_otherwise(entry: ScheduleEvent) -> set[str]:
    """Not only by its shift: a decision names those of all jobs when one of them changes."""
    jobs = {event.job for event in entry.worked if _has_line(event)}
    if entry.submitted:
        jobs |= {submitted.spec.job for submitted in entry.submitted}
    decision = entry.decision
    decided = () if decision is None else (decision.starts, decision.stops, decision.reasons)
    for part in (entry.controlled, entry.planned, entry.ended, *decided):
        if part:
            jobs |= {each.job for each in part}
    return jobs


def _has_line(event: WorkEvent) -> bool:
    """That a worker was started is plain; what came with it is not."""
    return event.change is not WorkerChange.STARTED or bool(event.reason)


def _is_known(found: list[JobHistoryLine], why: str) -> bool:
    """Whether the job's latest shift is the same: a decision names those of all jobs."""
    last = next((line for line in reversed(found) if line.what in {SHIFTED, "started"}), None)
    return last is not None and (last.what, last.why) == (SHIFTED, why)


def _shifted(shift: JobShift, decision: ScheduleDecision) -> str:
    """``by 510 of 1270 ms; rack-1-up 0.55 together, 1.00 so``."""
    links = [
        f"{score.link} {score.unshifted:.2f} together, {score.score:.2f} so"
        for score in decision.link_scores
        if shift.job in score.jobs and not score.why
    ]
    return "; ".join((f"by {shift.shift_ms} of {shift.period_ms} ms", *links))[:MAX_REASON_CHARACTERS]


def _happenings(entry: ScheduleEvent) -> Iterator[_Happening]:
    by = f"by {entry.by}" if entry.by else ""
    for submitted in entry.submitted:
        yield _Happening(submitted.spec.job, "submitted", "; ".join(filter(None, (by, _estimate(submitted)))))
    for controlled in entry.controlled:
        yield _Happening(controlled.job, f"asked to {controlled.action}", by)
    groups: defaultdict[tuple[str, str], list[WorkEvent]] = defaultdict(list)
    for event in entry.worked:
        if _has_line(event):
            groups[event.job, event.change].append(event)
    for (job, change), events in groups.items():
        last_ns = max(event.time_ns for event in events)
        late = is_late(last_ns, seconds(entry.time_ns))
        yield _Happening(job, change, _workers(events), happened_ns=last_ns if late else 0)
    for planned in entry.planned:
        if planned.compared:
            yield _Happening(planned.job, "compared", "\n".join(planned.compared))
        yield _Happening(planned.job, "planned" if planned.plan else "divided evenly", planned.why)
    if entry.decision is not None:
        yield from _decided(entry.decision)
    for ended in entry.ended:
        yield _Happening(ended.job, f"job {ended.outcome}", ended.reason)


def _estimate(submitted: JobSubmitted) -> str:
    estimate = submitted.estimate
    if estimate is None or submitted.estimate_source is EstimateSource.NONE:
        return "no estimate"
    interval = f"{duration(estimate.low_s)} to {duration(estimate.high_s)}"
    return f"{duration(estimate.median_s)} ({interval}) by the {submitted.estimate_source.words}"


def _workers(events: list[WorkEvent]) -> str:
    first = events[0]
    return describe_worker(
        first, f"worker {first.rank} on {first.node}" if len(events) == 1 else f"{len(events)} workers"
    )


def _decided(decision: ScheduleDecision) -> Iterator[_Happening]:
    reasons = {reason.job: reason for reason in decision.reasons}
    for start in decision.starts:
        reason = reasons.pop(start.job, None)
        nodes = " ".join(dict.fromkeys(start.nodes))
        yield _Happening(start.job, "started", f"on {nodes}{f'; {reason.why}' if reason else ''}"[:500], reason)
    for stop in decision.stops:
        yield _Happening(stop.job, "preempted", stop.why, reasons.pop(stop.job, None))
    for shift in decision.shifts or ():
        yield _Happening(shift.job, SHIFTED, _shifted(shift, decision))
    for job, reason in reasons.items():
        yield _Happening(job, "runs on" if reason.chosen else "waits on", reason.why, reason)

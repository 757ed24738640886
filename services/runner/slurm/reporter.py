"""What was reported about workers: each change once by this process, and the latest of each worker for replies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from schemas.scheduling import MAX_REASON_CHARACTERS, WorkerChange, WorkEvent, WorkOrder
from services._runtime.clock import Clock
from services._runtime.telemetry.logging import Logger
from services.runner.slurm.core.attempt import Attempt, Change

_ENDS: Final = frozenset(WorkerChange) - {WorkerChange.STARTED, WorkerChange.READY}


@dataclass(slots=True)
class Reported:
    """What was reported about an attempt."""

    job: str
    attempt: int
    workers: int = 0
    checked: bool = False
    """The scheduler knows that it has begun."""
    last: dict[int, WorkEvent] = field(default_factory=dict)
    said: set[tuple[int, WorkerChange]] = field(default_factory=set)
    term_again_s: float = 0.0
    """Not before this time (monotonic) SIGTERM is sent again to workers that do not note it."""
    settles_s: float | None = None
    """When (monotonic) no note of a worker comes any more."""

    @property
    def over(self) -> bool:
        """Whether each worker's end was reported."""
        return sum(event.change in _ENDS for event in self.last.values()) >= self.workers


@dataclass(slots=True)
class Reporter:
    """Reports changes as events."""

    clock: Clock
    log: Logger
    incarnation: int
    last_words: Callable[[str, int, int], str]
    """The end of what a worker wrote."""
    on_event: Callable[[WorkEvent], None]
    _reported: dict[str, Reported] = field(default_factory=dict)
    """By job, of its latest attempt."""
    _none: dict[tuple[str, int, int], WorkEvent] = field(default_factory=dict)
    """By job, attempt and rank, of attempts that could not be, or were not, begun here."""

    @property
    def live_jobs(self) -> int:
        """Jobs with a worker whose end was not reported yet."""
        return sum(not reported.over for reported in self._reported.values())

    def reported(self, attempt: Attempt) -> Reported:
        """What was reported about an attempt that is its job's latest."""
        reported = self._reported.get(attempt.job)
        if reported is None or reported.attempt != attempt.attempt or reported.workers != len(attempt.nodes):
            reported = self._reported[attempt.job] = Reported(attempt.job, attempt.attempt, len(attempt.nodes))
        return reported

    def is_over(self, job: str, attempt: int) -> bool:
        """Whether the end of each worker was reported."""
        reported = self._reported.get(job)
        return reported is not None and reported.attempt == attempt and reported.over

    def forget(self, job: str) -> None:
        """Another attempt of it begins, perhaps of another job of that name; or nothing is known of it any more."""
        self._reported.pop(job, None)
        for key in [key for key in self._none if key[0] == job]:
            del self._none[key]

    def last(self, job: str, attempt: int) -> dict[int, WorkEvent]:
        """The latest change of each worker, by rank."""
        reported = self._reported.get(job)
        known = {rank: event for (name, number, rank), event in self._none.items() if (name, number) == (job, attempt)}
        return known | (reported.last if reported is not None and reported.attempt == attempt else {})

    def report_unknown(self, order: WorkOrder, node: str, change: WorkerChange, reason: str) -> None:
        """Report what is true of workers that were not begun here."""
        for rank in order.ranks:
            event = self._event(Reported(order.job, order.attempt), node, Change(rank, change, reason=reason))
            self._none[order.job, order.attempt, rank] = event
            self.on_event(event)

    def report(self, reported: Reported, node: str, change: Change) -> None:
        """Report a change, unless it was reported before, or an end was."""
        last = reported.last.get(change.rank)
        if (change.rank, change.change) in reported.said or (last is not None and last.change in _ENDS):
            return
        reported.said.add((change.rank, change.change))
        event = reported.last[change.rank] = self._event(reported, node, change)
        self.on_event(event)

    def _event(self, reported: Reported, node: str, change: Change) -> WorkEvent:
        reason = change.reason
        if change.change is WorkerChange.FAILED and not reason:
            reason = self.last_words(reported.job, reported.attempt, change.rank)
        return WorkEvent(
            job=reported.job,
            attempt=reported.attempt,
            rank=change.rank,
            node=node,
            change=change.change,
            time_ns=self.clock.time_ns(),
            incarnation=self.incarnation,
            exit_code=change.exit_code,
            oom_kills=change.oom_kills,
            ran_s=change.ran_s,
            took_s=change.took_s,
            reason=short(reason),
        )


def short(text: str) -> str:
    """As long as a reason may be."""
    return text[:MAX_REASON_CHARACTERS]

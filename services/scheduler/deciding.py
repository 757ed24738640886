"""The leader's loop: what has happened is gathered, decided about, appended, and only then carried out."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final

from schemas.scheduling import (
    ClusterLink,
    ClusterNode,
    JobControlled,
    JobPlanned,
    JobSubmitted,
    ScheduleEvent,
    TrafficProfile,
    WorkEvent,
)
from services._runtime.bus.api import RequestRefusedError
from services._runtime.service.app import Runtime
from services._runtime.telemetry.tracing import span
from services.scheduler.core.decision import Outcome
from services.scheduler.core.entries import decided, gathered, says_nothing
from services.scheduler.core.orders import next_loss_s
from services.scheduler.core.planned_places import Question
from services.scheduler.core.state import State
from services.scheduler.leading import Lead, LeadLostError
from services.scheduler.settings import SchedulerSettings

COALESCED_S: Final = 0.05
"""What happens within this time is decided about together."""
QUANTUM_S: Final = 60.0
MOST_EVENTS: Final = 100
"""In one entry."""
MOST_REQUESTS: Final = 4
"""In one entry: a submission has 32 KiB at most."""


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """A person's, checked; `stored` is done once it is in the log."""

    by: str
    stored: asyncio.Future[int]
    submitted: JobSubmitted | None = None
    controlled: JobControlled | None = None
    drained: tuple[str, ...] = ()
    undrained: tuple[str, ...] = ()


@dataclass(slots=True)
class Inbox:
    """What has happened and is not in the log yet."""

    requests: list[Request] = field(default_factory=list)
    events: list[WorkEvent] = field(default_factory=list)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    closed: str | None = "this replica does not lead"
    """Why nothing is taken; None: it leads."""

    def put_events(self, events: Sequence[WorkEvent]) -> None:
        """Of workers; `accepted` sorts out what is no news."""
        if events:
            self.events += events
            self.arrived.set()

    async def put(self, request: Request) -> int:
        """Return the sequence under which it was stored.

        Raises:
            RequestRefusedError: this replica has lost the lead meanwhile.
        """
        if self.closed is not None:
            raise RequestRefusedError(503, self.closed)
        self.requests.append(request)
        self.arrived.set()
        return await request.stored

    def take(self) -> tuple[list[Request], list[WorkEvent]]:
        """What fits into one entry: requests of one author, or else events."""
        author = self.requests[0].by if self.requests else ""
        requests = list(takewhile(lambda request: request.by == author, self.requests[:MOST_REQUESTS]))
        del self.requests[: len(requests)]
        events = [] if requests else self.events[:MOST_EVENTS]
        del self.events[: len(events)]
        if not (self.requests or self.events):
            self.arrived.clear()
        return requests, events

    def open(self) -> None:
        """This replica leads."""
        self.closed = None

    def close(self, why: str) -> None:
        """Nothing that waits will be stored."""
        self.closed = why
        for request in self.requests:
            _refuse(request, why)
        self.requests, self.events = [], []


@dataclass(frozen=True, slots=True)
class Sources:
    """What the log does not know yet; None, or nothing: it knows all."""

    nodes: Callable[[State, float], tuple[ClusterNode, ...] | None]
    links: Callable[[State], tuple[ClusterLink, ...] | None]
    profiles: Callable[[State], tuple[TrafficProfile, ...]]
    """Each is given once."""
    answers: Callable[[State], tuple[JobPlanned, ...]]
    """Of the planner, as far as they still hold; each is given once."""
    ask: Callable[[Sequence[Question]], None]
    """Ask the planner; its answers come later."""


class Decider:
    """Gathers, decides and appends while this replica leads."""

    def __init__(
        self,
        runtime: Runtime[SchedulerSettings],
        lead: Lead,
        inbox: Inbox,
        sources: Sources,
    ) -> None:
        self._clock = runtime.clock
        self._settings = runtime.settings
        self._lead = lead
        self._inbox = inbox
        self._sources = sources
        self._next_s = 0.0
        self._next_change_s = 0.0
        self._last: Outcome | None = None
        self._has_answered = False
        """The planner's answers were the last entry: requests and workers come next, however many answers there are."""
        self.begun = asyncio.Event()
        """Set once the log knows the nodes as they are: only then are requests answered."""
        self.decisions = runtime.telemetry.counter("turnbuckle_scheduler_decisions_total")
        self.decision_s = runtime.telemetry.histogram("turnbuckle_scheduler_decision_seconds")

    async def run(self, on_change: Callable[[State, State], None]) -> None:
        """Until the lead is lost; `on_change` gets the states before and after each entry.

        Raises:
            LeadLostError: it is lost.
        """
        self._next_change_s = 0.0
        while True:
            before = self._lead.state
            if await self._step():
                on_change(before, self._lead.state)
            self.begun.set()
            await self._due()

    async def _due(self) -> None:
        """Return a little after something has happened, or when the decision may be another one."""
        wait_s = min(max(0.0, self._next_s - self._lead.time_ns() / 1e9), QUANTUM_S)
        arrived = asyncio.ensure_future(self._inbox.arrived.wait())
        due = asyncio.ensure_future(self._clock.sleep_until(self._clock.monotonic() + wait_s))
        try:
            await asyncio.wait({arrived, due}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in (arrived, due):
                each.cancel()
        await self._clock.sleep_until(self._clock.monotonic() + COALESCED_S)

    async def _step(self) -> bool:
        """One entry; whether there was anything to store."""
        # A quantum that is over comes first: what workers tell calls for no decision, and may never cease.
        is_due = self._lead.time_ns() / 1e9 >= self._next_change_s
        answers = () if is_due or self._has_answered else self._sources.answers(self._lead.state)
        requests, events = ([], []) if is_due or answers else self._inbox.take()
        if not is_due:
            if self._has_answered:
                self._inbox.arrived.set()  # there may be further answers
            self._has_answered = bool(answers)
        try:
            entry, outcome = self._decided(self._gathered(requests, answers, is_due=is_due), events)
            if outcome is not None:
                self._sources.ask(outcome.questions)
                self._last, self._next_change_s = outcome, outcome.next_change_s
            self._next_s = min(self._next_change_s, self._next_loss_s())
            if says_nothing(entry):
                return False
            sequence = await self._lead.append(entry)
        except (LeadLostError, asyncio.CancelledError) as error:
            for request in requests:
                _refuse(request, str(error) or "this replica ends")
            raise
        self._next_s = min(self._next_s, self._next_loss_s())
        for request in requests:
            if not request.stored.done():
                request.stored.set_result(sequence)
        return True

    def _next_loss_s(self) -> float:
        due_s = next_loss_s(self._lead.state, self._settings.lost_after_s)
        return math.inf if due_s is None else due_s

    def _decided(self, entry: ScheduleEvent, events: list[WorkEvent]) -> tuple[ScheduleEvent, Outcome | None]:
        """The next entry, with the decision that follows from it."""
        begun_s, state = self._clock.monotonic(), self._lead.state
        with span("scheduler.decide") as current:
            gathering = gathered(state, entry, events, self._settings.lost_after_s)
            entry, outcome = decided(state, gathering, self._settings.policy, self._last)
            current.set(
                turnbuckle__starts=len(outcome.message.starts) if outcome else 0,
                turnbuckle__stops=len(outcome.message.stops) if outcome else 0,
                turnbuckle__live_jobs=len(state.live),
            )
        self.decision_s.observe(self._clock.monotonic() - begun_s)
        self.decisions.value += 1
        return entry, outcome

    def _gathered(self, requests: list[Request], answers: tuple[JobPlanned, ...], *, is_due: bool) -> ScheduleEvent:
        """Requests and nodes; links and traffic not at a quantum, as they call for no evaluation of the order.

        Answers of the planner stand alone: an entry has no room for them and for all nodes.
        """
        state, time_ns = self._lead.state, self._lead.time_ns()
        if answers:
            return ScheduleEvent(leader=self._lead.name, time_ns=time_ns, answered=answers)
        return ScheduleEvent(
            leader=self._lead.name,
            time_ns=time_ns,
            nodes=self._sources.nodes(state, time_ns / 1e9),
            links=None if is_due else self._sources.links(state),
            profiles=() if is_due else self._sources.profiles(state),
            submitted=tuple(request.submitted for request in requests if request.submitted),
            controlled=tuple(request.controlled for request in requests if request.controlled),
            drained=tuple(name for request in requests for name in request.drained),
            undrained=tuple(name for request in requests for name in request.undrained),
            by=requests[0].by if requests else "",
        )


def _refuse(request: Request, why: str) -> None:
    if not request.stored.done():
        request.stored.set_exception(RequestRefusedError(503, f"not stored: {why}; ask again"))

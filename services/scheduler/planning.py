"""What the planner says of places for jobs that name a model: asked in the background, answered in the log."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from schemas.codec import encode
from schemas.plans import PlanReply
from schemas.scheduling import ClusterNode, JobPlanned
from schemas.services.planner import PLANNER_PLAN
from services._runtime.bus.api import Bus, BusError, RequestTimeoutError
from services._runtime.telemetry.logging import Logger
from services.scheduler.core.plan_request import NotPlannableError, Rates, answered, not_planned, plan_request
from services.scheduler.core.planned_places import Question, that_fit
from services.scheduler.core.state import State, is_other_device

MOST_AT_ONCE: Final = 4
"""Jobs that are asked about."""
MOST_ANSWER_BYTES: Final = 192 << 10
"""Of an entry of the log: the rest is for its decision, and for the plan of each job that starts."""


class Planning:
    """Asks the planner while this replica leads: about one place of a job after another, for so long in all."""

    def __init__(self, bus: Bus, timeout_s: float, rates: Rates, log: Logger) -> None:
        self._bus = bus
        self._timeout_s = timeout_s
        self._rates = rates
        self._log = log
        self._questions: asyncio.Queue[Question] = asyncio.Queue()
        self._asking: set[str] = set()
        """Jobs whose answers are not in the log yet."""
        self._answers: deque[tuple[Question, tuple[JobPlanned, ...]]] = deque()
        self._silent_until_s = -math.inf
        """Until then the planner is asked nothing, by the event loop's clock: it did not answer within the timeout."""
        self._at_once = asyncio.Semaphore(MOST_AT_ONCE)
        self.on_answers: Callable[[], None] = lambda: None
        """Called when there are answers to take."""

    async def run(self) -> None:
        """Ask until cancelled; what is not answered then, the next leader asks."""
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    group.create_task(self._answer(await self._questions.get()))
        finally:
            self._questions, self._answers = asyncio.Queue(), deque()
            self._asking.clear()

    def ask(self, questions: Sequence[Question]) -> None:
        """Ask, but about no job about which is being asked."""
        for question in questions:
            if question.spec.job not in self._asking:
                self._asking.add(question.spec.job)
                self._questions.put_nowait(question)

    def answers(self, state: State) -> tuple[JobPlanned, ...]:
        """About as many jobs as an entry has room for, of each the shortest step first; none: there are no others.

        What was asked about a job or devices that are other ones by now is left out.
        """
        taken: list[JobPlanned] = []
        room_bytes = MOST_ANSWER_BYTES
        while self._answers:
            question, found = self._answers[0]
            room_bytes -= sum(len(encode(answer)) for answer in found)
            if taken and room_bytes < 0:
                break
            self._answers.popleft()
            self._asking.discard(question.spec.job)
            taken += _still_true(question, found, state)
        return tuple(taken)

    async def _answer(self, question: Question) -> None:
        async with self._at_once:
            found = await self._asked(question)
        found.sort(key=lambda answer: answer.step_us or math.inf)
        self._answers.append((question, tuple(that_fit(found, MOST_ANSWER_BYTES))))
        self.on_answers()

    async def _asked(self, question: Question) -> list[JobPlanned]:
        if not self._timeout_s:
            return list(_unanswered(question, 0, "no plans: TURNBUCKLE_SCHEDULER__PLANNER_TIMEOUT_S is 0"))
        loop, found = asyncio.get_running_loop(), list[JobPlanned]()
        if loop.time() < self._silent_until_s:
            why = f"the planner did not answer about other jobs within {self._timeout_s:g} s"
            return list(_unanswered(question, 0, why))
        try:
            async with asyncio.timeout(self._timeout_s):
                for place in question.places:
                    found += [await self._about(question, place)]
        except (BusError, TimeoutError) as error:
            why = str(error) or f"the planner did not answer within {self._timeout_s:g} s"
            self._log.info("not_planned", job=question.spec.job, why=why)
            if not found and isinstance(error, TimeoutError | RequestTimeoutError):
                self._silent_until_s = loop.time() + self._timeout_s  # else hundreds of jobs wait one after another
            found += _unanswered(question, len(found), why)
        return found

    async def _about(self, question: Question, place: Sequence[ClusterNode]) -> JobPlanned:
        about = _about(question, place)
        try:
            request = plan_request(question.spec, place, self._rates)
        except NotPlannableError as error:
            return not_planned(about, str(error))
        subject = PLANNER_PLAN.template.subject(self._bus.root)
        reply = await self._bus.request(subject, request, timeout_s=self._timeout_s)
        if not isinstance(reply, PlanReply):
            return not_planned(about, f"the planner answered with {reply.type_name}")
        return answered(about, request, reply)


def _about(question: Question, place: Sequence[ClusterNode]) -> JobPlanned:
    return JobPlanned(job=question.spec.job, attempt=question.attempt, nodes=tuple(node.node for node in place))


def _unanswered(question: Question, first: int, why: str) -> Iterator[JobPlanned]:
    """About the places from this one on."""
    return (not_planned(_about(question, place), why) for place in question.places[first:])


def _still_true(question: Question, answers: Sequence[JobPlanned], state: State) -> Iterator[JobPlanned]:
    """Answers about the job and the devices that are there now: under its name there may be another one meanwhile."""
    live = state.live.get(question.spec.job)
    if live is None or live.spec != question.spec:
        return
    asked = {node.node: node for place in question.places for node in place}
    other = {name for name, node in asked.items() if is_other_device(state.nodes.get(name), node)}
    yield from (answer for answer in answers if other.isdisjoint(answer.nodes))

"""Elastic trainings in sandboxes: with a number of workers that follows a series, is fixed, or follows the policy."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from schemas.plans import Plan
from schemas.trainings import StepBatch, TrainingChange, TrainingEvent
from services.trainer.commands.elastic import Coordinator, ElasticTraining, coordinating
from services.trainer.commands.outcome import exit_of
from services.trainer.commands.publication import Publication
from services.trainer.commands.train_output import TrainOutput
from services.trainer.commands.training import Training
from services.trainer.core.batch_schedule import BatchSchedule
from services.trainer.core.elastic import Goal, Policy
from services.trainer.core.pauses import Pause
from services.trainer.core.progress import Progress
from services.trainer.core.worker_place import Form, Place
from tests.bench.elastic.cases import BATCHES, LIMITS, MICROBATCH, ROUND, USD_PER_HOUR
from tests.bench.outcome import say
from tests.support.trainer_plans import plan_of

JOB: Final = Path(__file__).with_name("job.py")
NEVER: Final = 10_000_000
"""More steps than are made until the series is at its end."""


class TrainingEndedError(RuntimeError):
    """A training has ended otherwise than it should; the message says how."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change of workers."""

    before: int
    after: int
    pause_us: int
    took_us: dict[str, int]
    """Parts of the pause, as the new group's rank 0 measures them."""
    load: float
    """Of the machine in the last minute."""


@dataclass(frozen=True, slots=True)
class Run:
    """One training of the whole job."""

    name: str
    samples: int
    wall_s: float
    """From the start of the first worker to the end of the last one."""
    paid_s: int
    """Seconds of workers that were paid: each from its start to its end, in whole ones."""
    stepping_s: float
    """Of workers, of all steps: what is left of the above in a job that goes on for long."""
    workers: tuple[int, ...]
    """One after the other."""
    load: float

    @property
    def samples_per_usd(self) -> float:
        """By the bill."""
        return self.samples / (self.paid_s * USD_PER_HOUR / 3_600)

    @property
    def samples_per_stepping_usd(self) -> float:
        """By the time of steps alone."""
        return self.samples / (self.stepping_s * USD_PER_HOUR / 3_600)


@dataclass(slots=True)
class Told:
    """What a training publishes, kept."""

    steps: list[StepBatch] = field(default_factory=list)
    events: list[TrainingEvent] = field(default_factory=list)

    def publish(self, message: StepBatch | TrainingEvent) -> None:
        """Keep it."""
        if isinstance(message, StepBatch):
            self.steps.append(message)
        else:
            self.events.append(message)

    async def close(self) -> str:
        """Nothing is lost."""
        return ""


class Quiet(TrainOutput):
    """Prints nothing of steps; says what becomes of workers, and keeps what their own output says."""

    def __init__(self) -> None:
        super().__init__(as_json=True)
        self.lines: list[str] = []
        self.took_us: dict[str, int] = {}

    def elastic_progress(self, progress: Progress, workers: int, usd: float) -> None:
        """A second of steps."""

    def workers(self, event: str, text: str, **fields: object) -> None:
        """Beside the result."""
        say(text)
        if event == "generation" and isinstance(took_us := fields["took_us"], dict):
            self.took_us = took_us

    def continued(self, pause: Pause) -> None:
        """One change."""
        say(f"paused for {pause.pause_us / 1e3:.0f} ms: {self.took_us}")

    def from_ranks(self, line: str, *, stream: str) -> None:
        """For the message of a failure."""
        self.lines.append(f"{stream}: {line}")


class Series(Quiet):
    """Asks for the next number of workers as soon as steps go on with the last one."""

    def __init__(self, rounds: int) -> None:
        super().__init__()
        self.coordinator: Coordinator | None = None
        self.changes: list[Change] = []
        self._workers = 1
        self._wanted = 0
        self._left: Iterator[int] = iter(ROUND * rounds)

    def elastic_progress(self, progress: Progress, workers: int, usd: float) -> None:
        """With the first steps the first change is wanted."""
        if not self._wanted:
            self._next()

    def continued(self, pause: Pause) -> None:
        """One change; what is wanted next is decided with the next report, a second later."""
        super().continued(pause)
        assert self.coordinator is not None
        if pause.after_failure:  # no change that was wanted: the series ends here
            self.coordinator.on_signal()
            return
        before, self._workers = self._workers, self._wanted
        self.changes.append(Change(before, self._workers, pause.pause_us, self.took_us, _load()))
        self._next()

    def _next(self) -> None:
        assert self.coordinator is not None
        wanted = next(self._left, None)
        if wanted is None:
            self.coordinator.on_signal()
            return
        self._wanted = wanted
        goal = replace(self.coordinator.elastic.goal, least=wanted, most=wanted)
        self.coordinator.elastic = replace(self.coordinator.elastic, goal=goal)


def plan_for(batch: int) -> Plan:
    """For one device; workers divide it among them."""
    return plan_of([batch], [batch // MICROBATCH], [1])


def _load() -> float:
    return os.getloadavg()[0]


def _elastic(goal: Goal, schedule: BatchSchedule, steps: int, directory: Path) -> ElasticTraining:
    plan = plan_for(schedule.batch(0))
    file = directory / "plan.json"
    file.write_text(plan.model_dump_json(), encoding="utf-8")
    worker = (str(file), f"{JOB}:build", "--data", f"{JOB}:samples", "--steps", str(steps), "--device", "cpu")
    return ElasticTraining(Training(plan, worker, steps, ""), goal, schedule, place=Place(Form.SANDBOX, LIMITS))


async def pauses(rounds: int, directory: Path) -> list[Change]:
    """Of a series of changes.

    Raises:
        TrainingEndedError: it has ended before.
    """
    goal = Goal(Policy.THROUGHPUT_PER_DOLLAR, 1, 1, USD_PER_HOUR)
    elastic = _elastic(goal, BatchSchedule(((0, BATCHES[-1]),)), NEVER, directory)
    output = Series(rounds)
    async with coordinating(elastic, output, _publication(elastic, Told())) as coordinator:
        output.coordinator = coordinator
        ended = await coordinator.run()
    if len(output.changes) != rounds * len(ROUND):
        raise TrainingEndedError("\n".join([exit_of(ended)[1], *output.lines[-20:]]))
    return output.changes


async def run(name: str, workers: tuple[int, int], schedule: BatchSchedule, steps: int, directory: Path) -> Run:
    """The whole job with so many workers at least and at most.

    Raises:
        TrainingEndedError: it has not come to its last step.
    """
    goal = Goal(Policy.THROUGHPUT_PER_DOLLAR, *workers, USD_PER_HOUR)
    elastic, told, output = _elastic(goal, schedule, steps, directory), Told(), Quiet()
    load, began_s = _load(), time.monotonic()
    async with coordinating(elastic, output, _publication(elastic, told)) as coordinator:
        ended = await coordinator.run()
        wall_s = time.monotonic() - began_s
    code, text = exit_of(ended)
    if code:
        raise TrainingEndedError("\n".join([text, *output.lines[-20:]]))
    return run_of(name, told, sum(schedule.batch(step) for step in range(steps)), wall_s, load)


def run_of(name: str, told: Told, samples: int, wall_s: float, load: float) -> Run:
    """Out of what was published."""
    usd = max(event.usd for event in told.events)
    stepping_us = sum(sum(batch.step_us) for batch in told.steps)
    numbers = [event.workers for event in told.events if event.change is TrainingChange.GENERATION]
    paid_s = round(usd * 3_600 / USD_PER_HOUR)
    return Run(name, samples, wall_s, paid_s, stepping_us / 1e6, tuple(numbers), load)


def _publication(elastic: ElasticTraining, told: Told) -> Publication:
    return Publication(elastic.training.plan, elastic.training.steps, "", told)

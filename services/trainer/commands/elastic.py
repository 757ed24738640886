"""The coordinator of an elastic training: starts workers, orders generations of them, and decides how many there are.

One change at a time: workers are started; once all that live are ready, a generation with them is ordered; once it has
formed and its steps are measured, the next decision. A worker that ends before it is ready is forgotten.
"""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

from schemas.trainings import TrainingChange
from services._runtime.command.errors import UnavailableError
from services._runtime.exit_code import ExitCode
from services._runtime.task_cancellation import cancel_all
from services.trainer.commands.elastic_workers import Stage, Store, Worker, open_starter
from services.trainer.commands.outcome import Ended, TrainingFailedError, exit_of
from services.trainer.commands.publication import Publication
from services.trainer.commands.publishing import Publisher
from services.trainer.commands.registration import TrainingRegistration, TrainingTakenError
from services.trainer.commands.starters import Starter
from services.trainer.commands.train_output import TrainOutput
from services.trainer.commands.training import Training, is_step, received, report_socket, split_event
from services.trainer.core.batch_schedule import BatchSchedule
from services.trainer.core.billing import Bill
from services.trainer.core.elastic import Goal, Join, Leave, State, StepMeasurements, decide
from services.trainer.core.generations import Generation
from services.trainer.core.pauses import Pause, PauseMeter
from services.trainer.core.progress import ProgressMeter
from services.trainer.core.step_times import StepTime
from services.trainer.core.worker_place import Place

MOST_DEATHS: Final = 3
"""Of workers in a row, or generations that fail, without a step in between: whatever the cause is will go on."""
CHANGE_PARTS: Final = ("parted_us", "met_us", "connected_us", "moved_us")
"""Of a change of workers, as rank 0 measures them: who leaves has given its part away and the old group has ended; all
have come; the new group is connected; each member has its part."""
_STOPPING: Final = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class ElasticTraining:
    """What is trained, and with how many workers."""

    training: Training
    goal: Goal
    schedule: BatchSchedule
    silent_after_s: float = 660.0
    """After a failed group, until a member that is not in the next is killed: longer than a collective may take."""
    place: Place = field(default_factory=Place)


async def train_elastic(
    elastic: ElasticTraining,
    output: TrainOutput,
    signals: StopSignals,
    publisher: Publisher | None = None,
    registration: TrainingRegistration | None = None,
) -> Ended:
    """Run it until it ends, and publish what its workers report; nothing that it has made is left then.

    Raises:
        UnavailableError: no worker can be started.
        CancelledError: it was stopped before there was one.
        TrainingTakenError: meanwhile another coordinator has taken the training; nothing is saved any more.
    """
    training = elastic.training
    publication = Publication(training.plan, training.steps, training.checkpoint, publisher)
    async with coordinating(elastic, output, publication, registration) as coordinator:
        with signals.to(coordinator.on_signal):
            publication.started()
            ended = await coordinator.run()
    output.pauses(coordinator.pauses.changes, coordinator.pauses.failures)
    taken = coordinator.taken
    code, cause = exit_of(ended) if taken is None else (taken.exit_code, str(taken))
    publication.ended(code, cause, None)  # the plan predicts nothing of other numbers of workers
    if taken is not None:
        raise taken
    return ended


@asynccontextmanager
async def coordinating(
    elastic: ElasticTraining,
    output: TrainOutput,
    publication: Publication,
    registration: TrainingRegistration | None = None,
) -> AsyncIterator[Coordinator]:
    """A coordinator with a store, and the reports of its workers read; nothing of these is left at its end.

    Raises:
        UnavailableError: the place is not possible here, or the store does not come up.
    """
    with report_socket() as (reports, path):
        async with open_starter(elastic.place, path.parent) as starter:
            store = await Store.start(starter, elastic.place)
            try:
                options = {"report": f"unix:{path}", "store": store.address, "batch-schedule": str(elastic.schedule)}
                words = (word for name in options for word in (f"--{name}", options[name]))
                arguments = (*elastic.training.worker, *words)
                coordinator = Coordinator(elastic, output, publication, arguments, starter, registration)
                with coordinator.reading(reports):
                    yield coordinator
            finally:
                await store.close()


class StopSignals:
    """SIGINT and SIGTERM from the beginning to the end, so that what was started is removed whenever they come.

    Before there are workers they cancel the calling task; once these are being ended they change nothing more. The loop
    gives them back when it is closed (`asyncio.run`), and may do nothing else until then.

    Raises:
        TrainingFailedError: at its end, where they have cancelled the task.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._handle: Callable[[], object] = self._cancel
        self._is_cancelling = False

    def __enter__(self) -> Self:
        """Take the signals over."""
        for number in _STOPPING:
            self._loop.add_signal_handler(number, self._on_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ignore them from now on, until the loop is closed: that waits for what is still being removed in threads."""
        self._handle = lambda: None
        if self._is_cancelling and isinstance(error, asyncio.CancelledError):
            self._task.uncancel()
            raise TrainingFailedError("stopped before there was a worker", ExitCode.INTERRUPTED) from None

    @contextmanager
    def to(self, handle: Callable[[], object]) -> Iterator[None]:
        """Within it they go there.

        Raises:
            CancelledError: one has come before, and its cancellation was lost (`services._runtime.task_cancellation`).
        """
        if self._is_cancelling:
            raise asyncio.CancelledError
        self._handle = handle
        try:
            yield
        finally:
            self._handle = lambda: None

    def _on_signal(self) -> None:
        self._handle()

    def _cancel(self) -> None:
        """Once: a second one would cancel the removal."""
        self._handle = lambda: None
        self._is_cancelling = True
        self._task.cancel()


@dataclass
class Coordinator:
    """Of one training."""

    elastic: ElasticTraining
    output: TrainOutput
    publication: Publication
    arguments: tuple[str, ...]
    starter: Starter
    registration: TrainingRegistration | None = None
    pauses: PauseMeter = field(default_factory=PauseMeter)
    taken: TrainingTakenError | None = None
    """Another coordinator has taken the training."""
    _workers: dict[str, Worker] = field(default_factory=dict)
    _watching: set[asyncio.Task[None]] = field(default_factory=set)
    _started: int = 0
    _order: Generation = field(default=Generation(0, ()))
    _formed: int = 0
    """Number of the generation that trains."""
    _worlds: dict[int, int] = field(default_factory=dict)
    """Workers of each generation, for reports that come late."""
    _failed: set[int] = field(default_factory=set)
    """Generations that were ordered because one before had failed."""
    _has_failed: bool = False
    """The newest one has."""
    _measurements: StepMeasurements = field(default_factory=StepMeasurements)
    _meter: ProgressMeter | None = None
    _done: int = 0
    """Steps."""
    _deaths: int = 0
    """Since the last step."""
    _broken: int = 0
    """Generations that failed, since the last step."""
    _forming: dict[str, int] = field(default_factory=dict)
    """The newest generation in which each worker has told that it takes part."""
    _cause: str = ""
    """Of the change that is being made."""
    _result: Mapping[str, Any] | None = None
    _errors: list[Mapping[str, Any]] = field(default_factory=list)
    _codes: dict[int, int] = field(default_factory=dict)
    _is_joining: bool = False
    """Workers are being started that have no process yet."""
    _is_stopping: bool = False
    _is_killed: bool = False
    _is_finishing: bool = False
    """No worker is started or ordered any more."""

    def __post_init__(self) -> None:
        self._begin_ns = time.monotonic_ns()
        self._bill = Bill(self.elastic.goal.usd_per_hour)

    async def run(self) -> Ended:
        """Until all workers have ended."""
        renewing = asyncio.create_task(self._keep_registered())
        try:
            await self._start(self.elastic.goal.least)
            while self._watching:
                done, _ = await asyncio.wait(self._watching, return_when=asyncio.FIRST_COMPLETED)
                self._watching -= done  # what was added meanwhile stays
                for task in done:
                    task.result()
        finally:
            await self._end_all()
            await cancel_all({renewing})
        code = 0 if self._result is not None else 1
        checkpoint = self.elastic.training.checkpoint
        return Ended(code, self._result, self._errors, self._codes, self._is_killed, checkpoint)

    async def _end_all(self) -> None:
        """Where it was cut short: what workers are in may only be removed once each has ended."""
        self._finish()
        self._kill()
        while self._watching:
            done, _ = await asyncio.wait(self._watching, return_when=asyncio.FIRST_COMPLETED)
            self._watching -= done
            for task in done:
                if not task.cancelled():
                    task.exception()  # the first one is being raised

    def on_signal(self) -> None:
        """The first time: members save at the boundary between steps and end. The second time: all are killed."""
        if self._is_stopping:
            self._is_killed = True
            self._kill()
            return
        self._is_stopping = True
        has_begun = self._order.number > 0  # else it stops once it has: where it is, is in the checkpoint
        for worker in self._workers.values():
            is_needed = not has_begun or worker.stage in {Stage.MEMBER, Stage.LEAVING}
            worker.send(signal.SIGTERM if is_needed else signal.SIGKILL)

    @contextmanager
    def reading(self, reports: socket.socket) -> Iterator[None]:
        """Within it reports are read as they come; at its end those that have come."""
        loop = asyncio.get_running_loop()
        loop.add_reader(reports, self.read_reports, reports)
        try:
            yield
        finally:
            loop.remove_reader(reports)
        self.read_reports(reports)

    def read_reports(self, reports: socket.socket) -> None:
        """Take all that have come; decide anew with those of rank 0."""
        while (datagram := received(reports)) is not None:
            report = json.loads(datagram)
            self.publication.steps(report)
            if report["rank"] == 0 and report["generation"] in self._worlds:
                self._take(report)

    def _take(self, report: Mapping[str, Any]) -> None:
        workers, schedule = self._worlds[report["generation"]], self.elastic.schedule
        columns = (report[name] for name in ("step", "step_us", "compute_us", "end_us", "loss"))
        for step, step_us, compute_us, end_us, loss in zip(*columns, strict=True):
            pause = self.pauses.take(report["generation"], step, (step_us, end_us), self._failed)
            if pause is not None:
                self._on_pause(pause, workers)
            if report["generation"] < self._formed:  # late: where training is now, it does not say
                continue
            batch = schedule.batch(step)
            if self._meter is None or self._meter.plan.batch != batch:
                plan = self.elastic.training.plan.model_copy(update={"batch": batch})
                self._meter = ProgressMeter(plan, self.elastic.training.steps)
            self._measurements.take(workers, batch, step_us, compute_us)
            self._done, self._deaths, self._broken = step + 1, 0, 0
            if (progress := self._meter.take([StepTime(step, step_us, end_us, loss)])) is not None:
                self.publication.progress(progress)
                self.output.elastic_progress(progress, workers, self._usd)
        if report["generation"] == self._formed:
            self._decide()

    def _on_pause(self, pause: Pause, workers: int) -> None:
        self.output.continued(pause)
        self.publication.continued(pause, workers=workers, usd=self._usd, cause=self._cause)

    def _decide(self) -> None:
        is_changing = self._order.number > self._formed or self._of(Stage.STARTING, Stage.READY)
        if is_changing or self._is_joining or self._is_finishing or self._is_stopping:
            return
        steps, schedule = self.elastic.training.steps, self.elastic.schedule
        members = self._of(Stage.MEMBER)
        left = tuple(schedule.runs(self._done, steps))
        if not left:
            return
        state = State(len(members), left[0][0], left, self._usd, self._measurements.measured)
        decision = decide(self.elastic.goal, state, (time.monotonic_ns() - self._begin_ns) / 1e9)
        if isinstance(decision, Join):
            self._say_change("join", decision)
            self._start_soon(decision.workers - len(members))
        elif isinstance(decision, Leave):
            self._say_change("leave", decision)
            self._form([worker.name for worker in members[: decision.workers]])

    def _say_change(self, event: str, decision: Join | Leave) -> None:
        reason = decision.reason
        self._cause = reason.sentence
        self.output.workers(
            *(event, f"{decision.workers} workers: {reason.sentence}"),
            workers=decision.workers,
            measured=reason.measured,
            threshold=reason.threshold,
            unit=reason.unit,
        )

    def _start_soon(self, count: int) -> None:
        self._is_joining = True
        self._later(self._start(count))

    async def _start(self, count: int) -> None:
        try:
            for _ in range(count):
                if not self._is_finishing:
                    await self._start_one()
        except UnavailableError as error:
            if not self._of(Stage.MEMBER):
                raise
            self._deaths += 1
            self.output.workers("lost", f"{error}: the others go on without it", worker=f"worker-{self._started}")
        finally:
            self._is_joining = False

    async def _start_one(self) -> None:
        self._started = number = self._started + 1
        worker = await Worker.start(self.starter, number, self.arguments)
        self._bill.start(worker.name, worker.program.started_ns)
        self._workers[worker.name] = worker
        self._later(self._watch(worker, number))
        if self._is_finishing or self._is_stopping:  # meanwhile
            has_begun = self._is_finishing or self._order.number
            worker.send(signal.SIGKILL if has_begun else signal.SIGTERM)

    def _later(self, work: Any) -> None:
        self._watching.add(asyncio.create_task(work))

    async def _watch(self, worker: Worker, number: int) -> None:
        ended = await worker.ended(
            lambda line: self._on_line(worker, line), lambda line: self.output.from_ranks(line, stream="stderr")
        )
        code = ended.code
        self._bill.end(worker.name, ended.time_ns)
        self._forming.pop(worker.name, None)
        del self._workers[worker.name]
        text = f"{worker.name} {'was killed' if code < 0 else 'has ended'} ({code})"
        if worker.stage is Stage.LEAVING and code == ExitCode.OK:
            text = f"{worker.name} has left"
        self._publish(TrainingChange.LEFT, worker=worker.name, cause=text)
        if not self._is_finishing:
            self._on_end(worker, number, code, text)
        elif code != ExitCode.OK and worker.stage is Stage.MEMBER:
            self._codes[number] = code  # the others have no member to wait for any more

    def _on_end(self, worker: Worker, number: int, code: int, text: str) -> None:
        if worker.stage is Stage.MEMBER and code == ExitCode.OK:  # it has done the last step
            self._finish()
            return
        if worker.stage is Stage.LEAVING and code == ExitCode.OK:
            return
        self._deaths += 1
        is_users_error = code > 0 and code != ExitCode.RESUMABLE
        was_member = worker.stage is Stage.MEMBER
        is_last = self._is_stopping and not self._workers
        if is_users_error or is_last or self._deaths >= MOST_DEATHS:
            self._codes[number] = code
            self._finish()
            self._kill()
            return
        outcome = "the others go on without it" if was_member else "it is forgotten"
        self.output.workers("lost", f"{text}: {outcome}", worker=worker.name, exit_code=code)
        self._cause = text
        members = [member.name for member in self._of(Stage.MEMBER)]
        self._has_failed |= was_member
        if was_member and members:
            self._form(members)
        if not members and not self._of(Stage.STARTING, Stage.READY):
            self._start_soon(self.elastic.goal.least)
        else:
            self._join_ready()

    def _on_line(self, worker: Worker, line: str) -> None:
        text, event = split_event(line)
        if text or event is None:
            self.output.from_ranks(text, stream="stdout")
        if event is None:
            return
        match event["event"]:
            case "ready" if worker.stage is Stage.STARTING:
                self._on_ready(worker)
            case "forming" if is_step(event.get("number")):
                self._forming[worker.name] = event["number"]
            case "generation" if is_step(event.get("number")) and is_step(event.get("step")):
                self._on_formed(event)
            case "broken" if event.get("number") == self._order.number and worker.stage is Stage.MEMBER:
                self._on_broken()
            case "result":
                self._result = event
            case "error" if event.get("exit_code") in set(ExitCode) and "rank" in event:
                self._errors.append(event)
            case kind if kind in self.publication.changes and is_step(event.get("step")):
                self.publication.changes[kind](event["step"])

    def _on_ready(self, worker: Worker) -> None:
        worker.stage = Stage.READY
        self._publish(TrainingChange.READY, worker=worker.name)
        if self._is_stopping:  # a container's first process drops a signal that it cannot take yet
            worker.send(signal.SIGTERM)
        self._join_ready()

    def _on_broken(self) -> None:
        """Members wait for a generation: the same ones form it. Where one has died, the next is without it."""
        self._broken += 1
        if self._broken >= MOST_DEATHS:
            self._finish()
            self._kill()
        elif not self._is_finishing:
            self._cause, self._has_failed = "the group has failed", True
            self._form([member.name for member in self._of(Stage.MEMBER)])
            after_s = self.elastic.silent_after_s
            asyncio.get_running_loop().call_later(after_s, self._kill_silent, self._order.number)

    def _kill_silent(self, number: int) -> None:
        """Members that hang: the others would wait for them for ever."""
        if number != self._order.number or self._formed >= number:
            return
        for worker in self._of(Stage.MEMBER):
            if self._forming.get(worker.name, 0) < number:
                self.output.workers("silent", f"{worker.name} hangs: it is killed", worker=worker.name)
                worker.send(signal.SIGKILL)

    def _join_ready(self) -> None:
        """Order a generation with all that are ready, once no other is still being started."""
        ready = self._of(Stage.READY)
        may_join = not self._is_finishing and not (self._is_stopping and self._order.number)
        if ready and may_join and not self._of(Stage.STARTING):
            self._form([worker.name for worker in (*self._of(Stage.MEMBER), *ready)])

    def _form(self, members: list[str]) -> None:
        """Order a generation; those that are not in it are to leave."""
        self._order = Generation(self._order.number + 1, tuple(members))
        self._worlds[self._order.number] = len(members)
        if self._has_failed:
            self._failed.add(self._order.number)
            self._has_failed = False
        for worker in self._of(Stage.READY, Stage.MEMBER):
            if worker.name in members:
                if worker.stage is Stage.READY:
                    self._publish(TrainingChange.JOINED, worker=worker.name, cause=self._cause)
                worker.stage = Stage.MEMBER
            elif worker.stage is Stage.MEMBER:
                worker.stage = Stage.LEAVING
        if self.registration is None:
            self._send_order()
        else:
            self._later(self._record_and_send(self.registration, self._order.number))

    async def _record_and_send(self, registration: TrainingRegistration, number: int) -> None:
        """Unless a newer generation was ordered meanwhile: the members of this one may be gone."""
        await self._record(registration, number, self._done, is_formed=False)
        if number == self._order.number and not self._is_finishing:
            self._send_order()

    def _send_order(self) -> None:
        """The newest one. Who is to leave by one that was not sent reads in this one that it is no member."""
        for worker in self._of(Stage.MEMBER, Stage.LEAVING):
            worker.order(self._order)

    async def _record(
        self, registration: TrainingRegistration, number: int, first_step: int, *, is_formed: bool
    ) -> None:
        try:
            await registration.record(number, self._worlds[number], first_step, is_formed=is_formed)
        except TrainingTakenError as error:
            self._on_taken(error)

    async def _keep_registered(self) -> None:
        if self.registration is not None:
            try:
                await self.registration.renew()
            except TrainingTakenError as error:
                self._on_taken(error)

    def _on_taken(self, error: TrainingTakenError) -> None:
        """The other one has gone on at the last checkpoint: nothing may be written beside it any more."""
        self.taken = self.taken or error
        self._finish()
        self._kill()

    def _on_formed(self, event: Mapping[str, Any]) -> None:
        if event["number"] not in self._worlds or event["number"] <= self._formed:
            return
        self._formed, step = event["number"], event["step"]
        workers = self._worlds[self._formed]
        self._measurements.begin()
        self._meter, self._done = None, step
        how = "" if event.get("kept") or self._formed == 1 else ", from the last checkpoint"
        text = f"{workers} worker{'s' * (workers != 1)} from step {step} on{how}"
        fields = {"number": self._formed, "workers": workers, "step": step, "took_us": _took_us(event.get("took_us"))}
        self.output.workers("generation", text, **fields)
        self._publish(TrainingChange.GENERATION, workers=workers, cause=self._cause)
        if self.registration is not None and self._formed == self._order.number:
            self._later(self._record(self.registration, self._formed, step, is_formed=True))

    def _publish(self, change: TrainingChange, *, worker: str = "", workers: int = 0, cause: str = "") -> None:
        count = workers or self._worlds.get(self._formed, 0)
        self.publication.worker(change, worker=worker, workers=count, usd=self._usd, cause=cause)

    def _of(self, *stages: Stage) -> list[Worker]:
        """In the order of their start: members keep theirs."""
        return [worker for worker in self._workers.values() if worker.stage in stages]

    def _finish(self) -> None:
        """No worker joins any more, and none that waits for others waits for ever."""
        self._is_finishing = True
        for worker in self._workers.values():
            if worker.stage in {Stage.STARTING, Stage.READY}:
                worker.send(signal.SIGKILL)
            worker.close_orders()

    def _kill(self) -> None:
        for worker in self._workers.values():
            worker.send(signal.SIGKILL)

    @property
    def _usd(self) -> float:
        return self._bill.usd(self.starter.now_ns())


def _took_us(given: object) -> dict[str, int]:
    """Parts of a change out of rank 0's event, checked: the user's code may print such an event as well."""
    known = given if isinstance(given, Mapping) else {}
    return {part: known[part] for part in CHANGE_PARTS if is_step(known.get(part))}

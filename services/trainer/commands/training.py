"""One training from its start to its end: torchrun's ranks, their reports by a socket, signals."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from schemas.launch import single_machine, with_worker
from schemas.measured_runs import MeasuredRun
from schemas.plans import Plan
from services._jobs.rank_environment import GLOO_DEVICE
from services._runtime.command.errors import UnavailableError
from services._runtime.command.tool_shell import read_event
from services._runtime.exit_code import ExitCode
from services._runtime.service.interpreter import isolated_command
from services.trainer.commands.outcome import Ended, TrainingFailedError, exit_of
from services.trainer.commands.publication import Publication
from services.trainer.commands.publishing import Publisher
from services.trainer.commands.torchrun import Torchrun
from services.trainer.commands.torchrun_report import TorchrunReport
from services.trainer.commands.train_output import TrainOutput
from services.trainer.core.drift import DriftWatch
from services.trainer.core.measured_run import StepSample, measured_run
from services.trainer.core.progress import Progress, ProgressMeter
from services.trainer.core.step_times import StepTimes

_MAX_REPORT_BYTES: Final = 1 << 20
_MOST_STEPS: Final = 1 << 62
_EVENT: Final = '{"event": '
_TORCHRUN: Final = "torch.distributed.run"
_READY_VARIABLE: Final = "TURNBUCKLE_READY_FILE"
"""Names a file whose making tells the job's runner that the training makes progress."""


@dataclass(frozen=True, slots=True)
class Training:
    """What is trained, and how long."""

    plan: Plan
    worker: tuple[str, ...]
    """Arguments of each rank."""
    steps: int
    checkpoint: str
    """The directory; empty: none."""
    is_aggregated: bool = False
    """Every rank has the whole model, and aggregators make the steps: the plan predicts nothing of that."""


async def train(training: Training, output: TrainOutput, publisher: Publisher | None = None) -> Ended:
    """Run the plan's ranks on this machine until they end, and publish what they report.

    Raises:
        UnavailableError: torchrun cannot be started.
    """
    with report_socket() as (reports, place):
        publication = Publication(training.plan, training.steps, training.checkpoint, publisher)
        ranks = _Ranks(training, output, publication)
        command = _command(training, place)
        loop = asyncio.get_running_loop()
        try:
            torchrun = await Torchrun.start(command, rank_environment(len(training.plan.devices)))
        except OSError as error:
            raise UnavailableError(f"torchrun cannot be started: {error.strerror}") from error
        publication.started()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, torchrun.on_signal)
        loop.add_reader(reports, ranks.read_reports, reports)
        try:
            code = await torchrun.ended(ranks.on_line, ranks.on_error_line)
        finally:
            loop.remove_reader(reports)
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
        ranks.read_reports(reports)
        ranks.flush()
        rank_codes = ranks.report.exit_codes
        run: MeasuredRun | str = "the plan says nothing of a training with --aggregate"
        if not training.is_aggregated:
            run = measured_run(training.plan, ranks.sample.steps_us, time.time_ns())
        ended = Ended(code, ranks.result, ranks.errors, rank_codes, torchrun.is_killed, training.checkpoint, run)
        publication.ended(*exit_of(ended), None if isinstance(run, str) else run)
        return ended


@dataclass
class _Ranks:
    """What the ranks say, and what is printed of it."""

    training: Training
    output: TrainOutput
    publication: Publication
    result: Mapping[str, Any] | None = None
    errors: list[Mapping[str, Any]] = field(default_factory=list)
    report: TorchrunReport = field(default_factory=TorchrunReport)
    sample: StepSample = field(default_factory=StepSample)

    def __post_init__(self) -> None:
        plan = self.training.plan
        self._times, self._drift = StepTimes(len(plan.devices)), DriftWatch(plan)
        self._meter = ProgressMeter(plan, self.training.steps)
        self._ready_file = os.environ.get(_READY_VARIABLE)

    def on_line(self, line: str) -> None:
        """Of a rank's standard output: an event, or what the user's code prints."""
        text, event = split_event(line)
        if text or event is None:
            self.output.from_ranks(text, stream="stdout")
        if event is None:
            return
        if event["event"] == "result":
            self.result = event
        elif event["event"] in self.publication.changes and is_step(event.get("step")):
            self.publication.changes[event["event"]](event["step"])
        elif event["event"] == "error" and event.get("exit_code") in set(ExitCode) and "rank" in event:
            self.errors.append(event)

    def on_error_line(self, line: str) -> None:
        """Of the standard error of a rank or torchrun."""
        if self.report.take(line):
            self.output.from_torchrun(line)
        else:
            self.output.from_ranks(line, stream="stderr")

    def read_reports(self, reports: socket.socket) -> None:
        """Take all that have come."""
        while (datagram := received(reports)) is not None:
            report = json.loads(datagram)
            self.publication.steps(report)
            self._note_ready()
            steps = self._times.take(report)
            self._show(self._meter.take(steps))
            for step in steps:
                self.sample.take(step.step_us)
                if self.training.is_aggregated:
                    continue
                if (reason := self._drift.take(step.step_us)) is not None:
                    self.publication.drift(reason)
                    self.output.drift(reason)

    def flush(self) -> None:
        """Print what there is of a last second."""
        self._show(self._meter.rest())

    def _show(self, progress: Progress | None) -> None:
        if progress is not None:
            self.publication.progress(progress)
            self.output.progress(progress)

    def _note_ready(self) -> None:
        """Let the job's runner know, once, that the ranks have loaded what they need."""
        if self._ready_file:
            with suppress(OSError):  # the runner then waits for it for a while
                Path(self._ready_file).touch()
            self._ready_file = None


def is_step(value: object) -> bool:
    """Whether a rank's event, which the user's code may print as well, has a number of steps there."""
    return type(value) is int and 0 <= value < _MOST_STEPS


def split_event(line: str) -> tuple[str, Mapping[str, Any] | None]:
    """What stands before a rank's event, and the event; None: the line has none.

    Ranks share a pipe: an event is one write, and may stand behind a line of another rank that has no end yet.
    """
    at = line.find(_EVENT)
    event = read_event(line[at:]) if at >= 0 else None
    return (line, None) if event is None else (line[:at], event)


def launch(training: Training) -> tuple[str, ...]:
    """What to run on each machine, as a person would type it; a plan over one machine has one line.

    Raises:
        TrainingFailedError: the plan's lines cannot be understood.
    """
    worker = ("turnbuckle", "run", "trainer-worker", *training.worker)
    if len(training.plan.launch) < 2:
        return (shlex.join(single_machine(len(training.plan.devices), worker)),)
    try:
        return tuple(with_worker(line, worker) for line in training.plan.launch)
    except ValueError as error:
        raise TrainingFailedError(f"the plan's launch cannot be used: {error}", ExitCode.BAD_DATA) from error


def _command(training: Training, reports: Path) -> list[str]:
    # The worker of this installation, wherever `turnbuckle` is.
    worker = isolated_command("services.trainer.worker", *training.worker, "--report", f"unix:{reports}")
    _, *arguments = single_machine(len(training.plan.devices), tuple(worker))
    return isolated_command(_TORCHRUN, *arguments)


def rank_environment(ranks: int) -> dict[str, str]:
    """All ranks are here: they need no other interface, whatever the host's name resolves to."""
    defaults = {GLOO_DEVICE: "lo"}
    if ranks > 1:
        defaults["OMP_NUM_THREADS"] = "1"  # as torchrun would, with a page about it
    return defaults | os.environ


@contextmanager
def report_socket() -> Iterator[tuple[socket.socket, Path]]:
    """In a directory of its own, which only this user may enter."""
    with tempfile.TemporaryDirectory(prefix="turnbuckle-train-") as directory:
        place = Path(directory) / "reports"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
            made.bind(str(place))
            made.settimeout(0.0)
            yield made, place


def received(reports: socket.socket) -> bytes | None:
    """The next report; None: there is none yet."""
    try:
        return reports.recv(_MAX_REPORT_BYTES)
    except BlockingIOError:
        return None

"""Starts the ranks of the training job, each in its host's namespace, and starts them again when a peer was lost.

As launchers do today: one rank that ends takes the others along; then all start anew from the last checkpoint.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from services._host.netns import command_in
from tests.bench.thorn_job_faults import FaultCycle, FaultInjector, InjectedFault
from tests.bench.thorn_job_ground import Ground

CHECKOUT: Final = Path(__file__).resolve().parents[2]
_FIRST_PORT: Final = 29500
_POLL_S: Final = 0.02
_OUTPUT_TAIL: Final = 2000


class JobError(Exception):
    """The job ended for a reason that no fault explains; the text holds the end of its output."""


@dataclass(frozen=True, slots=True)
class JobOptions:
    """Options of `tests.bench.training_job` that are the same for every rank and attempt."""

    iterations: int = 1500
    evaluate_every: int = 25
    checkpoint_every: int = 50
    timeout_s: float = 5.0
    rendezvous_s: float = 60.0
    batch: int = 64
    width: int = 40
    seed: int = 1
    rate: float = 0.01
    noise: float = 6.0
    pause_ms: float = 0.0

    def arguments(self) -> list[str]:
        """For the command line."""
        return [word for name, value in asdict(self).items() for word in (f"--{name.replace('_', '-')}", str(value))]


@dataclass(slots=True)
class Attempt:
    """One set of ranks from start to end, in CLOCK_MONOTONIC seconds.

    `lost`: it ended because a peer was lost; `error` is what the rank said that noticed it first.
    """

    started: float
    ended: float = 0.0
    lost: bool = False
    error: str = ""


@dataclass(slots=True)
class JobRun:
    """All that is known of a run; `events` are the lines that rank 0 wrote."""

    attempts: list[Attempt] = field(default_factory=list)
    faults: list[InjectedFault] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    finished: bool = False

    def of_kind(self, event: str) -> list[dict[str, Any]]:
        """Events such as ``iteration``, in order of time."""
        return [line for line in self.events if line["event"] == event]


@dataclass(frozen=True, slots=True)
class Limits:
    """When a job that makes no progress is given up."""

    seconds: float = 900.0
    attempts: int = 100


class LogReader:
    """Reads the lines of one attempt that were added since it read last.

    A write that crosses a page can be seen half done, and a rank that is killed can leave half a line at the end: only
    whole lines are taken.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> list[dict[str, Any]]:
        """New events; none before the file exists."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        return [json.loads(line) for line in whole.splitlines()]


@dataclass(slots=True)
class Supervisor:
    """Runs one job to its end; `tell` is called every `_POLL_S` seconds, for progress."""

    ground: Ground
    options: JobOptions
    directory: Path
    cycle: FaultCycle | None = None
    limits: Limits = Limits()
    tell: Callable[[JobRun, str | None], None] = lambda _run, _port_down: None

    def run(self) -> JobRun:
        """Start the job, and again wherever a peer was lost, until it is done or given up.

        Raises:
            JobError: the job failed, or lost a peer although no fault was injected.
            OSError, subprocess.CalledProcessError: a fault could not be injected.
        """
        self.directory.mkdir(parents=True)
        injector = FaultInjector(self.ground.ports, self.cycle or FaultCycle(at_most=0))
        run = JobRun(faults=injector.faults)
        deadline = time.monotonic() + self.limits.seconds
        try:
            while not run.finished and len(run.attempts) < self.limits.attempts and time.monotonic() < deadline:
                self._attempt(run, injector, deadline)
        finally:
            injector.stop()
        return run

    def _attempt(self, run: JobRun, injector: FaultInjector, deadline: float) -> None:
        attempt = Attempt(time.monotonic())
        run.attempts.append(attempt)
        number = len(run.attempts) - 1
        log = LogReader(self._log_path(number))
        with self._ranks(number) as ranks:
            codes = _exit_codes(ranks)
            while not _over(codes) and time.monotonic() < deadline:
                run.events += log.read()
                if run.events and run.events[-1]["event"] == "iteration":
                    injector.start()
                self.tell(run, injector.down)
                time.sleep(_POLL_S)
                codes = _exit_codes(ranks)
            attempt.ended = time.monotonic()
        run.events += log.read()
        run.finished = all(code == 0 for code in codes)
        if run.finished:  # not when the interpreters were gone
            attempt.ended = run.of_kind("finished")[-1]["t"]
        attempt.lost = any(codes)
        if attempt.lost:
            outputs = [self._output(rank, number) for rank, code in enumerate(codes) if code]
            if not run.faults:
                raise JobError("\n".join([f"ranks ended with {codes} without any fault:", *outputs]))
            attempt.error = outputs[0].strip().rpartition("\n")[2]

    @contextmanager
    def _ranks(self, attempt: int) -> Iterator[list[subprocess.Popen[bytes]]]:
        """The ranks, running; dead at the end."""
        ranks: list[subprocess.Popen[bytes]] = []
        try:
            for rank, namespace in enumerate(self.ground.namespaces):
                ranks.append(self._start(rank, namespace, attempt))
            yield ranks
        finally:
            for process in ranks:
                process.kill()
            for process in ranks:
                process.wait()

    def _start(self, rank: int, namespace: str, attempt: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.bench.training_job", *self.options.arguments()]
        command += ["--rank", str(rank), "--world", str(len(self.ground.namespaces)), "--attempt", str(attempt)]
        # A port of its own per attempt: connections of the last one may still linger.
        command += ["--port", str(_FIRST_PORT + attempt), "--log", str(self._log_path(attempt))]
        command += ["--checkpoint", str(self.directory / "checkpoint.pt")]
        environment = os.environ | {"GLOO_SOCKET_IFNAME": "app", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        # A rank must not outlive a runner that is killed.
        command = ["setpriv", "--pdeathsig", "KILL", "--", *command_in(namespace, command)]
        with self._output_path(rank, attempt).open("wb") as output:
            return subprocess.Popen(
                command,
                cwd=CHECKOUT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is ours to handle
            )

    def _log_path(self, attempt: int) -> Path:
        return self.directory / f"attempt{attempt}.jsonl"

    def _output_path(self, rank: int, attempt: int) -> Path:
        return self.directory / f"attempt{attempt}-rank{rank}.txt"

    def _output(self, rank: int, attempt: int) -> str:
        return self._output_path(rank, attempt).read_text(encoding="utf-8", errors="replace")[-_OUTPUT_TAIL:]


def _exit_codes(ranks: Sequence[subprocess.Popen[bytes]]) -> list[int | None]:
    return [process.poll() for process in ranks]


def _over(codes: Sequence[int | None]) -> bool:
    """Whether a rank failed, or all are done."""
    return any(codes) or all(code == 0 for code in codes)

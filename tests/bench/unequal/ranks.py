"""The ranks of one plan, each in a sandbox of its own, which can be stopped and continued between steps of others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from services._jobs.sandbox.network import DEVICE
from services._jobs.sandbox.sandbox import Output, Sandbox, Sandboxes
from services._runtime.service.interpreter import isolated_command
from services.collector.layers.quota import PERIOD_US
from services.collector.profiler.worker_environment import MASTER_PORT, Rendezvous, worker_environment
from services.trainer.core.step_times import StepTime, StepTimes
from tests.bench.unequal.cases import RATE_BITS_PER_S, Box
from tests.bench.unequal.product import JOB

STEPS: Final = 100_000
"""More than are measured."""
FIRST_STEPS: Final = 3
DEADLINE_S: Final = 240.0
_POLL_S: Final = 0.05
_TAIL_CHARACTERS: Final = 2_000


class OutOfMemoryError(RuntimeError):
    """A rank was killed at its sandbox's limit; the message says which."""


class RanksFailedError(RuntimeError):
    """Ranks have ended otherwise than by running out of memory, or not answered."""


@dataclass(slots=True)
class Ranks:
    """Processes of one training."""

    boxes: tuple[Box, ...]
    sandboxes: list[Sandbox]
    processes: list[subprocess.Popen[bytes]]
    directory: Path
    steps: list[StepTime] = field(default_factory=list)
    peak_bytes: dict[int, int] = field(default_factory=dict)
    """Resident memory at most, by rank, as the ranks report it."""
    _read_bytes: int = 0
    _times: StepTimes = field(init=False)

    def __post_init__(self) -> None:
        self._times = StepTimes(len(self.boxes))

    @classmethod
    def start(cls, where: Sandboxes, name: str, boxes: tuple[Box, ...], model: str, directory: Path) -> Ranks:
        """Start them with the plan in ``directory/plan.json``, each with its memory, and no quota until `limit_cpu`."""
        made = [
            where.create(f"{name}-{rank}", None, box.memory_bytes, RATE_BITS_PER_S) for rank, box in enumerate(boxes)
        ]
        rendezvous = Rendezvous(len(boxes), made[0].address, MASTER_PORT, DEVICE, threads=1)
        command = isolated_command("services.trainer.worker", str(directory / "plan.json"), f"{JOB}:{model}_build")
        command += ["--data", f"{JOB}:{model}_samples", "--steps", str(STEPS), "--device", "cpu"]
        command += ["--report", str(directory / "steps")]
        processes = [
            sandbox.spawn(
                command,
                worker_environment(os.environ, rank, rendezvous),
                output=Output(directory / f"out-{rank}", directory / f"out-{rank}"),
            )
            for rank, sandbox in enumerate(made)
        ]
        return cls(boxes, made, processes, directory)

    def begin(self) -> None:
        """Wait for the first steps: moments of the optimizer are there from the second on.

        Raises:
            OutOfMemoryError: a rank was killed before that.
        """
        self._wait_for(lambda: len(self.steps) >= FIRST_STEPS)

    def limit_cpu(self) -> None:
        """Give each the quota of its device."""
        for box, sandbox in zip(self.boxes, self.sandboxes, strict=True):
            sandbox.limit_cpu(box.cpu_cores, PERIOD_US)

    def pause(self) -> None:
        """Stop all."""
        self._send(signal.SIGSTOP)

    def resume(self) -> None:
        """Continue all."""
        self._send(signal.SIGCONT)

    def _send(self, number: signal.Signals) -> None:
        for process in self.processes:
            process.send_signal(number)

    def turn(self, count: int) -> list[StepTime]:
        """Let them go on for so many whole steps, and stop them; what began before does not count.

        Raises:
            OutOfMemoryError: a rank was killed meanwhile.
        """
        began_us = time.monotonic_ns() // 1_000

        def whole() -> list[StepTime]:
            return [step for step in self.steps if step.end_us - step.step_us >= began_us]

        self.resume()
        self._wait_for(lambda: len(whole()) >= count)
        self.pause()
        return whole()

    def _wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until it holds.

        Raises:
            OutOfMemoryError: a rank was killed before that.
            RanksFailedError: a rank has ended otherwise, or it does not hold in time.
        """
        deadline_s = time.monotonic() + DEADLINE_S
        while not condition():
            self._read_reports()
            if any(process.poll() is not None for process in self.processes):
                raise self._ended()
            if time.monotonic() > deadline_s:
                raise RanksFailedError(f"no step within {DEADLINE_S:g} s\n{self._output()}")
            time.sleep(_POLL_S)

    def _ended(self) -> OutOfMemoryError | RanksFailedError:
        for rank, (box, sandbox) in enumerate(zip(self.boxes, self.sandboxes, strict=True)):
            used = sandbox.sample()
            if used is not None and used.oom_kills:
                return OutOfMemoryError(f"rank {rank} killed at {box.memory_bytes >> 20} MiB")
        return RanksFailedError(f"a rank has ended\n{self._output()}")

    def _output(self) -> str:
        files = [self.directory / f"out-{rank}" for rank in range(len(self.boxes))]
        return "\n".join(file.read_text(encoding="utf-8", errors="replace")[-_TAIL_CHARACTERS:] for file in files)

    def _read_reports(self) -> None:
        file = self.directory / "steps"
        if not file.exists():
            return
        with file.open("rb") as opened:
            opened.seek(self._read_bytes)
            for line in opened:
                if not line.endswith(b"\n"):
                    break
                self._read_bytes += len(line)
                report = json.loads(line)
                self.peak_bytes[report["rank"]] = max(report["memory_bytes"])
                self.steps += self._times.take(report)

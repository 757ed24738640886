"""The workers of a local run: the same command in one sandbox each, watched until the last one has ended."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from services._jobs.sandbox.network import DEVICE
from services._jobs.sandbox.sandbox import Output, Sandbox, Sandboxes
from services._runtime.child_process import log_tail
from services.collector.profiler.contention import ContentionCounters, ThreadTimes
from services.collector.profiler.machine_times import read_machine, read_threads
from services.collector.profiler.progress.file import VARIABLE
from services.collector.profiler.series import Counters
from services.collector.profiler.worker_environment import (
    Rendezvous,
    threads_per_worker,
    worker_environment,
    worker_names,
)

_TAIL_BYTES: Final = 8 << 10


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """Limits of each worker; None: unlimited."""

    cpu_cores: float | None = None
    memory_bytes: int | None = None
    network_bits_per_s: int | None = None


@dataclass(frozen=True, slots=True)
class Launch:
    """Command, workers and limits of a local run."""

    argv: tuple[str, ...]
    workers: int
    limits: SandboxLimits
    master_port: int
    logs: Path
    """Directory that takes each worker's output: ``master.out``, ``master.err``..."""


@dataclass(slots=True)
class Worker:
    """A worker process."""

    name: str
    sandbox: Sandbox
    process: subprocess.Popen[bytes]
    stderr: Path
    ended_as: int | None = None
    """Position in the order of exits, from 0; None: running."""

    @property
    def exit_code(self) -> int | None:
        """Negative: killed by that signal. None: it runs."""
        return self.process.returncode

    def stderr_tail(self) -> list[str]:
        """The last lines that it wrote on standard error."""
        return log_tail(self.stderr, _TAIL_BYTES).splitlines()


def progress_file(logs: Path, worker: str) -> Path:
    """Where a worker may write its progress; it need not exist."""
    return logs / f"{worker}.progress"


class LocalWorkers:
    """All workers of a run. Start and use it from a thread that lives as long as they do."""

    def __init__(self, sandboxes: Sandboxes, launch: Launch) -> None:
        self._sandboxes = sandboxes
        self._launch = launch
        self._made: list[Sandbox] = []
        self._ended = 0
        self._threads = ThreadTimes()
        self._called: Callable[[], None] = _no_watcher
        self.workers: list[Worker] = []

    @property
    def names(self) -> tuple[str, ...]:
        """Of all workers, the master first."""
        return worker_names(self._launch.workers)

    def prepare(self) -> None:
        """Make every sandbox.

        Raises:
            SandboxUnavailableError: the kernel does not let us.
            OSError: the directory for their output cannot be made.
        """
        limits = self._launch.limits
        self._launch.logs.mkdir(parents=True, exist_ok=True)
        for name in self.names:
            made = self._sandboxes.create(name, limits.cpu_cores, limits.memory_bytes, limits.network_bits_per_s)
            self._made.append(made)

    def start(self) -> None:
        """Start every worker, the master first.

        Raises:
            SandboxUnavailableError: the kernel does not let us.
            OSError: the program cannot be executed.
        """
        launch = self._launch
        cores = len(os.sched_getaffinity(0))
        threads = threads_per_worker(launch.workers, cores, launch.limits.cpu_cores)
        meeting = Rendezvous(launch.workers, self._made[0].address, launch.master_port, DEVICE, threads)
        for rank, sandbox in enumerate(self._made):
            output = Output(launch.logs / f"{sandbox.name}.out", launch.logs / f"{sandbox.name}.err")
            environment = worker_environment(os.environ, rank, meeting)
            environment[VARIABLE] = str(progress_file(launch.logs, sandbox.name))
            process = sandbox.spawn(launch.argv, environment, None, output)
            self.workers.append(Worker(sandbox.name, sandbox, process, launch.logs / f"{sandbox.name}.err"))

    def watch(self, loop: asyncio.AbstractEventLoop, ended: Callable[[], None]) -> None:
        """Call `ended` each time that one has ended, in the order of their ends."""
        self._called = ended
        for worker in self.workers:
            descriptor = os.pidfd_open(worker.process.pid)
            loop.add_reader(descriptor, self._reap, loop, worker, descriptor)

    def _reap(self, loop: asyncio.AbstractEventLoop, worker: Worker, descriptor: int) -> None:
        loop.remove_reader(descriptor)
        os.close(descriptor)
        worker.process.wait()
        worker.ended_as, self._ended = self._ended, self._ended + 1
        self._called()

    def counters(self, elapsed_s: float) -> list[Counters]:
        """Of each worker's sandbox, at so many seconds after the start."""
        found = []
        for sandbox in self._made:
            sample = sandbox.sample()
            assert sample is not None, "cells are removed after the run"
            found.append(Counters(elapsed_s, sample.cpu_s, sample.memory_bytes, sample.rx_bytes, sample.tx_bytes))
        return found

    def contention(self, elapsed_s: float) -> ContentionCounters:
        """Of the machine and all workers, at so many seconds after the start.

        Raises:
            OSError: there is no /proc.
        """
        samples = [sample for sandbox in self._made if (sample := sandbox.sample()) is not None]
        self._threads.add(read_threads(pid for sandbox in self._made for pid in sandbox.process_ids()))
        machine = read_machine()
        return ContentionCounters(
            elapsed_s,
            machine._replace(busy_s=machine.busy_s - time.process_time()),
            sum(sample.cpu_s for sample in samples),
            self._threads.total,
            sum(sample.throttled_s for sample in samples),
        )

    @property
    def all_ended(self) -> bool:
        """Whether none runs any more."""
        return all(worker.ended_as is not None for worker in self.workers)

    @property
    def failed(self) -> Worker | None:
        """The first one that ended with another exit code than 0; the others' errors are mostly about its loss."""
        ended = [worker for worker in self.workers if worker.ended_as is not None and worker.exit_code != 0]
        return min(ended, key=lambda worker: worker.ended_as or 0, default=None)

    def out_of_memory(self, worker: Worker) -> bool:
        """Whether the kernel has killed something in its sandbox for lack of memory."""
        sample = worker.sandbox.sample()
        return sample is not None and sample.oom_kills > 0

    def terminate(self) -> None:
        """SIGTERM to every worker that still runs, and to what is in its process group."""
        for worker in self.workers:
            if worker.ended_as is None:
                with suppress(ProcessLookupError):
                    os.killpg(worker.process.pid, signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to everything in every sandbox."""
        for sandbox in self._made:
            sandbox.kill()


def _no_watcher() -> None:
    """Placeholder until `watch` is called."""

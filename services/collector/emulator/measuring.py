"""Measures one run: sandboxes, workers, release, end. Blocks; called by the fork server, the workers' parent.

Workers set up (processes, connections, model) without a CPU quota, so that a run takes seconds and not minutes; memory
and network are limited from the start. The quota applies from the release, and training alone is measured: from the
release of all workers to the end of the last one's last step.
"""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from schemas.jobs import JobState
from schemas.runs import WorkerSeries
from services._jobs.sandbox.network import DEVICE
from services._jobs.sandbox.sandbox import Sandbox, Sandboxes
from services.collector.emulator.run_request import SETUP_TIMEOUT_S, RunOutcome, RunRequest
from services.collector.emulator.training import Place
from services.collector.emulator.worker import Training, Worker, start_worker
from services.collector.profiler.series import Counters, Recording, series_of

PERIOD_US: Final = 20_000
"""CFS period of the quotas, a fifth of the kernel's default: workers wait less for another one's next period, as they
would for a slower processor."""
_REAP_S: Final = 10.0


class AbandonedError(Exception):
    """The client of the run has disconnected."""


@dataclass(slots=True)
class Bench:
    """Sandboxes and client connection of the runs."""

    sandboxes: Sandboxes
    watched: int | None = None
    """A descriptor whose end of file means that the client has disconnected."""


@dataclass(slots=True)
class _Run:
    """State of a run."""

    bench: Bench
    request: RunRequest
    workers: list[Worker]
    recordings: list[Recording]
    started_ns: int
    released_ns: int = 0
    memory_bytes: int = 0
    cpu_s: float = 0.0

    def wait(self, until: Callable[[Worker], bool], deadline_ns: int) -> bool:
        """Wait until a condition holds for all workers (True), or the deadline or a worker's exit (False).

        Raises:
            AbandonedError: the client has disconnected.
        """
        with selectors.DefaultSelector() as selector:
            for worker in self.workers:
                if worker.exit_code is None:
                    selector.register(worker.line, selectors.EVENT_READ, worker)
            if self.bench.watched is not None:
                selector.register(self.bench.watched, selectors.EVENT_READ)
            while not all(until(worker) for worker in self.workers):
                left_s = (deadline_ns - time.monotonic_ns()) / 1e9
                if left_s <= 0 or any(worker.exit_code is not None for worker in self.workers):
                    return False
                for key, _ in selector.select(min(left_s, self._until_next_sample_s())):
                    if key.data is None:
                        raise AbandonedError
                    key.data.read_messages()
                if self._until_next_sample_s() <= 0:
                    self.sample()
        return True

    def _until_next_sample_s(self) -> float:
        if not self.released_ns or self.request.interval_s is None:
            return 3600.0
        taken = len(self.recordings[0].rows) + 1
        return max(0.0, taken * self.request.interval_s - (time.monotonic_ns() - self.released_ns) / 1e9)

    def sample(self) -> None:
        """Sample each worker now."""
        for worker, recording in zip(self.workers, self.recordings, strict=True):
            used = worker.sandbox.sample()
            if used is not None:
                elapsed_s = (time.monotonic_ns() - self.released_ns) / 1e9
                recording.add(Counters(elapsed_s, used.cpu_s, used.memory_bytes, used.rx_bytes, used.tx_bytes))

    def read_usage(self) -> None:
        """Record the largest worker's memory, and the total CPU time."""
        samples = [sample for sample in (worker.sandbox.sample() for worker in self.workers) if sample]
        self.memory_bytes = max((sample.memory_bytes for sample in samples), default=0)
        self.cpu_s = sum(sample.cpu_s for sample in samples)

    def limit(self, cores: float | None) -> None:
        """Set each worker's CPU quota; None: none."""
        for worker in self.workers:
            worker.sandbox.limit_cpu(cores, PERIOD_US)

    def release(self) -> None:
        """Apply the quotas and start the training of all workers."""
        self.limit(self.request.instance.cpu_cores)
        self.started_ns = time.time_ns()
        self.released_ns = time.monotonic_ns()
        self.sample()
        for worker in self.workers:
            worker.resume()

    def finish(self) -> None:
        """Let finished workers exit, kill the others, and reap all."""
        self.limit(None)
        if all(worker.end_ns is not None for worker in self.workers):
            for worker in self.workers:
                worker.resume()
        else:
            for worker in self.workers:
                worker.sandbox.kill()
        for worker in self.workers:
            worker.line.settimeout(_REAP_S)
            while worker.exit_code is None:
                worker.read_messages()
            worker.line.close()


@contextmanager
def _machines(bench: Bench, request: RunRequest) -> Iterator[list[Sandbox]]:
    """Create the run's sandboxes; removed at the end."""
    made: list[Sandbox] = []
    try:
        for number in range(request.workers):
            name = f"worker-{number}" if number else "master"
            kind = request.instance
            made.append(bench.sandboxes.create(name, None, kind.memory_bytes, kind.network_bits_per_s))
        yield made
    finally:
        for sandbox in made:
            bench.sandboxes.remove(sandbox)


def measure(bench: Bench, request: RunRequest, training: Training) -> RunOutcome:
    """Make the run. Failures of it are its outcome.

    Raises:
        SandboxUnavailableError: sandboxes cannot be created.
        AbandonedError: the client has disconnected; its workers have been killed.
    """
    began, load_average = time.monotonic(), os.getloadavg()[0]
    with _machines(bench, request) as sandboxes:
        run = _start(bench, request, training, sandboxes)
        try:
            state, duration_s, reason = _train(run)
        finally:
            run.read_usage()
            run.finish()
        state, duration_s, reason = _final_state(run, sandboxes, (state, duration_s, reason))
    return RunOutcome(
        state,
        duration_s,
        run.started_ns,
        load_average,
        time.monotonic() - began,
        reason,
        tuple(worker.exit_code or 0 for worker in run.workers),
        run.memory_bytes,
        run.cpu_s,
        run.workers[0].loss,
        _series(run),
    )


def _start(bench: Bench, request: RunRequest, training: Training, sandboxes: list[Sandbox]) -> _Run:
    interval_s = request.interval_s or request.timeout_s
    recordings = [Recording(sandbox.name, interval_s) for sandbox in sandboxes]
    started_ns = time.time_ns()
    workers: list[Worker] = []
    for rank, sandbox in enumerate(sandboxes):
        place = Place(rank, request.workers, sandboxes[0].address, request.instance.threads, DEVICE)
        workers.append(start_worker(sandbox, training, place))
    return _Run(bench, request, workers, recordings, started_ns)


def _train(run: _Run) -> tuple[JobState, float | None, str]:
    """State, duration and reason by the workers' messages alone."""
    if not run.wait(lambda worker: worker.ready, time.monotonic_ns() + round(SETUP_TIMEOUT_S * 1e9)):
        return JobState.FAILED, None, f"workers were not ready: {_why(run)}"
    run.release()
    if run.wait(lambda worker: worker.end_ns is not None, run.released_ns + round(run.request.timeout_s * 1e9)):
        end_ns = max(worker.end_ns or 0 for worker in run.workers)
        return JobState.SUCCEEDED, (end_ns - run.released_ns) / 1e9, ""
    if all(worker.exit_code is None for worker in run.workers):
        return JobState.TIMED_OUT, run.request.timeout_s, f"stopped after {run.request.timeout_s:g} s"
    return JobState.FAILED, None, _why(run)


def _why(run: _Run) -> str:
    dead = [worker for worker in run.workers if worker.exit_code is not None]
    if not dead:
        return f"no output for {SETUP_TIMEOUT_S:g} s"
    first = next((worker for worker in dead if worker.error), dead[0])
    return f"{first.sandbox.name} ended with {first.exit_code}{': ' if first.error else ''}{first.error}"


def _final_state(
    run: _Run, sandboxes: list[Sandbox], seen: tuple[JobState, float | None, str]
) -> tuple[JobState, float | None, str]:
    """Out of memory by the kernel's counters: if one worker is killed, the others only report network errors."""
    samples = [sandbox.sample() for sandbox in sandboxes]
    killed = [sandbox.name for sandbox, sample in zip(sandboxes, samples, strict=True) if sample and sample.oom_kills]
    if killed:
        limit_mb = run.request.instance.memory_mb
        return JobState.OUT_OF_MEMORY, None, f"out of memory at {limit_mb} MB: {', '.join(killed)}"
    return seen


def _series(run: _Run) -> tuple[WorkerSeries, ...]:
    return series_of(run.recordings) if run.request.interval_s is not None else ()

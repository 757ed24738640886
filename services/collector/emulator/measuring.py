"""One run: cells, workers, release, end. Blocks; called by the warm parent, whose children the workers are.

Workers set up (processes, connections, model) without a limit of processor time, so that a run costs seconds and not
minutes; memory and network are limited from the start. The quota holds from the moment of release, and what is
measured is training alone: from the release of all workers to the end of the last one's last step.
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
from services._host.sandbox.network import DEVICE
from services._host.sandbox.sandbox import Cell, Cells
from services.collector.emulator.orders import SETUP_TIMEOUT_S, Order, Outcome
from services.collector.emulator.training import Place
from services.collector.emulator.worker import Training, Worker, start_worker
from services.collector.profiler.series import Counters, Recording, series_of

PERIOD_US: Final = 20_000
"""Of the quotas. A fifth of the kernel's default: a worker that waits for another one's next period waits less, as it
would for a slower processor."""
_REAP_S: Final = 10.0


class AbandonedError(Exception):
    """Whoever asked for the run has gone."""


@dataclass(slots=True)
class Bench:
    """Where runs are measured."""

    cells: Cells
    watched: int | None = None
    """A descriptor whose end says that nobody waits for the outcome any more."""


@dataclass(slots=True)
class _Run:
    """One run on its way."""

    bench: Bench
    order: Order
    workers: list[Worker]
    recordings: list[Recording]
    started_ns: int
    released_ns: int = 0
    memory_bytes: int = 0
    cpu_s: float = 0.0

    def wait(self, until: Callable[[Worker], bool], deadline_ns: int) -> bool:
        """Until it holds for all workers (True); until the deadline, or until one has died (False).

        Raises:
            AbandonedError: nobody waits for it.
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
                    key.data.listen()
                if self._until_next_sample_s() <= 0:
                    self.sample()
        return True

    def _until_next_sample_s(self) -> float:
        if not self.released_ns or self.order.interval_s is None:
            return 3600.0
        taken = len(self.recordings[0].rows) + 1
        return max(0.0, taken * self.order.interval_s - (time.monotonic_ns() - self.released_ns) / 1e9)

    def sample(self) -> None:
        """Take one of each worker now."""
        for worker, recording in zip(self.workers, self.recordings, strict=True):
            used = worker.cell.sample()
            if used is not None:
                elapsed_s = (time.monotonic_ns() - self.released_ns) / 1e9
                recording.add(Counters(elapsed_s, used.cpu_s, used.memory_bytes, used.rx_bytes, used.tx_bytes))

    def look(self) -> None:
        """Remember what the largest worker holds, and what all have used."""
        samples = [sample for sample in (worker.cell.sample() for worker in self.workers) if sample]
        self.memory_bytes = max((sample.memory_bytes for sample in samples), default=0)
        self.cpu_s = sum(sample.cpu_s for sample in samples)

    def limit(self, cores: float | None) -> None:
        """Give each worker's machine its quota; None: none."""
        for worker in self.workers:
            worker.cell.limit_cpu(cores, PERIOD_US)

    def release(self) -> None:
        """Start the clock."""
        self.limit(self.order.instance.cpu_cores)
        self.started_ns = time.time_ns()
        self.released_ns = time.monotonic_ns()
        self.sample()
        for worker in self.workers:
            worker.tell()

    def finish(self) -> None:
        """Let those that have ended go, kill the others, and reap all."""
        self.limit(None)
        if all(worker.end_ns is not None for worker in self.workers):
            for worker in self.workers:
                worker.tell()
        else:
            for worker in self.workers:
                worker.cell.kill()
        for worker in self.workers:
            worker.line.settimeout(_REAP_S)
            while worker.exit_code is None:
                worker.listen()
            worker.line.close()


@contextmanager
def _machines(bench: Bench, order: Order) -> Iterator[list[Cell]]:
    """The run's cells; none is left at the end."""
    made: list[Cell] = []
    try:
        for number in range(order.workers):
            name = f"worker-{number}" if number else "master"
            kind = order.instance
            made.append(bench.cells.create(name, None, kind.memory_bytes, kind.network_bits_per_s))
        yield made
    finally:
        for cell in made:
            bench.cells.remove(cell)


def measure(bench: Bench, order: Order, training: Training) -> Outcome:
    """Make the run. What goes wrong in it is its outcome.

    Raises:
        CellUnavailableError: cells cannot be made.
        AbandonedError: nobody waits for it any more; its workers are dead.
    """
    began, load_average = time.monotonic(), os.getloadavg()[0]
    with _machines(bench, order) as cells:
        run = _start(bench, order, training, cells)
        try:
            state, duration_s, reason = _train(run)
        finally:
            run.look()
            run.finish()
        state, duration_s, reason = _judge(run, cells, (state, duration_s, reason))
    return Outcome(
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


def _start(bench: Bench, order: Order, training: Training, cells: list[Cell]) -> _Run:
    interval_s = order.interval_s or order.timeout_s
    recordings = [Recording(cell.name, interval_s) for cell in cells]
    started_ns = time.time_ns()
    workers: list[Worker] = []
    for rank, cell in enumerate(cells):
        place = Place(rank, order.workers, cells[0].address, order.instance.threads, DEVICE)
        workers.append(start_worker(cell, training, place))
    return _Run(bench, order, workers, recordings, started_ns)


def _train(run: _Run) -> tuple[JobState, float | None, str]:
    """How it looks from the workers' words alone."""
    if not run.wait(lambda worker: worker.ready, time.monotonic_ns() + round(SETUP_TIMEOUT_S * 1e9)):
        return JobState.FAILED, None, f"workers were not ready: {_why(run)}"
    run.release()
    if run.wait(lambda worker: worker.end_ns is not None, run.released_ns + round(run.order.timeout_s * 1e9)):
        end_ns = max(worker.end_ns or 0 for worker in run.workers)
        return JobState.SUCCEEDED, (end_ns - run.released_ns) / 1e9, ""
    if all(worker.exit_code is None for worker in run.workers):
        return JobState.TIMED_OUT, run.order.timeout_s, f"stopped after {run.order.timeout_s:g} s"
    return JobState.FAILED, None, _why(run)


def _why(run: _Run) -> str:
    dead = [worker for worker in run.workers if worker.exit_code is not None]
    if not dead:
        return f"no output for {SETUP_TIMEOUT_S:g} s"
    first = next((worker for worker in dead if worker.error), dead[0])
    return f"{first.cell.name} ended with {first.exit_code}{': ' if first.error else ''}{first.error}"


def _judge(
    run: _Run, cells: list[Cell], seen: tuple[JobState, float | None, str]
) -> tuple[JobState, float | None, str]:
    """The kernel's counters know better than the workers: one is killed, and the others complain about the network."""
    samples = [cell.sample() for cell in cells]
    killed = [cell.name for cell, sample in zip(cells, samples, strict=True) if sample and sample.oom_kills]
    if killed:
        limit_mb = run.order.instance.memory_mb
        return JobState.OUT_OF_MEMORY, None, f"out of memory at {limit_mb} MB: {', '.join(killed)}"
    return seen


def _series(run: _Run) -> tuple[WorkerSeries, ...]:
    return series_of(run.recordings) if run.order.interval_s is not None else ()

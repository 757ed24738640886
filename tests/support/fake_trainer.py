"""A fork server that measures nothing: durations follow from the order, so that a record's origin can be told."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from schemas.jobs import JobState, TaskFeatures
from schemas.runs import SERIES, WorkerSeries
from services.collector.emulator.run_request import RunOutcome, RunRequest

SAMPLES = 12


def expected_duration_s(order: RunRequest) -> float:
    """Work by the cores of all workers, and something for every step."""
    return 2.0 / (order.instance.cpu_cores * order.workers) + 10.0 / order.batch_size


def series(workers: int) -> tuple[WorkerSeries, ...]:
    """Flat ones."""
    column = np.ones(SAMPLES).tobytes()
    names = ["master", *(f"worker-{n}" for n in range(1, workers))]
    columns = dict.fromkeys(SERIES, column)
    return tuple(WorkerSeries(worker=name, **columns) for name in names)


@dataclass
class FakeTrainer:
    """Answers at once; can be told to die at a run."""

    dies_at: int | None = None
    fails: int = 0
    """How many runs fail, from the first on."""
    orders: list[RunRequest] = field(default_factory=list)
    described: list[str] = field(default_factory=list)

    def features(self, task: str) -> TaskFeatures:
        self.described.append(task)
        return TaskFeatures(task=task, parameter_count=1000, epochs=1)

    def run(self, order: RunRequest) -> RunOutcome:
        if len(self.orders) == self.dies_at:
            raise KeyboardInterrupt
        self.orders.append(order)
        if len(self.orders) <= self.fails:
            return RunOutcome(JobState.FAILED, None, 1, 0.5, 1.0, "connection closed", (1,))
        duration_s = expected_duration_s(order)
        state = JobState.SUCCEEDED
        if order.instance.memory_mb < 100:
            return RunOutcome(JobState.OUT_OF_MEMORY, None, 1, 0.5, 1.0, "out of memory at 64 MB: master", (-9,))
        if duration_s > order.timeout_s:
            state, duration_s = JobState.TIMED_OUT, order.timeout_s
        taken = series(order.workers) if order.interval_s else ()
        return RunOutcome(state, duration_s, 1, 0.5, duration_s + 1.0, "", (0,) * order.workers, 1 << 20, series=taken)

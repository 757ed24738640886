"""Jobs that follow a law, so that a test knows what a model should find."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from functools import cache

import numpy as np

from schemas.jobs import Configuration, JobRecord, JobState, Price, TaskFeatures
from schemas.runs import RunEnd, RunProfile, WorkerSeries
from services.advisor.core.table import Table, build

MACHINES = {"small": (1.0, 0.05), "medium": (2.0, 0.09), "large": (4.0, 0.20), "huge": (8.0, 0.45)}
"""vCPU and $/h of one machine."""
WORKERS = (1, 2, 4, 8)
AS_OF = date(2026, 11, 1)


def law_s(work: float, cores: float, workers: int) -> float:
    """Seconds: a start, the work over all cores, and a talk that grows with the workers."""
    return 5.0 + work / cores + 0.01 * work * (workers - 1)


def configuration(machine: str, workers: int, batch_size: int = 32) -> Configuration:
    return Configuration(
        instance_type=machine, provider="made", workers=workers, batch_size=batch_size, vcpu=MACHINES[machine][0]
    )


def price(machine: str) -> Price:
    return Price(usd_per_hour=MACHINES[machine][1], as_of=AS_OF, source="made")


def record(name: str, machine: str, workers: int, **changes: object) -> JobRecord:
    """A job of a task whose name's length sets its work, such as ``bbb``: 300 core seconds."""
    vcpu = MACHINES[machine][0]
    fields: dict[str, object] = {
        "job": f"{name}-{machine}-{workers}",
        "dataset": "made",
        "task": TaskFeatures(task=name, parameter_count=1000 * len(name), epochs=2, samples_per_epoch=500),
        "configuration": configuration(machine, workers),
        "state": JobState.SUCCEEDED,
        "duration_s": law_s(100.0 * len(name), vcpu * workers, workers),
        "price": price(machine),
        "local_run": f"run-{name}",
    }
    return JobRecord.model_validate(fields | changes)


def profile(task: str, machine: str = "small", workers: int = 1, *, series: bool = True) -> RunProfile:
    """The local run of a task; by default on a configuration of the grid, which makes that row the reference."""
    level = np.linspace(0.5, 1.0, 30) * len(task)
    columns = {
        "cpu_cores": level.tolist(),
        "memory_bytes": (level * 1e8).tolist(),
        "network_in_bytes_per_s": (level * 1e3).tolist(),
        "network_out_bytes_per_s": (level * 2e3).tolist(),
    }
    names = ["master", *(f"worker-{number}" for number in range(1, workers))]
    return RunProfile(
        run=f"run-{task}",
        task=TaskFeatures(task=task, epochs=2, samples_per_epoch=500),
        configuration=configuration(machine, workers),
        duration_s=law_s(100.0 * len(task), MACHINES[machine][0] * workers, workers),
        end=RunEnd.FINISHED,
        workers=tuple(WorkerSeries(worker=name, **columns) for name in names) if series else (),  # type: ignore[arg-type]
    )


def grid(tasks: Sequence[str]) -> list[JobRecord]:
    """Every task on every machine and number of workers."""
    return [record(task, machine, workers) for task in tasks for machine in MACHINES for workers in WORKERS]


def made_table(tasks: Sequence[str] = ("a", "bb", "ccc", "dddd")) -> Table:
    """The grid as a table, with a local run of every task."""
    return _made_table(tuple(tasks))


@cache
def _made_table(tasks: tuple[str, ...]) -> Table:
    return build(grid(tasks), {f"run-{task}": profile(task) for task in tasks})[0]

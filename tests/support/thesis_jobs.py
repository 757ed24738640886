"""Made-up jobs of the shape of the thesis' set: seven tasks, seven machine types, some 90 jobs each, with series."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date

import numpy as np

from schemas.jobs import Configuration, JobRecord, JobState, Price, TaskFeatures
from schemas.runs import RunEnd, RunProfile, WorkerSeries
from services.advisor.core.table import Table, build

MACHINES: Mapping[str, tuple[float, float, float]] = {
    "n1-standard-4": (4, 15, 0.2185),
    "n1-standard-8": (8, 30, 0.437),
    "e2-standard-16": (16, 64, 0.6164),
    "n1-highcpu-16": (16, 14.4, 0.652),
    "n1-highcpu-32": (32, 28.8, 1.304),
    "e2-highmem-8": (8, 64, 0.4157),
    "e2-highmem-16": (16, 128, 0.8314),
}
"""vCPU, GB and (made-up) dollars per hour by type."""
WORKERS = (1, 2, 3, 4, 6, 8)
BATCHES = (8, 16, 32, 64, 128, 256)
TASKS = ("ag-news", "imdb-dnn", "imdb-bert", "udpos", "yesno", "eurosat-cnn", "eurosat-vgg")
_DAY = date(2026, 11, 20)


@dataclass(frozen=True, slots=True)
class Nature:
    """What makes a task's time; the models see only what follows from it."""

    about: TaskFeatures
    cpu_hours: float
    parallel: float
    """Part of the work that more cores of a machine help with."""
    exchange_s: float
    """Per step and doubling of the workers."""


def nature(task: str) -> Nature:
    """A task's nature is drawn from its name."""
    random = np.random.default_rng(sum(ord(one) * 31**at for at, one in enumerate(task)) % 2**32)
    layers: list[str] = []
    for kind in random.choice(["Conv2d", "Linear", "LSTM", "LayerNorm", "Embedding"], size=int(random.integers(3, 9))):
        layers += [str(kind), "ReLU"]
    parameters = int(10 ** random.uniform(4.5, 8.0))
    about = TaskFeatures(
        task=task,
        parameter_count=parameters,
        layers=(*layers, "Linear"),
        optimizer=str(random.choice(["adam", "sgd"])),
        input_elements=int(10 ** random.uniform(2, 5)),
        output_elements=int(random.integers(2, 20)),
        learning_rate=float(random.choice([1e-4, 1e-3, 1e-2])),
        epochs=int(random.integers(3, 30)),
        samples_per_epoch=int(10 ** random.uniform(4, 5)),
    )
    return Nature(about, 10 ** random.uniform(0.5, 1.9), random.uniform(0.6, 0.97), 1e-3 + 2e-9 * parameters)


def hours(of: Nature, where: Configuration) -> float:
    """Work by Amdahl's law within a machine, divided among machines, plus the exchange of gradients per step."""
    speed = 1.0 / ((1.0 - of.parallel) + of.parallel / where.vcpu)
    steps = of.about.epochs * of.about.samples_per_epoch / (where.batch_size * where.workers)
    small = 1.0 + 8.0 / where.batch_size
    exchange = steps * of.exchange_s * math.log2(where.workers) / 3600.0
    return 0.05 + of.cpu_hours * small / (speed * where.workers) + exchange


def jobs(tasks: Sequence[str] = TASKS, *, each: int = 90, noise: float = 0.05, seed: int = 0) -> list[JobRecord]:
    """A random part of every task's 252 configurations."""
    random = np.random.default_rng(seed)
    grid = [(name, workers, batch) for name in MACHINES for workers in WORKERS for batch in BATCHES]
    found = []
    for task in tasks:
        of = nature(task)
        for at in sorted(random.permutation(len(grid))[:each].tolist()):
            name, workers, batch = grid[at]
            vcpu, memory_gb, usd = MACHINES[name]
            where = Configuration(
                instance_type=name,
                provider="gcp",
                workers=workers,
                batch_size=batch,
                vcpu=vcpu,
                memory_gb=memory_gb,
                disk_gb=100,
            )
            found.append(
                JobRecord(
                    job=f"{task}-{at}",
                    dataset="made-up",
                    task=of.about,
                    configuration=where,
                    state=JobState.SUCCEEDED,
                    duration_s=3600.0 * hours(of, where) * math.exp(noise * random.standard_normal()),
                    price=Price(usd_per_hour=usd, as_of=_DAY, source="made-up"),
                    local_run=f"run-{task}",
                )
            )
    return found


def local_run(task: str, *, samples: int = 600) -> RunProfile:
    """Ten minutes on one node; the series tell of the task's nature: cores used, parameters held, gradients sent."""
    of = nature(task)
    random = np.random.default_rng(of.about.parameter_count)
    times = np.arange(samples)
    cores = 5.0 * of.parallel * (1.0 + 0.1 * np.sin(times / 25.0))
    memory = 4e8 + 16.0 * of.about.parameter_count * np.minimum(1.0, times / 60.0)
    sent = 4.0 * of.about.parameter_count / (of.exchange_s * 50.0 + 0.2 * of.cpu_hours)
    workers = tuple(
        WorkerSeries(
            worker=name,
            cpu_cores=np.abs(cores + 0.2 * random.standard_normal(samples)).tolist(),
            memory_bytes=memory.tolist(),
            network_in_bytes_per_s=np.abs(sent * factor * (1 + 0.1 * random.standard_normal(samples))).tolist(),
            network_out_bytes_per_s=np.abs(sent * (1 + 0.1 * random.standard_normal(samples))).tolist(),
        )
        for name, factor in (("master", 2.0), ("worker-1", 1.0), ("worker-2", 1.0))
    )
    where = Configuration(instance_type="local", provider="local", workers=3, batch_size=32, vcpu=5.0, memory_gb=64.0)
    return RunProfile(
        run=f"run-{task}",
        task=of.about,
        configuration=where,
        duration_s=float(samples),
        end=RunEnd.TIMED_OUT,
        workers=workers,
    )


def table_of(tasks: Sequence[str] = TASKS, *, each: int = 90, with_series: bool = True, seed: int = 0) -> Table:
    """The jobs as a table."""
    runs = {f"run-{task}": local_run(task) for task in tasks} if with_series else {}
    return build(jobs(tasks, each=each, seed=seed), runs)[0]

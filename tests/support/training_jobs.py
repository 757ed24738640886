"""Made-up training jobs whose times follow a simple law, so that a model can learn them: for tests of the advisor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date

import numpy as np

from schemas.jobs import Configuration, JobRecord, JobState, Price, TaskFeatures
from schemas.runs import RunEnd, RunProfile, WorkerSeries

MACHINES = {"small": (1.0, 2.0, 0.05), "medium": (2.0, 4.0, 0.10), "large": (4.0, 8.0, 0.20), "fat": (2.0, 16.0, 0.13)}
"""vCPU, GB and dollars per hour by instance type."""
WORKERS = (1, 2, 4)
BATCHES = (16, 64)
DAY = date(2026, 11, 20)


def features(task: str) -> TaskFeatures:
    """The features of a task; tasks differ by the digits in their names."""
    size = 1 + sum(map(ord, task)) % 7
    return TaskFeatures(
        task=task,
        parameter_count=100_000 * size,
        layers=("Conv2d", "ReLU") * size + ("Linear",),
        input_elements=784 * size,
        output_elements=10,
        optimizer="adam",
        learning_rate=1e-3,
        epochs=2,
        samples_per_epoch=10_000,
        forward_flops=1e6 * size,
    )


def seconds(task: TaskFeatures, where: Configuration) -> float:
    """Work divided among cores, plus what grows with workers, plus a start-up."""
    work = task.forward_flops * task.samples_per_epoch * task.epochs / 2e8
    steps = task.samples_per_epoch * task.epochs / (where.batch_size * where.workers)
    return 5.0 + work / (where.vcpu * where.workers) + steps * 2e-3 * math.log2(1 + where.workers)


def configuration(instance_type: str, workers: int, batch_size: int) -> Configuration:
    """One of the made-up machines."""
    vcpu, memory_gb, _ = MACHINES[instance_type]
    return Configuration(
        instance_type=instance_type,
        provider="emulated",
        workers=workers,
        batch_size=batch_size,
        vcpu=vcpu,
        memory_gb=memory_gb,
        network_gbps=1.0,
    )


def price(instance_type: str) -> Price:
    """Of one machine; spot for a third."""
    usd = MACHINES[instance_type][2]
    return Price(usd_per_hour=usd, spot_usd_per_hour=usd / 3, as_of=DAY, source="emulated", snapshot="made-up")


def records(tasks: Sequence[str], *, noise: float = 0.03, seed: int = 0) -> list[JobRecord]:
    """Every task on every configuration, 24 jobs each; what needs more than a machine's memory has failed."""
    random = np.random.default_rng(seed)
    found = []
    for task in tasks:
        about = features(task)
        for name in MACHINES:
            for workers in WORKERS:
                for batch in BATCHES:
                    where = configuration(name, workers, batch)
                    time_s = seconds(about, where) * math.exp(noise * random.standard_normal())
                    fits = name != "small" or batch < 64
                    found.append(
                        JobRecord(
                            job=f"{task}-{name}-{workers}-{batch}",
                            dataset="made-up",
                            task=about,
                            configuration=where,
                            state=JobState.SUCCEEDED if fits else JobState.OUT_OF_MEMORY,
                            duration_s=time_s if fits else None,
                            price=price(name),
                            local_run=f"run-{task}",
                        )
                    )
    return found


def profile(task: str, *, samples: int = 30, run: str = "") -> RunProfile:
    """A task's local run on three half cores."""
    about = features(task)
    load = np.full(samples, 0.4) + 0.05 * np.sin(np.arange(samples))
    series = tuple(
        WorkerSeries(
            worker=name,
            cpu_cores=load.tolist(),
            memory_bytes=(2e8 * np.ones(samples)).tolist(),
            network_in_bytes_per_s=(1e5 * about.parameter_count / 1e5 * np.ones(samples)).tolist(),
            network_out_bytes_per_s=(1e5 * np.ones(samples)).tolist(),
        )
        for name in ("master", "worker-1", "worker-2")
    )
    where = Configuration(instance_type="local", provider="local", workers=3, batch_size=32, vcpu=0.5, memory_gb=1.0)
    return RunProfile(
        run=run or f"run-{task}",
        task=about,
        configuration=where,
        duration_s=float(samples),
        end=RunEnd.FINISHED,
        workers=series,
    )

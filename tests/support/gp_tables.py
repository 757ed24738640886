"""Jobs of a small world whose law is known, for tests of our predictor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date

import numpy as np

from schemas.jobs import Configuration, JobRecord, JobState, Price, TaskFeatures
from schemas.runs import RunEnd, RunProfile
from services.advisor.core.questions import MeasuredTasks

MACHINES = {
    "small": (1.0, 4.0, 0.05),
    "medium": (2.0, 8.0, 0.10),
    "large": (4.0, 16.0, 0.24),
    "huge": (8.0, 32.0, 0.60),
}
"""vCPU, GB and $/h by machine."""

LOCAL = Configuration(instance_type="here", provider="local", workers=1, batch_size=32, vcpu=2.0, memory_gb=8.0)


@dataclass(frozen=True)
class World:
    """Tasks differ in their work and in how much of it is talking; runs are noisy by a factor."""

    tasks: int = 6
    seed: int = 0
    noise: float = 0.03
    workers: tuple[int, ...] = (1, 2, 4, 8)
    batches: tuple[int, ...] = (16, 64)
    billed: float = 1.0
    """Billed over price x machines x time."""
    memory_limit: bool = False
    """Tasks run out of memory on machines that are too small for their batch."""
    local_runs: bool = True
    names: tuple[str, ...] = field(default=("alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta"))

    def task(self, at: int) -> TaskFeatures:
        """The task of a number: the parameters say how much it talks, the operations how much it computes."""
        parameters = int(1e5 * 4.0 ** (at % 4))
        flops = 2e6 * 3.0 ** (at % 3)
        return TaskFeatures(
            task=self.names[at],
            parameter_count=parameters,
            layers=("Linear",) * (1 + at),
            input_elements=1000,
            output_elements=10,
            optimizer="adam",
            learning_rate=1e-3,
            epochs=2,
            samples_per_epoch=20_000,
            forward_flops=flops,
        )

    def seconds(self, task: TaskFeatures, configuration: Configuration) -> float:
        """The law: Amdahl's, with a ring's talking and a start."""
        samples = task.epochs * task.samples_per_epoch
        compute = 3.0 * task.forward_flops * samples / (1e10 * configuration.vcpu * configuration.workers)
        steps = samples / (configuration.batch_size * configuration.workers)
        ring = 2.0 * (configuration.workers - 1) / configuration.workers
        return 2.0 + compute + steps * (0.002 + ring * 4.0 * task.parameter_count / 1e9)

    def configurations(self) -> list[Configuration]:
        """All machines, numbers of workers and batches."""
        return [
            Configuration(
                instance_type=name, provider="emulated", workers=workers, batch_size=batch, vcpu=vcpu, memory_gb=memory
            )
            for name, (vcpu, memory, _) in MACHINES.items()
            for workers in self.workers
            for batch in self.batches
        ]

    def records(self) -> list[JobRecord]:
        """One run per task and configuration."""
        random = np.random.default_rng(self.seed)
        return [
            self._record(at, number, configuration, float(np.exp(self.noise * random.standard_normal())))
            for at in range(self.tasks)
            for number, configuration in enumerate(self.configurations())
        ]

    def profiles(self) -> dict[str, RunProfile]:
        """Each task's local run."""
        tasks = [self.task(at) for at in range(self.tasks)] if self.local_runs else []
        return {
            f"local-{task.task}": RunProfile(
                run=f"local-{task.task}",
                task=task,
                configuration=LOCAL,
                duration_s=self.seconds(task, LOCAL),
                end=RunEnd.FINISHED,
                workers=(),
            )
            for task in tasks
        }

    def measured(self) -> MeasuredTasks:
        """What an advisor knows of the local runs, which its records name."""
        return MeasuredTasks(runs=self.profiles(), reference_runs=frozenset(self.profiles()))

    def _record(self, at: int, number: int, configuration: Configuration, factor: float) -> JobRecord:
        task = self.task(at)
        too_small = self.memory_limit and configuration.memory_gb < 2.0 * (1 + at % 3) * configuration.batch_size / 16
        seconds = None if too_small else self.seconds(task, configuration) * factor
        usd = MACHINES[configuration.instance_type][2]
        hours = (seconds or 0.0) * configuration.workers / 3600.0
        return JobRecord(
            job=f"{task.task}-{number}",
            dataset="test",
            task=task,
            configuration=configuration,
            state=JobState.OUT_OF_MEMORY if too_small else JobState.SUCCEEDED,
            duration_s=seconds,
            cost_usd=None if too_small else usd * hours * self.billed,
            price=Price(usd_per_hour=usd, as_of=date(2026, 1, 1), source="test"),
            local_run=f"local-{task.task}" if self.local_runs else "",
        )


def of_task(records: Sequence[JobRecord], task: str) -> list[JobRecord]:
    """The records of one task."""
    return [one for one in records if one.task.task == task]


def in_kind(record: JobRecord, name: str) -> JobRecord:
    """The record with its task's network named, and not described."""
    task = TaskFeatures(
        task=record.task.task,
        epochs=record.task.epochs,
        samples_per_epoch=record.task.samples_per_epoch,
        attributes={"network": name},
    )
    return record.model_copy(update={"task": task})

"""Feature encoder: one column per known quantity, category and layer type, and per summary of a local run's series.

Series are resampled to a fixed grid (thesis 4.3.1, Table 4.1).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from schemas.accelerators import canonical_name, find_accelerator
from schemas.jobs import Attributes, Configuration, Price, TaskFeatures
from schemas.runs import SERIES as SERIES_KINDS
from schemas.runs import RunProfile, WorkerSeries
from services.advisor.core.arrays import FloatArray
from services.advisor.core.roofline import peak_flops_per_s, precision_of
from services.advisor.core.whole_job_duration import whole_job_duration, work_ratio

TASK: Final = "task."
CONFIGURATION: Final = "config."
LOCAL: Final = "local."
SERIES: Final = "series."
CATEGORY_MARK: Final = "="
LAYERS: Final = "task.layers."
ELSEWHERE: Final = "~"
"""The `configuration_key` of a configuration outside the training data."""
_ZERO_IF_ABSENT: Final = (CATEGORY_MARK, LAYERS)
SERIES_STEPS: Final = 60
"""Points in time that each series is averaged to, whatever the length of the run."""

SERIES_ROLES: Final = ("master", "workers")
"""Whose series: the master's, and the mean of all others (zeros where there are none)."""

SERIES_CHANNELS: Final = tuple(f"{role}.{kind}" for role in SERIES_ROLES for kind in SERIES_KINDS)
"""Rows of a task's series, in order: ``master.cpu_cores`` ... ``workers.network_out_bytes_per_s``."""


def resampled(values: FloatArray, steps: int = SERIES_STEPS) -> FloatArray:
    """Return the mean over `steps` intervals of equal length, shape ``(steps,)``; zeros of an empty series.

    Means are exact integrals of the step function that the samples describe, so totals are kept at every length.
    """
    if values.size == 0:
        return np.zeros(steps)
    edges = np.linspace(0.0, values.size, steps + 1)
    integral = np.concatenate(([0.0], np.cumsum(values)))
    at_edges = np.interp(edges, np.arange(values.size + 1), integral)
    return np.asarray(np.diff(at_edges) * (steps / values.size))


def _role(workers: tuple[WorkerSeries, ...]) -> FloatArray:
    """Mean over workers, shape ``(4 kinds, steps)``."""
    if not workers:
        return np.zeros((len(SERIES_KINDS), SERIES_STEPS))
    return np.asarray(
        np.mean([[resampled(worker.column(kind)) for kind in SERIES_KINDS] for worker in workers], axis=0),
    )


def series_of(profile: RunProfile) -> FloatArray | None:
    """Return a profile's series, shape ``(8, SERIES_STEPS)``, rows as `SERIES_CHANNELS`; None if it has none."""
    if not any(worker.samples for worker in profile.workers):
        return None
    return np.concatenate((_role(profile.workers[:1]), _role(profile.workers[1:])))


def series_features(series: FloatArray) -> Mapping[str, float]:
    """Return summary statistics by feature name, such as ``series.master.cpu_cores.mean``.

    ``late`` is the mean of the last third: later usage predicts better than the start (thesis 4.5.2.2).
    """
    summaries = {
        "mean": series.mean(axis=1),
        "std": series.std(axis=1),
        "p90": np.quantile(series, 0.9, axis=1),
        "late": series[:, -SERIES_STEPS // 3 :].mean(axis=1),
    }
    return {
        f"series.{name}.{statistic}": float(values[row])
        for statistic, values in summaries.items()
        for row, name in enumerate(SERIES_CHANNELS)
    }


@dataclass(frozen=True, slots=True)
class JobFeatures:
    """Features of a job that are known before it runs."""

    task: TaskFeatures
    configuration: Configuration
    price: Price | None = None
    """Of one machine."""
    profile: RunProfile | None = None
    """The task's local run."""


def configuration_key(configuration: Configuration) -> str:
    """Return a configuration's identity, independent of the task: machine, accelerators, workers, batch, attributes."""
    attributes = "".join(f" {name}={value}" for name, value in sorted(configuration.attributes.items()))
    machine = f"{configuration.provider}/{configuration.instance_type}"
    if configuration.accelerator:
        machine += f" {max(configuration.accelerators, 1)}x{canonical_name(configuration.accelerator)}"
    return f"{machine} x{configuration.workers} b{configuration.batch_size}{attributes}"


def _attributes(prefix: str, attributes: Attributes) -> dict[str, float]:
    return {
        f"{prefix}attr.{name}{CATEGORY_MARK}{value}" if isinstance(value, str) else f"{prefix}attr.{name}": (
            1.0 if isinstance(value, str) else float(value)
        )
        for name, value in attributes.items()
    }


_TASK_NUMBERS: Final = (
    "parameter_count",
    "input_elements",
    "output_elements",
    "learning_rate",
    "epochs",
    "samples_per_epoch",
    "steps",
    "forward_flops",
    "step_flops",
    "step_bytes",
    "step_weight_bytes",
)
_CONFIGURATION_NUMBERS: Final = (
    "workers",
    "batch_size",
    "vcpu",
    "memory_gb",
    "disk_gb",
    "network_gbps",
    "accelerators",
    "accelerator_memory_gb",
)


def _known(prefix: str, source: object, names: Iterable[str]) -> dict[str, float]:
    """Numbers that are known: a zero is not (see `TaskFeatures`)."""
    return {f"{prefix}{name}": float(getattr(source, name)) for name in names if getattr(source, name)}


def _task_columns(task: TaskFeatures) -> dict[str, float]:
    columns = _known(TASK, task, _TASK_NUMBERS)
    if task.parameter_count:
        columns["task.frozen_parameter_count"] = float(task.frozen_parameter_count)
    if task.layers:
        columns["task.layer_count"] = float(len(task.layers))
    for layer in task.layers:
        columns[LAYERS + layer] = columns.get(LAYERS + layer, 0.0) + 1.0
    if task.optimizer:
        columns[f"task.optimizer{CATEGORY_MARK}{task.optimizer}"] = 1.0
    return columns | _attributes(TASK, task.attributes)


def machine_column(configuration: Configuration) -> str:
    """Return the name of the category of a configuration's machine: a column of every model that has learned of it."""
    return f"config.instance_type{CATEGORY_MARK}{configuration.instance_type}"


def _configuration_columns(configuration: Configuration, price: Price | None) -> dict[str, float]:
    columns = _known(CONFIGURATION, configuration, _CONFIGURATION_NUMBERS)
    columns[machine_column(configuration)] = 1.0
    if configuration.provider:
        columns[f"config.provider{CATEGORY_MARK}{configuration.provider}"] = 1.0
    if configuration.accelerator:
        columns[f"config.accelerator{CATEGORY_MARK}{canonical_name(configuration.accelerator)}"] = 1.0
    if (device := find_accelerator(configuration.accelerator)) is not None:
        columns["config.accelerator_flops_per_s"] = peak_flops_per_s(device, precision_of(configuration))
        columns["config.accelerator_bytes_per_s"] = device.memory_bytes_per_s
    if price is not None:
        columns["config.price_usd_per_hour"] = price.usd_per_hour
    return columns | _attributes(CONFIGURATION, configuration.attributes)


def _profile_columns(profile: RunProfile) -> dict[str, float]:
    columns = _known(LOCAL, profile.configuration, ("workers", "batch_size", "vcpu", "memory_gb"))
    columns["local.observed_s"] = profile.duration_s
    series = series_of(profile)
    return columns if series is None else columns | dict(series_features(series))


def _local_columns(features: JobFeatures, known: dict[int, dict[str, float]]) -> dict[str, float]:
    profile = features.profile
    if profile is None:
        return {}
    if id(profile) not in known:
        known[id(profile)] = _profile_columns(profile)
    columns = known[id(profile)] | {"local.work_ratio": work_ratio(features.task, profile)}
    time_s = whole_job_duration(features.task, profile).time_s
    return columns | {"local.time_s": time_s} if np.isfinite(time_s) else columns


def columns_of(jobs: Iterable[JobFeatures]) -> Iterator[Mapping[str, float]]:
    """Yield each job's known features by name. A name holds ``=`` where it is one category of a text.

    A local run shared by many jobs is summarised once.
    """
    known: dict[int, dict[str, float]] = {}
    for job in jobs:
        yield (
            _task_columns(job.task) | _configuration_columns(job.configuration, job.price) | _local_columns(job, known)
        )


@dataclass(frozen=True, slots=True)
class Encoder:
    """Columns of the jobs that it was fitted on. Holds names only, no statistics of values."""

    feature_names: tuple[str, ...]
    """Sorted. Prefixes: ``task.``, ``config.``, ``local.``, ``series.``."""

    @staticmethod
    def fit(jobs: Iterable[JobFeatures]) -> Encoder:
        """Return the encoder of all quantities and categories that any of `jobs` has."""
        return Encoder(tuple(sorted({name for columns in columns_of(jobs) for name in columns})))

    def encode_all(self, jobs: Sequence[JobFeatures]) -> FloatArray:
        """Return a row per job, shape ``(jobs, features)``: NaN where not known, 0 for another category."""
        absent = [_absent(name) for name in self.feature_names]
        rows = np.tile(np.array(absent, dtype=np.float64), (len(jobs), 1))
        at = {name: column for column, name in enumerate(self.feature_names)}
        for row, columns in zip(rows, columns_of(jobs), strict=True):
            for name, value in columns.items():
                if name in at:
                    row[at[name]] = value
        return rows


def _absent(name: str) -> float:
    return 0.0 if any(mark in name for mark in _ZERO_IF_ABSENT) else float("nan")

"""A local run's time series resampled to a fixed grid, and their summary statistics (thesis 4.3.1, Table 4.1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from schemas.runs import SERIES, RunProfile, WorkerSeries
from services.advisor.core.arrays import FloatArray

SERIES_STEPS: Final = 60
"""Points in time that each series is averaged to, whatever the length of the run."""

SERIES_ROLES: Final = ("master", "workers")
"""Whose series: the master's, and the mean of all others (zeros where there are none)."""

SERIES_CHANNELS: Final = tuple(f"{role}.{kind}" for role in SERIES_ROLES for kind in SERIES)
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
        return np.zeros((len(SERIES), SERIES_STEPS))
    return np.asarray(
        np.mean([[resampled(worker.column(kind)) for kind in SERIES] for worker in workers], axis=0),
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

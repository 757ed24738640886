"""Inputs of the networks: Table 4.1's features of every job, and the series of every task's local run.

The thesis does not say how numbers are scaled. Here, numbers are taken as logarithms and standardised, series are
standardised per channel; all of it is learned from the training rows alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from services.advisor.core.arrays import AnyArray, FloatArray, IntArray
from services.advisor.core.encoder import SERIES_CHANNELS, SERIES_STEPS, resampled
from services.advisor.core.table import Table
from services.advisor.models.baselines.feature_preprocessing import Preprocessing

TABLE_4_1: Final = (
    "task.parameter_count",
    "task.frozen_parameter_count",
    "task.learning_rate",
    "task.epochs",
    "task.layer_count",
    "task.layers.",
    "task.optimizer=",
    "task.input_elements",
    "task.output_elements",
    "task.attr.",
    "config.batch_size",
    "config.workers",
    "config.instance_type=",
    "config.vcpu",
    "config.memory_gb",
    "config.disk_gb",
    "config.attr.",
)
"""The static features of the thesis, as beginnings of names; ``attr.`` is what an imported set has in their place."""

LAYER_SEGMENTS: Final = 8
"""Parts of equal length that the ordered layers are told by, whatever the depth."""
_FLAT: Final = 1e-12


@dataclass(frozen=True, eq=False)
class Rows:
    """Inputs of some jobs. The series stand there once per task, so that a step encodes them once."""

    static: torch.Tensor
    """Shape ``(rows, static width)``, the last one 1 where the task has a local run's series, else 0."""
    series: torch.Tensor
    """Shape ``(tasks, SERIES_STEPS, channels)``."""
    task: torch.Tensor
    """Index into `series` by row, -1 where the task has none: it is then read as zeros."""

    def __len__(self) -> int:
        return len(self.task)

    def take(self, rows: torch.Tensor) -> Rows:
        """Return some rows, which may use all series."""
        return Rows(self.static[rows], self.series, self.task[rows])


@dataclass(frozen=True, eq=False)
class SeriesScale:
    """Mean and deviation of each channel over the training tasks, each task counted once."""

    middle: FloatArray
    deviation: FloatArray

    @staticmethod
    def fit(table: Table) -> SeriesScale:
        """Learn from the series of the tasks that have rows in `table`, and of no other."""
        known = [table.task_series[task] for task in np.unique(table.task).tolist() if task in table.task_series]
        if not known:
            return SeriesScale(np.zeros(len(SERIES_CHANNELS)), np.ones(len(SERIES_CHANNELS)))
        together = np.stack(known)
        deviation = together.std(axis=(0, 2))
        return SeriesScale(together.mean(axis=(0, 2)), np.where(deviation > _FLAT, deviation, 1.0))

    def apply(self, series: FloatArray) -> FloatArray:
        """Return one task's standardised series, shape ``(SERIES_STEPS, channels)``."""
        return np.asarray(((series - self.middle[:, None]) / self.deviation[:, None]).T)


def ordered_layers(layers: tuple[str, ...], types: tuple[str, ...]) -> FloatArray:
    """Return the share of each of `types` in each of `LAYER_SEGMENTS` parts of a network, shape ``(parts x types,)``.

    It is the one-hot matrix of the ordered layers, averaged to a fixed length: Conv, ReLU, Linear, Linear in two parts
    are (1/2, 1/2, 0) and (0, 0, 1). A type that is not among `types` counts as none.
    """
    if not layers or not types:
        return np.zeros(LAYER_SEGMENTS * len(types))
    one_hot = np.array([[float(layer == kind) for kind in types] for layer in layers])
    return np.stack([resampled(column, LAYER_SEGMENTS) for column in one_hot.T], axis=1).ravel()


@dataclass(frozen=True, eq=False)
class Inputs:
    """Scaling of features and series, fitted on the training rows."""

    preprocessing: Preprocessing
    layer_types: tuple[str, ...]
    series_scale: SeriesScale

    @staticmethod
    def fit(table: Table, statics: tuple[str, ...]) -> Inputs:
        """Learn from a table's rows.

        Args:
            table: Training rows only.
            statics: Beginnings of names of the features to use, such as `TABLE_4_1`.
        """
        tasks = np.unique(table.task).tolist()
        types = sorted({layer for task in tasks for layer in table.task_layers.get(task, ())})
        return Inputs(Preprocessing.fit(table, statics), tuple(types), SeriesScale.fit(table))

    @property
    def static_width(self) -> int:
        """Number of static inputs."""
        return len(self.preprocessing.kept) + LAYER_SEGMENTS * len(self.layer_types) + 1

    def apply(self, table: Table) -> Rows:
        """Return inputs of a table's rows."""
        tasks, of = np.unique(table.task, return_inverse=True)
        names = tasks.tolist()
        layers = [ordered_layers(table.task_layers.get(name, ()), self.layer_types) for name in names]
        with_series = [name for name in names if name in table.task_series]
        places = {name: at for at, name in enumerate(with_series)}
        place = np.array([places.get(name, -1) for name in names], dtype=np.int64)[of]
        order = np.array(layers).reshape(len(names), LAYER_SEGMENTS * len(self.layer_types))[of]
        static = np.concatenate((self.preprocessing.apply(table), order, (place >= 0)[:, None]), axis=1)
        return Rows(
            torch.from_numpy(static.astype(np.float32)),
            torch.from_numpy(self._series(table.task_series, with_series)),
            torch.from_numpy(place),
        )

    def _series(self, series: Mapping[str, FloatArray], names: list[str]) -> AnyArray:
        shape = (len(names), SERIES_STEPS, len(SERIES_CHANNELS))
        return np.array([self.series_scale.apply(series[name]) for name in names], dtype=np.float32).reshape(shape)


def groups() -> Mapping[str, IntArray]:
    """Return the channels of the three groups that each have an encoder: CPU, memory, network in and out."""
    kinds = [one.partition(".")[2] for one in SERIES_CHANNELS]
    return {
        f"{group}_usage": np.array([at for at, kind in enumerate(kinds) if kind.startswith(group)])
        for group in ("cpu", "memory", "network")
    }

"""Coordinates of configurations and of tasks, in which the kernel measures distance.

A configuration's coordinates are the physics of data-parallel training: the scaling terms of Ernest and Amdahl
(``1/n``, ``log n``, and the logarithm of all cores), the machine's logarithmic sizes and its name, and the logarithmic
batch; other attributes form a group. A task's coordinates are the logarithms of Table 4.1, its communication to
computation ratio, the local run's CPU utilisation, and its series' summaries, by family, so that the many summaries do
not dominate the few features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from services.advisor.core.arrays import AnyArray, FloatArray, IntArray, TextArray
from services.advisor.core.table import Table

SIZE: Final = "local.time_s"
CATEGORY: Final = "category"
"""The group of a task's categories, one column per value; kept even if all known tasks share it."""
_MACHINE: Final = ("config.vcpu", "config.memory_gb", "config.disk_gb", "config.network_gbps")
_MACHINE_NAMES: Final = ("config.instance_type=", "config.provider=")
_DERIVED: Final = frozenset({"config.workers", "config.batch_size", "config.price_usd_per_hour", *_MACHINE})
_TASK_FAMILIES: Final = ("task.layers.", "task.", "series.")
_RATIOS: Final = {
    # All cores: compute is divided by them.
    "cores": (("config.vcpu", "config.workers"), ()),
    # Bytes of gradients per operation, up to constants.
    "comm_compute_ratio": (("task.parameter_count",), ("task.forward_flops",)),
    "local_comm_compute_ratio": (("series.workers.network_out_bytes_per_s.mean",), ("series.workers.cpu_cores.mean",)),
    # Share of its cores that the local run used: below 1 it does not benefit from more cores.
    "cpu_utilisation": (("series.workers.cpu_cores.mean",), ("local.vcpu",)),
}
_PHYSICS: Final = "physics"
_WIDE: Final = 3.0
"""A positive feature whose largest value exceeds this many times its smallest one is on a logarithmic scale."""


def _raw(table: Table, source: str) -> FloatArray:
    """Return a feature, or a product over a product of features."""
    if source not in _RATIOS:
        return table.feature(source)
    over, under = _RATIOS[source]
    value = np.prod([table.feature(name) for name in over], axis=0)
    divisor = np.prod([table.feature(name) for name in under], axis=0) if under else np.ones(len(table))
    return np.asarray(value / np.where(divisor > 0, divisor, np.nan))


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """One coordinate: its source and scaling."""

    source: str
    """The table's feature, or one of the ratios."""
    form: str
    """``log``, ``log1p``, ``inverse``, ``share`` or ``plain``."""
    group: str
    middle: float = 1.0
    """Median of the feature itself."""
    centre: float = 0.0
    scale: float = 1.0
    least: float = -np.inf
    most: float = np.inf
    """Coordinates are clipped to the training range."""

    def values(self, table: Table) -> FloatArray:
        """Return the scaled coordinate, shape ``(rows,)``; 0, the mean, if unknown."""
        formed = np.clip(_formed(_raw(table, self.source), self.form, self.middle), self.least, self.most)
        scaled = (formed - self.centre) / self.scale
        return np.where(np.isfinite(scaled), scaled, 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class Space:
    """Coordinates by group."""

    columns: tuple[Column, ...]

    @property
    def groups(self) -> tuple[str, ...]:
        """Return the groups in order."""
        return tuple(dict.fromkeys(column.group for column in self.columns))

    def coordinates(self, table: Table) -> FloatArray:
        """Return shape ``(rows, columns)``."""
        return np.array([column.values(table) for column in self.columns]).reshape(len(self.columns), len(table)).T

    def members(self) -> tuple[IntArray, ...]:
        """Return the columns of each group."""
        return tuple(
            np.array([at for at, column in enumerate(self.columns) if column.group == group], dtype=np.int64)
            for group in self.groups
        )

    def sources(self) -> tuple[int, ...]:
        """Return the number of quantities in each group: the categories of one text are one."""
        return tuple(
            len({(column.source.partition("=")[0], column.form) for column in self.columns if column.group == group})
            for group in self.groups
        )


def configuration_space(table: Table) -> Space:
    """Return the coordinates in which the rows' configurations differ."""
    columns = [
        Column("config.workers", "log", "scale"),
        Column("config.workers", "inverse", "scale"),
        Column("cores", "log", "scale"),
        Column("config.batch_size", "log", "batch"),
        *(Column(name, "log", "machine") for name in _MACHINE),
    ]
    for name in table.feature_names:
        if name.startswith(_MACHINE_NAMES):
            columns.append(Column(name, "plain", "machine"))
        elif name.startswith("config.") and name not in _DERIVED:
            columns.append(Column(name, _form(table.feature(name)), "other"))
    return Space(tuple(one for column in columns for one in _fitted(table, column, clip=False)))


def task_space(table: Table) -> Space:
    """Return the coordinates in which the rows' tasks differ.

    The local run's machine is not a coordinate; of its duration the parallel share is: by Amdahl's law, jobs that are
    short against a fixed overhead gain nothing from more workers.
    """
    columns = [Column(SIZE, "share", "size")]
    columns += [
        Column(name, "log", _PHYSICS) for name in ("comm_compute_ratio", "local_comm_compute_ratio", "cpu_utilisation")
    ]
    for name in table.feature_names:
        family = next((one for one in _TASK_FAMILIES if name.startswith(one)), None)
        if family is not None:
            category = "=" in name
            form = "plain" if category else _form(table.feature(name))
            columns.append(Column(name, form, CATEGORY if category else family.rstrip(".")))
    return Space(tuple(one for column in columns for one in _fitted(table, column, clip=True)))


def _fitted(table: Table, column: Column, *, clip: bool) -> tuple[Column, ...]:
    """Return the column with its scale; empty if it is constant."""
    raw = _raw(table, column.source)
    raw = raw[np.isfinite(raw)]
    middle = float(np.median(raw)) if len(raw) else 1.0
    values = np.unique(_formed(raw, column.form, middle))
    values = values[np.isfinite(values)]
    if "=" in column.source:
        return (column,) if len(values) > 1 or column.group == CATEGORY else ()
    if len(values) < 2:
        return ()
    least, most = (float(values[0]), float(values[-1])) if clip else (-np.inf, np.inf)
    fitted = Column(
        column.source, column.form, column.group, middle, float(values.mean()), float(values.std()), least, most
    )
    return (fitted,)


def _form(values: FloatArray) -> str:
    known = values[np.isfinite(values)]
    if not len(known) or known.min() < 0.0:
        return "plain"
    if known.min() > 0.0:
        return "log" if known.max() > _WIDE * known.min() else "plain"
    return "log1p" if known.max() > _WIDE else "plain"


def _formed(values: FloatArray, form: str, middle: float) -> FloatArray:
    if form == "plain":
        return values
    if form == "log1p":
        return np.log1p(np.maximum(values, 0.0))
    positive = np.where(values > 0, values, np.nan)
    if form == "share":
        return np.asarray(positive / (positive + middle))
    return np.asarray(np.log(positive) if form == "log" else 1.0 / positive)


def distinct(names: AnyArray, rows: FloatArray) -> tuple[IntArray, IntArray]:
    """Return the first row of each distinct (name, coordinates) pair, and each row's number among them."""
    _, name_of = np.unique(names, return_inverse=True)
    table = np.column_stack([name_of.astype(np.float64), np.round(rows, 9)])
    _, first, inverse = np.unique(table, axis=0, return_index=True, return_inverse=True)
    return first.astype(np.int64), inverse.reshape(-1).astype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """Distinct configurations, or distinct variants of tasks, with their coordinates."""

    names: TextArray
    coordinates: FloatArray

    def __len__(self) -> int:
        return len(self.names)

"""Coordinates of configurations and of tasks, in which the process measures likeness.

A configuration's coordinates are the physics of data-parallel training: the scaling terms of Ernest and Amdahl
(``1/n``, ``log n``, ``n``), the machine's logarithmic sizes and its name, and the logarithmic batch. Whatever else a
record holds is a group of its own. A task's coordinates are the logarithms of Table 4.1, of the local run's duration
and of its series' summaries, by family, so that many series' summaries do not outvote the few features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from services.advisor.core.arrays import AnyArray, FloatArray, IntArray, TextArray
from services.advisor.core.table import Table

PRICE: Final = "config.price_usd_per_hour"
_MACHINE: Final = ("config.vcpu", "config.memory_gb", "config.disk_gb", "config.network_gbps")
_MACHINE_NAMES: Final = ("config.instance_type=", "config.provider=")
_DERIVED: Final = frozenset({"config.workers", "config.batch_size", PRICE, *_MACHINE})
_TASK_FAMILIES: Final = ("task.layers.", "task.", "local.", "series.")
CATEGORY: Final = "category"
"""The group of a task's texts, one column per value; kept also where all known tasks share it: another may not."""

_WIDE: Final = 3.0
"""A positive feature whose largest value is this many times its smallest one is measured by its logarithm."""


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """One coordinate: what it is made of and how it is scaled."""

    source: str
    """The table's feature."""
    form: str
    """``log``, ``log1p``, ``inverse`` or ``plain``."""
    group: str
    centre: float
    scale: float
    least: float = -np.inf
    most: float = np.inf

    def values(self, table: Table) -> FloatArray:
        """Return the scaled coordinate, shape ``(rows,)``; 0, the middle, where not known."""
        scaled = (np.clip(_formed(table.feature(self.source), self.form), self.least, self.most) - self.centre) / self.scale
        return np.where(np.isfinite(scaled), scaled, 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class Space:
    """Coordinates by group."""

    columns: tuple[Column, ...]
    groups: tuple[str, ...]

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
        """Return how many quantities each group holds: the categories of one text are one."""
        return tuple(
            len({(column.source.partition("=")[0], column.form) for column in self.columns if column.group == group})
            for group in self.groups
        )


def configuration_space(table: Table) -> Space:
    """Return the coordinates in which the rows' configurations differ."""
    columns = [
        ("config.workers", "log", "scale"),
        ("config.workers", "inverse", "scale"),
        ("config.batch_size", "log", "batch"),
        *((name, "log", "machine") for name in _MACHINE),
    ]
    for name in table.feature_names:
        if name.startswith(_MACHINE_NAMES):
            columns.append((name, "plain", "machine"))
        elif name.startswith("config.") and name not in _DERIVED:
            columns.append((name, _form(table.feature(name)), "other"))
    return _fitted(table, columns)


def task_space(table: Table) -> Space:
    """Return the coordinates in which the rows' tasks differ."""
    columns = []
    for name in table.feature_names:
        family = next((one for one in _TASK_FAMILIES if name.startswith(one)), None)
        if family is not None:
            columns.append((name, _form(table.feature(name)), CATEGORY if "=" in name else family))
    return _fitted(table, columns, clip=True)


def _fitted(table: Table, wanted: list[tuple[str, str, str]], *, clip: bool = False) -> Space:
    columns = []
    for source, form, group in wanted:
        values = _formed(table.feature(source), form)
        values = np.unique(values[np.isfinite(values)])
        category = "=" in source
        if len(values) > 1 or (category and group == CATEGORY):
            plain = category or (form == "plain" and set(values) <= {0.0, 1.0})
            centre, scale = (0.0, 1.0) if plain else (float(values.mean()), float(values.std()))
            ends = (float(values.min()), float(values.max())) if clip and not category else (-np.inf, np.inf)
            columns.append(Column(source, form, group, centre, scale, *ends))
    return Space(tuple(columns), tuple(dict.fromkeys(column.group for column in columns)))


def _form(values: FloatArray) -> str:
    known = values[np.isfinite(values)]
    if not len(known) or known.min() < 0.0:
        return "plain"
    if known.min() > 0.0:
        return "log" if known.max() > _WIDE * known.min() else "plain"
    return "log1p" if known.max() > _WIDE else "plain"


def _formed(values: FloatArray, form: str) -> FloatArray:
    if form == "plain":
        return values
    if form == "log1p":
        return np.log1p(np.maximum(values, 0.0))
    positive = np.where(values > 0, values, np.nan)
    return np.log(positive) if form == "log" else 1.0 / positive


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

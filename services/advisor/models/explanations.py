"""Explanations: each feature's factor against its training median, and the nearest known tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from schemas.predictions import Contribution, Neighbour
from services.advisor.core.arrays import BoolArray, FloatArray, IntArray
from services.advisor.core.encoder import CONFIGURATION, ELSEWHERE
from services.advisor.core.table import Table, concatenated
from services.advisor.models.gp.kernel import Similarity
from services.advisor.models.gp.space import Points, Space

_MACHINE: Final = (
    "config.vcpu",
    "config.memory_gb",
    "config.disk_gb",
    "config.network_gbps",
    "config.instance_type",
    "config.provider",
    "config.price_usd_per_hour",
)
_RATIOS: Final = {
    "cores": "cores of all workers",
    "comm_compute_ratio": "gradient bytes per operation",
    "local_comm_compute_ratio": "local run's bytes per core second",
    "cpu_utilisation": "local run's use of its cores",
}
"""Derived coordinates, see `space`."""
OF_LOCAL_RUN: Final = "local run's "
REASONS: Final = 8
"""Contributions of a row at most."""
_NOTHING: Final = 0.02
"""Logarithmic factors closer to 0 than this are not reported."""


def family(feature: str) -> str:
    """Return the name under which a feature is reported: one for the machine, one per series, one for all layers."""
    name = feature.partition("=")[0]
    if name in _RATIOS:
        return _RATIOS[name]
    if name in _MACHINE:
        return "machine"
    if name.startswith("series."):
        return f"local run's {name.split('.')[2]}"
    if name.startswith("task.layers."):
        return "layers"
    if name == "local.time_s":
        return "local run's duration"
    return name.partition(".")[2].removeprefix("attr.").replace("_", " ")


@dataclass(frozen=True, slots=True, eq=False)
class Medians:
    """Median and range of the training values, per feature."""

    median: FloatArray
    """Of numbers; 0 for categories, NaN without values."""
    least: FloatArray
    most: FloatArray
    reference_time_s: float
    families: Mapping[str, IntArray]
    """Columns that vary, by `family`."""

    @staticmethod
    def of(table: Table) -> Medians:
        """Compute from the rows."""
        features = table.features
        known = np.isfinite(features)
        least = np.where(known, features, np.inf).min(axis=0, initial=np.inf)
        most = np.where(known, features, -np.inf).max(axis=0, initial=-np.inf)
        median = np.array([_median(column[mask]) for column, mask in zip(features.T, known.T, strict=True)])
        category = np.array(["=" in name for name in table.feature_names], dtype=bool)
        found: dict[str, list[int]] = {}
        for at in np.flatnonzero(most > least).tolist():
            found.setdefault(family(table.feature_names[at]), []).append(at)
        families = {name: np.array(columns, dtype=np.int64) for name, columns in found.items()}
        references = table.reference_time_s[np.isfinite(table.reference_time_s)]
        return Medians(np.where(category, 0.0, median), least, most, _median(references), families)

    def outside(self, table: Table) -> tuple[tuple[str, ...], ...]:
        """Return each row's features outside the training range, such as ``workers 64 (measured: 1 to 8)``."""
        with np.errstate(invalid="ignore"):
            slack = 1e-9 * np.maximum(np.abs(self.least), np.abs(self.most))
            beyond = (table.features < self.least - slack) | (table.features > self.most + slack)
        beyond &= np.isfinite(self.least) & ~np.char.startswith(np.array(table.feature_names), "series.")

        def of_job(at: int) -> bool:
            return not table.feature_names[at].startswith(CONFIGURATION)  # configuration first

        named = np.array(["config.instance_type=" in name for name in table.feature_names], dtype=bool)
        return tuple(
            (
                *(self._described(table, row, at) for at in sorted(np.flatnonzero(beyond[row]).tolist(), key=of_job)),
                *(
                    (f"machine {_machine(table, row)} (never measured)",)
                    if self._is_new_machine(table, row, named)
                    else ()
                ),
            )
            for row in range(len(table))
        )

    def _is_new_machine(self, table: Table, row: int, named: BoolArray) -> bool:
        return bool(named.any()) and not bool((table.features[row, named] > 0.5).any())

    def _described(self, table: Table, row: int, at: int) -> str:
        family, _, name = table.feature_names[at].partition(".")
        name = f"{OF_LOCAL_RUN if family == 'local' else ''}{name.removeprefix('attr.')}"
        return f"{name} {table.features[row, at]:g} (measured: {self.least[at]:g} to {self.most[at]:g})"


def _median(values: FloatArray) -> float:
    return float(np.median(values)) if len(values) else float("nan")


def contributions(
    log_medians: Callable[[Table], FloatArray], medians: Medians, table: Table
) -> list[tuple[Contribution, ...]]:
    """Return, per row of one task, each feature's factor of the time against its training median, strongest first.

    Args:
        log_medians: The model's logarithms of predicted seconds.
        medians: Of the training rows.
        table: The rows, without outcomes.
    """
    if not len(table):
        return []
    names = list(medians.families)
    variants = [table, *(_changed(table, medians, name) for name in names)]
    mean = log_medians(concatenated(variants)).reshape(len(variants), len(table))
    explained = []
    for row in range(len(table)):
        effects = mean[0, row] - mean[1:, row]
        strongest = np.argsort(-np.abs(effects), kind="stable").tolist()
        known = [bool(np.isfinite(table.features[row, medians.families[name]]).any()) for name in names]
        order = [at for at in strongest if known[at] and abs(effects[at]) > _NOTHING][:REASONS]
        explained.append(
            tuple(
                Contribution(
                    feature=names[at],
                    value=_value(table, medians, names[at], row),
                    factor=float(np.exp(effects[at])),
                )
                for at in order
            )
        )
    return explained


def _changed(table: Table, medians: Medians, name: str) -> Table:
    columns = medians.families[name]
    features = table.features.copy()
    features[:, columns] = medians.median[columns]
    changed = replace(table, features=features)
    if any(table.feature_names[at].startswith(CONFIGURATION) for at in columns.tolist()):
        moved = (features != table.features) & np.isfinite(table.features)
        key = np.where(moved.any(axis=1), ELSEWHERE, table.configuration_key)
        changed = replace(changed, configuration_key=key, is_reference=table.is_reference & ~moved.any(axis=1))
    if any(table.feature_names[at] == "local.time_s" for at in columns.tolist()):
        changed = replace(changed, reference_time_s=np.full(len(table), medians.reference_time_s))
    return changed


def _machine(table: Table, row: int) -> str:
    return str(table.configuration_key[row]).partition(" ")[0].partition("/")[2]


def _value(table: Table, medians: Medians, name: str, row: int) -> str:
    if name == "machine":
        return _machine(table, row)
    columns = medians.families[name].tolist()
    for at in columns:
        feature, value = table.feature_names[at], float(table.features[row, at])
        if "=" not in feature:
            return f"{value:.4g}" if len(columns) == 1 or name.startswith("local run") else f"{len(columns)} figures"
        if value > 0.5:
            return str(feature.partition("=")[2])
    return "another"


@dataclass(frozen=True, slots=True, eq=False)
class KnownTasks:
    """The training tasks in the coordinates of tasks."""

    space: Space
    points: Points
    records: IntArray
    unit: float
    """Median distance of two tasks."""

    @staticmethod
    def of(space: Space, points: Points, task_of: IntArray) -> KnownTasks:
        """Collect; each variant of a task is a point, `task_of` the point of each training row."""
        apart = np.sqrt(Similarity.between(space, points, points).distance)
        pairs = apart[np.triu_indices(len(apart), 1)]
        pairs = pairs[pairs > 0]
        records = np.bincount(task_of, minlength=len(points)).astype(np.int64)
        return KnownTasks(space, points, records, float(np.median(pairs)) if len(pairs) else 1.0)

    def nearest(self, table: Table, count: int) -> tuple[Neighbour, ...]:
        """Return the known tasks most similar to the first row's; none if tasks have no features."""
        if not len(table) or not self.space.columns:
            return ()
        asked = Points(table.task[:1], self.space.coordinates(table.select(np.arange(1))))
        distance = np.sqrt(Similarity.between(self.space, asked, self.points).distance[0]) / self.unit
        found: list[Neighbour] = []
        for at in np.argsort(distance, kind="stable").tolist():
            name = str(self.points.names[at])
            if len(found) < count and name not in {one.task for one in found}:
                rows = int(self.records[self.points.names == name].sum())
                alike = self._alike(asked.coordinates[0], at)
                found.append(Neighbour(task=name, distance=float(distance[at]), records=rows, alike=alike))
        return tuple(found)

    def _alike(self, place: FloatArray, at: int) -> tuple[str, ...]:
        columns = self.space.columns
        apart = np.abs(self.points.coordinates[at] - place)
        plain = [index for index, column in enumerate(columns) if "=" not in column.source]
        if not plain:
            return ()
        order = sorted(plain, key=lambda index: (float(apart[index]), columns[index].source))
        explained = tuple(dict.fromkeys(family(columns[index].source) for index in (order[0], order[-1])))
        return (f"most alike: {explained[0]}", *(f"least: {one}" for one in explained[1:]))

"""Any regressor as a trained model: intervals from its errors on left-out tasks, neighbours by distance.

The baselines of the setting `algorithm`. Contributions come from setting one feature after the other to its training
median, which needs only the regressor's predictions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from schemas.jobs import JobRecord
from schemas.predictions import Contribution, Neighbour, Objective
from schemas.runs import RunProfile
from services.advisor.core.arrays import BoolArray, FloatArray, IntArray
from services.advisor.core.encoder import CATEGORY_MARK, Encoder
from services.advisor.core.table import Table, build
from services.advisor.core.trained_model import Predictions, ProposedRun
from services.advisor.core.training_range import TrainingRange
from services.advisor.models.baselines.feature_preprocessing import Preprocessing
from services.advisor.models.model import Fitted, Regressor

LEVEL: Final = 0.9
_LEAST_ROWS: Final = 8
_SPAN_UNKNOWN: Final = 25.0
"""An interval whose ends differ by more than this factor is no answer."""
_NOTHING: Final = 0.02
"""Factors closer to 1 than this are not reported."""
_REASONS: Final = 8
_PER_TASK: Final = ("task.", "local.", "series.")


@dataclass(frozen=True, eq=False)
class TrainingSummary:
    """Training tasks and ranges: for neighbours, and to find extrapolation."""

    preprocessing: Preprocessing
    tasks: tuple[str, ...]
    places: FloatArray
    """Shape ``(tasks, prepared features)``."""
    records: IntArray
    scale: float
    """Median distance of two known tasks."""
    names: tuple[str, ...]
    least: FloatArray
    most: FloatArray
    middle: FloatArray
    """Per feature of the table, over the rows where it is known."""


@dataclass(frozen=True, eq=False)
class RegressorModel:
    """A fitted regressor of time, with intervals, failure shares and training ranges."""

    level: float
    encoder: Encoder
    regression: Fitted
    low: float
    high: float
    """Quantiles of log(true / predicted) on left-out tasks."""
    failing: Mapping[str, float]
    """Share of jobs that did not run, by configuration."""
    known: TrainingSummary
    training_range: TrainingRange

    def predict(self, table: Table) -> Predictions:
        """Return predictions."""
        median = self.regression.predict(table)
        usable = np.isfinite(median) & (median > 0)
        safe = np.where(usable, median, 1.0)
        time_s = np.stack([safe * np.exp(min(self.low, 0.0)), safe, safe * np.exp(max(self.high, 0.0))], axis=1)
        span = float(np.exp(max(self.high, 0.0) - min(self.low, 0.0)))
        wide = f"the {self.level:.0%} interval spans a factor of {span:.0f}" if span > _SPAN_UNKNOWN else ""
        unknown = tuple(
            far or (wide if one else "the model cannot tell")
            for far, one in zip(self.training_range.outside(table), usable, strict=True)
        )
        outside = _outside(table, self.known)
        feasible = np.array([1.0 - self.failing.get(key, 0.0) for key in table.configuration_key.tolist()])
        return Predictions(time_s, feasible, np.ones(len(table)), unknown, outside)

    def contributions(self, table: Table, rows: IntArray) -> list[tuple[Contribution, ...]]:
        """Return each feature's factor of the time, by setting it to its training median."""
        asked = table.select(rows)
        if not len(asked):
            return []
        base = self.regression.predict(asked)
        factors: dict[str, FloatArray] = {}
        for at in range(len(table.feature_names)):
            name = table.feature_names[at]
            if CATEGORY_MARK in name or name.startswith("series.") or not np.isfinite(self.known.middle[at]):
                continue
            features = asked.features.copy()
            features[:, at] = self.known.middle[at]
            factors[name] = base / self.regression.predict(replace(asked, features=features))
        return [_strongest(asked, factors, row) for row in range(len(asked))]

    def neighbours(self, table: Table, count: int) -> tuple[Neighbour, ...]:
        """Return the nearest known tasks by their features and local runs."""
        known = self.known
        if not len(table) or not len(known.tasks):
            return ()
        place = known.preprocessing.apply(table)[0]
        apart = np.abs(known.places - place)
        distance = np.sqrt((apart**2).mean(axis=1)) / known.scale
        order = np.argsort(distance, kind="stable")[:count]
        return tuple(
            Neighbour(
                task=known.tasks[at], distance=float(distance[at]), records=int(known.records[at]),
                alike=_alike(known, place, at),
            )
            for at in order.tolist()
        )  # fmt: skip

    def propose(self, table: Table, predictions: Predictions, values: FloatArray, count: int) -> list[ProposedRun]:
        """Return the configurations with the smallest lower ends of their intervals."""
        del table
        spread = predictions.time_s[:, 0] / predictions.time_s[:, 1]
        lower = np.where(np.isfinite(values), values * spread, np.inf)
        best = float(np.nanmin(values, initial=np.inf))
        order = [row for row in np.argsort(lower, kind="stable")[:count].tolist() if np.isfinite(lower[row])]
        return [ProposedRun(row, f"it may be as low as {lower[row] / best:.2f} x the best prediction") for row in order]


@dataclass(frozen=True, slots=True)
class RegressorAlgorithm:
    """Fits a `RegressorModel`."""

    regressor: Regressor
    level: float = LEVEL
    folds: int = 6
    """Groups of tasks that are left out in turn, for the errors on unknown tasks."""

    @property
    def name(self) -> str:
        """The regressor's."""
        return self.regressor.name

    def fit(self, records: Sequence[JobRecord], profiles: Mapping[str, RunProfile], *, seed: int) -> RegressorModel:
        """Fit."""
        table, encoder = build(records, profiles)
        table = table.without_repeats()
        rows = table.select(table.completed(Objective.TIME))
        if len(rows) < _LEAST_ROWS:
            raise ValueError(f"{len(rows)} finished jobs are known: at least {_LEAST_ROWS} are needed to learn from")
        errors = _errors_on_left_out(self.regressor, rows, self.folds, seed)
        tail = (1.0 - self.level) / 2.0
        low, high = np.quantile(errors, [tail, 1.0 - tail])
        regression = self.regressor.fit(rows, seed=seed)
        return RegressorModel(
            self.level,
            encoder,
            regression,
            float(low),
            float(high),
            _failing(table),
            _known(rows),
            TrainingRange.of(table),
        )


def _errors_on_left_out(regressor: Regressor, rows: Table, folds: int, seed: int) -> FloatArray:
    """log(true / predicted) on left-out tasks; on left-out rows if there is one task only."""
    tasks = np.unique(rows.task)
    groups = np.searchsorted(tasks, rows.task) if len(tasks) > 1 else np.arange(len(rows))
    fold = groups % min(folds, int(groups.max()) + 1)
    errors: list[FloatArray] = []
    for one in np.unique(fold):
        out = fold == one
        predicted = regressor.fit(rows.select(~out), seed=seed).predict(rows.select(out).without_outcomes())
        ratio = np.log(rows.time_s[out]) - np.log(np.where(predicted > 0, predicted, np.nan))
        errors.append(ratio[np.isfinite(ratio)])
    return np.concatenate(errors) if errors else np.zeros(1)


def _failing(table: Table) -> dict[str, float]:
    """Share of failures by configuration, shrunk by half a pseudo-success each."""
    shares: dict[str, float] = {}
    for key in np.unique(table.configuration_key[~table.feasible]):
        rows = table.configuration_key == key
        shares[str(key)] = float((~table.feasible[rows]).sum() / (rows.sum() + 0.5))
    return shares


def _known(rows: Table) -> TrainingSummary:
    tasks, first = np.unique(rows.task, return_index=True)
    preprocessing = Preprocessing.fit(rows.select(first.astype(np.int64)), _PER_TASK)
    places = preprocessing.apply(rows.select(first.astype(np.int64)))
    apart = np.sqrt(((places[:, None, :] - places[None, :, :]) ** 2).mean(axis=2)) if places.size else np.ones((1, 1))
    others = apart[np.triu_indices(len(tasks), 1)]
    seen = np.isfinite(rows.features)
    middle = np.array([
        float(np.median(column[known])) if known.any() else np.nan
        for column, known in zip(rows.features.T, seen.T, strict=True)
    ])  # fmt: skip
    return TrainingSummary(
        preprocessing, tuple(tasks.tolist()), places, np.array([(rows.task == one).sum() for one in tasks]),
        float(np.median(others)) if len(others) and np.median(others) > 0 else 1.0, rows.feature_names,
        np.where(seen, rows.features, np.inf).min(axis=0), np.where(seen, rows.features, -np.inf).max(axis=0), middle,
    )  # fmt: skip


def _outside(table: Table, known: TrainingSummary) -> tuple[tuple[str, ...], ...]:
    """Features outside of the training values, as text."""
    beyond: BoolArray = (table.features < known.least) | (table.features > known.most)
    found: list[tuple[str, ...]] = []
    for row in range(len(table)):
        columns = [at for at in np.flatnonzero(beyond[row]) if not known.names[at].startswith("series.")]
        found.append(
            tuple(
                f"{known.names[at].partition('.')[2]} {table.features[row, at]:g} "
                f"(measured: {known.least[at]:g} to {known.most[at]:g})"
                for at in columns
                if np.isfinite(known.least[at])
            )
        )
    return tuple(found)


def _strongest(asked: Table, factors: Mapping[str, FloatArray], row: int) -> tuple[Contribution, ...]:
    found = [
        Contribution(
            feature=name.partition(".")[2], value=f"{asked.feature(name)[row]:g}", factor=float(factors[name][row])
        )
        for name in factors
        if np.isfinite(factors[name][row]) and abs(np.log(factors[name][row])) > _NOTHING
    ]
    return tuple(sorted(found, key=lambda one: -abs(float(np.log(one.factor))))[:_REASONS])


def _alike(known: TrainingSummary, place: FloatArray, at: int) -> tuple[str, ...]:
    """The feature that differs least, and the one that differs most."""
    apart = np.abs(known.places[at] - place)
    names = [known.names[column] for column in known.preprocessing.kept.tolist()]
    plain = [index for index, name in enumerate(names) if name.startswith("task.") and CATEGORY_MARK not in name]
    if not plain:
        return ()
    order = sorted(plain, key=lambda index: (float(apart[index]), names[index]))
    parts = [f"most alike: {names[order[0]].partition('.')[2]}"]
    return (*parts, f"least: {names[order[-1]].partition('.')[2]}") if len(order) > 1 else tuple(parts)

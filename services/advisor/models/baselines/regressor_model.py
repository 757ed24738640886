"""Any regressor as a trained model: intervals from its errors on left-out tasks. The baselines of `algorithm`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

import numpy as np

from schemas.jobs import JobRecord
from schemas.predictions import Contribution, Neighbour, Objective
from schemas.runs import RunProfile
from services.advisor.core.arrays import FloatArray, IntArray
from services.advisor.core.encoder import Encoder
from services.advisor.core.table import Table, build
from services.advisor.core.trained_model import Predictions, ProposedRun
from services.advisor.core.training_range import TrainingRange
from services.advisor.models.explanations import KnownTasks, Medians, contributions
from services.advisor.models.gp.space import Points, distinct, task_space

LEVEL: Final = 0.9
_LEAST_ROWS: Final = 8
_SPAN_UNKNOWN: Final = 25.0
"""An interval whose ends differ by more than this factor is no answer."""


@runtime_checkable
class Fitted(Protocol):
    """A fitted regressor."""

    def predict(self, table: Table) -> FloatArray:
        """Return positive seconds or dollars, shape ``(rows,)``; NaN if unknown."""
        ...


class Regressor(Protocol):
    """Predicts a quantity: a small immutable description, deterministic under its seed."""

    @property
    def name(self) -> str:
        """As shown in tables."""
        ...

    @property
    def target(self) -> Objective:
        """What it predicts."""
        ...

    def fit(self, table: Table, *, seed: int) -> Fitted:
        """Fit to the rows with a known outcome; other rows may be used, too (features, feasibility)."""
        ...


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
    medians: Medians
    tasks: KnownTasks
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
        feasible = np.array([1.0 - self.failing.get(key, 0.0) for key in table.configuration_key.tolist()])
        return Predictions(time_s, feasible, np.ones(len(table)), unknown, self.medians.outside(table))

    def contributions(self, table: Table, rows: IntArray) -> list[tuple[Contribution, ...]]:
        """Return each row's features with their factor of the time, strongest first."""
        return contributions(self._log_medians, self.medians, table.select(rows))

    def _log_medians(self, table: Table) -> FloatArray:
        return np.asarray(np.log(self.regression.predict(table)))

    def neighbours(self, table: Table, count: int) -> tuple[Neighbour, ...]:
        """Return the nearest known tasks by their features and local runs."""
        return self.tasks.nearest(table, count)

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
            Medians.of(rows),
            _known_tasks(rows),
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


def _known_tasks(rows: Table) -> KnownTasks:
    space = task_space(rows)
    coordinates = space.coordinates(rows)
    first, task_of = distinct(rows.task, coordinates)
    return KnownTasks.of(space, Points(rows.task[first], coordinates[first]), task_of)

"""Learned baselines that no service offers: Poisson regression, boosted ratios, a classifier of top configurations."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import numpy as np
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import PoissonRegressor

from schemas.predictions import Objective
from services.advisor.core.arrays import FloatArray
from services.advisor.core.table import Table, training_rows
from services.advisor.models.baselines.feature_preprocessing import Preprocessing
from services.advisor.models.baselines.learned import Boosting, FittedLine, FittedTrees
from tests.bench.evaluation.labels import top_labels


@dataclass(frozen=True, slots=True)
class Poisson:
    """Poisson regression with its logarithmic link, as in the thesis' Table 4.5."""

    target: Objective
    name: str = "poisson"

    def fit(self, table: Table, *, seed: int) -> FittedLine:
        """Fit; deterministic, without a seed."""
        del seed
        rows = training_rows(table, self.target)
        values, preprocessing = rows.value(self.target), Preprocessing.fit(rows)
        unit = float(values.mean())  # the solver likes numbers near 1
        with warnings.catch_warnings():  # hundreds of collinear columns: the last steps gain nothing
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = PoissonRegressor(alpha=1e-3, max_iter=300).fit(preprocessing.apply(rows), values / unit)
        intercept = float(model.intercept_) + float(np.log(unit))
        return FittedLine(preprocessing, np.asarray(model.coef_), intercept, float(values.min()), float(values.max()))


@dataclass(frozen=True, eq=False)
class FittedClassifier:
    """A forest's probability of being a top configuration."""

    forest: RandomForestClassifier

    def score(self, table: Table) -> FloatArray:
        """Return probabilities; 0 without any top configuration in the training rows."""
        classes = list(self.forest.classes_)
        if True not in classes or not len(table):
            return np.zeros(len(table))
        return np.asarray(self.forest.predict_proba(table.features)[:, classes.index(True)])


@dataclass(frozen=True, slots=True)
class ForestClassifier:
    """Random forest of the thesis' labels: top five and within 1.5 times the minimum."""

    target: Objective
    name: str = "forest classifier"
    trees: int = 200

    def fit(self, table: Table, *, seed: int) -> FittedClassifier:
        """Fit."""
        rows = training_rows(table, self.target)
        labels = top_labels(rows.task, rows.value(self.target))
        forest = RandomForestClassifier(
            self.trees, min_samples_leaf=2, class_weight="balanced", n_jobs=1, random_state=seed
        )
        return FittedClassifier(forest.fit(rows.features, labels))


@dataclass(frozen=True, slots=True)
class FittedRatio:
    """A regressor of values over the local run's time."""

    fitted: FittedTrees

    def predict(self, table: Table) -> FloatArray:
        """Return seconds or dollars."""
        return self.fitted.predict(table) * _local_time(table)


@dataclass(frozen=True, slots=True)
class BoostingOfRatio:
    """Boosting of the ratio to the local run's time."""

    target: Objective
    name: str = "boosting of ratio"
    rounds: int = 300

    def fit(self, table: Table, *, seed: int) -> FittedRatio:
        """Fit."""
        unit = _local_time(table)
        ratios = replace(table, time_s=table.time_s / unit, cost_usd=table.cost_usd / unit)
        return FittedRatio(Boosting(self.target, rounds=self.rounds).fit(ratios, seed=seed))


def _local_time(table: Table) -> FloatArray:
    """The local run's time; 1 where it is not known."""
    reference = table.reference_time_s
    return np.where(np.isfinite(reference) & (reference > 0), reference, 1.0)

"""Baseline regressors and classifiers over all features: linear, Poisson, random forest, boosting (thesis 4.5.2)."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Final

import lightgbm
import numpy as np
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression, PoissonRegressor

from schemas.predictions import Objective
from services.advisor.core.arrays import FloatArray
from services.advisor.core.table import Table, training_rows
from services.advisor.models.baselines.boosted_trees import grown
from services.advisor.models.baselines.feature_preprocessing import Preprocessing
from services.advisor.models.labels import top_labels

_BEYOND: Final = 10.0
"""Linear predictions are clipped to this factor beyond the training values."""


@dataclass(frozen=True, eq=False)
class FittedLine:
    """A log-linear model, clipped to ten times beyond the training values."""

    preprocessing: Preprocessing
    weights: FloatArray
    intercept: float
    least: float
    most: float

    def predict(self, table: Table) -> FloatArray:
        """Return seconds or dollars."""
        logs = self.preprocessing.apply(table) @ self.weights + self.intercept
        return np.asarray(np.exp(np.clip(logs, np.log(self.least / _BEYOND), np.log(self.most * _BEYOND))))


@dataclass(frozen=True, slots=True)
class Linear:
    """Ordinary least squares on logarithms."""

    target: Objective
    name: str = "linear"

    def fit(self, table: Table, *, seed: int) -> FittedLine:
        """Fit; deterministic, without a seed."""
        del seed
        rows = training_rows(table, self.target)
        values, preprocessing = rows.value(self.target), Preprocessing.fit(rows)
        model = LinearRegression().fit(preprocessing.apply(rows), np.log(values))
        return FittedLine(
            preprocessing, np.asarray(model.coef_), float(model.intercept_), float(values.min()), float(values.max())
        )


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


def _scale(table: Table, *, ratio: bool) -> FloatArray:
    """The unit of predictions: the local run's time if `ratio` and known, else 1."""
    anchor = table.anchor_time_s
    return np.where(np.isfinite(anchor) & (anchor > 0), anchor, 1.0) if ratio else np.ones(len(table))


@dataclass(frozen=True, eq=False)
class FittedTrees:
    """Trees for the logarithm over raw features."""

    trees: RandomForestRegressor | lightgbm.Booster
    ratio: bool

    def predict(self, table: Table) -> FloatArray:
        """Return seconds or dollars."""
        if not len(table):
            return np.zeros(0)
        return np.asarray(np.exp(self.trees.predict(table.features)) * _scale(table, ratio=self.ratio))


@dataclass(frozen=True, slots=True)
class Forest:
    """Random forest regression of the logarithm."""

    target: Objective
    name: str = "random forest"
    trees: int = 200
    ratio: bool = False
    """Predict the ratio to the local run's time."""

    def fit(self, table: Table, *, seed: int) -> FittedTrees:
        """Fit."""
        rows = training_rows(table, self.target)
        model = RandomForestRegressor(self.trees, min_samples_leaf=2, max_features=0.5, n_jobs=1, random_state=seed)
        model.fit(rows.features, np.log(rows.value(self.target) / _scale(rows, ratio=self.ratio)))
        return FittedTrees(model, self.ratio)


@dataclass(frozen=True, slots=True)
class Boosting:
    """LightGBM on the logarithm."""

    target: Objective
    name: str = "boosting"
    rounds: int = 300
    ratio: bool = False
    """Predict the ratio to the local run's time."""

    def fit(self, table: Table, *, seed: int) -> FittedTrees:
        """Fit."""
        rows = training_rows(table, self.target)
        known = np.log(rows.value(self.target) / _scale(rows, ratio=self.ratio))
        trees = grown(rows.features, known, rounds=self.rounds, learning_rate=0.05, seed=seed)
        return FittedTrees(trees, self.ratio)


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

"""Baseline regressors over all features: linear, random forest, boosted trees (thesis 4.5.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from schemas.predictions import Objective
from services.advisor.core.arrays import FloatArray
from services.advisor.core.table import Table, training_rows
from services.advisor.models.baselines.feature_preprocessing import Preprocessing

if TYPE_CHECKING:
    import lightgbm
    from sklearn.ensemble import RandomForestRegressor

THREADS: Final = 1
"""Fixed: sums are the same on every machine. More threads wait for each other in busy loops: 300 trees on 1,000 rows
took 0.8 s of processor time with one, and 28 s with two on two busy cores."""
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
        features, logs = preprocessing.apply(rows), np.log(values)
        centre, mean = features.mean(axis=0), float(logs.mean())
        weights, *_ = np.linalg.lstsq(features - centre, logs - mean)
        return FittedLine(
            preprocessing, weights, mean - float(centre @ weights), float(values.min()), float(values.max())
        )


@dataclass(frozen=True, eq=False)
class FittedTrees:
    """Trees for the logarithm over raw features; NaN is not known."""

    trees: RandomForestRegressor | lightgbm.Booster

    def predict(self, table: Table) -> FloatArray:
        """Return seconds or dollars."""
        return np.asarray(np.exp(self.trees.predict(table.features))) if len(table) else np.zeros(0)


@dataclass(frozen=True, slots=True)
class Forest:
    """Random forest regression of the logarithm."""

    target: Objective
    name: str = "random forest"
    trees: int = 200

    def fit(self, table: Table, *, seed: int) -> FittedTrees:
        """Fit."""
        from sklearn.ensemble import RandomForestRegressor  # noqa: PLC0415 - a second, and two with lightgbm

        rows = training_rows(table, self.target)
        model = RandomForestRegressor(self.trees, min_samples_leaf=2, max_features=0.5, n_jobs=1, random_state=seed)
        return FittedTrees(model.fit(rows.features, np.log(rows.value(self.target))))


@dataclass(frozen=True, slots=True)
class Boosting:
    """LightGBM on the logarithm."""

    target: Objective
    name: str = "boosting"
    rounds: int = 300

    def fit(self, table: Table, *, seed: int) -> FittedTrees:
        """Fit."""
        import lightgbm  # noqa: PLC0415 - as above

        rows = training_rows(table, self.target)
        parameters = {
            "objective": "regression",
            "learning_rate": 0.05,
            "num_leaves": 15,
            "min_data_in_leaf": 5,
            "bagging_fraction": 0.8,
            "bagging_freq": 1,
            "feature_fraction": 0.8,
            "seed": seed,
            "deterministic": True,
            "force_col_wise": True,
            "num_threads": THREADS,
            "verbose": -1,
        }
        data = lightgbm.Dataset(rows.features, label=np.log(rows.value(self.target)), params={"verbose": -1})
        return FittedTrees(lightgbm.train(parameters, data, num_boost_round=self.rounds))

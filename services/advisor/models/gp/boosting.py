"""Boosted trees mixed into the ranking, with a weight chosen on left-out training tasks.

On left-out tasks the Gaussian process predicts quantities better than the trees, and than any mixture with them; for
the ranking a mixture may be better. So only the ranking uses them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import lightgbm
import numpy as np
from scipy.stats import rankdata

from schemas.predictions import Objective
from services.advisor.core.arrays import FloatArray, TextArray
from services.advisor.core.table import Table
from services.advisor.models.baselines.boosted_trees import grown

WEIGHTS: Final = (0.0, 0.25, 0.5, 0.75)
"""Candidates for the trees' share. Boosting the process' residuals instead gained nothing."""
FOLDS: Final = 40
"""Up to this number of tasks each is left out alone, as for the process."""
LEAST_TASKS: Final = 3
LEAST_ROWS: Final = 3
ROUNDS: Final = 150


@dataclass(frozen=True, slots=True, eq=False)
class LeftOut:
    """Training rows with the process' prediction of each, with its task left out."""

    rows: Table
    targets: FloatArray
    """Logarithmic ratios."""
    predicted: FloatArray
    """By the process; NaN for anchors."""
    rates: FloatArray
    """Logarithms of dollars per second of the whole job; NaN if unknown."""


@dataclass(frozen=True, slots=True, eq=False)
class Trees:
    """LightGBM for the logarithmic ratio over raw features, with its weight against the process."""

    booster: lightgbm.Booster | None
    weights: Mapping[Objective, float]

    def moves(self, table: Table, mean: FloatArray, objective: Objective) -> FloatArray:
        """Return the shift of the process' means for the ranking, shape ``(rows,)``."""
        if self.booster is None or not len(table):
            return np.zeros(len(table))
        return self.weights[objective] * (np.asarray(self.booster.predict(table.features)) - mean)

    @staticmethod
    def of(known: LeftOut, seed: int) -> Trees:
        """Fit, and choose the weights by leave-one-group-out over tasks."""
        none = dict.fromkeys(Objective, 0.0)
        if len(np.unique(known.rows.task)) < LEAST_TASKS:
            return Trees(None, none)
        moved = _predicted_apart(known.rows, known.targets, seed) - known.predicted
        weights = {}
        for objective in Objective:
            rates = known.rates if objective is Objective.COST else np.zeros(len(moved))
            orders = [_order(known, rates, weight * moved) for weight in WEIGHTS]
            weights[objective] = WEIGHTS[int(np.argmax(orders))]
        if not any(weights.values()):
            return Trees(None, none)
        return Trees(_fit(known.rows.features, known.targets, seed), weights)


def _predicted_apart(rows: Table, targets: FloatArray, seed: int) -> FloatArray:
    """Return the trees' predictions for each task from the others."""
    tasks, task_of = np.unique(rows.task, return_inverse=True)
    fold_of = np.random.default_rng(seed).permutation(len(tasks))[task_of] % min(FOLDS, len(tasks))
    predicted = np.zeros(len(rows))
    for fold in np.unique(fold_of):
        out = fold_of == fold
        predicted[out] = _fit(rows.features[~out], targets[~out], seed).predict(rows.features[out])
    return predicted


def _order(known: LeftOut, rates: FloatArray, moves: FloatArray) -> float:
    """Return the mean over tasks of the rank correlation between outcomes and predictions."""
    actual, predicted = known.targets + rates, known.predicted + moves + rates
    return _mean_correlation(known.rows.task, actual, predicted)


def _mean_correlation(task: TextArray, actual: FloatArray, predicted: FloatArray) -> float:
    usable = np.isfinite(actual) & np.isfinite(predicted)
    found = []
    for one in np.unique(task[usable]):
        rows = usable & (task == one)
        if rows.sum() >= LEAST_ROWS:
            found.append(_correlation(rankdata(actual[rows]), rankdata(predicted[rows])))
    return float(np.mean(found)) if found else 0.0


def _correlation(a: FloatArray, b: FloatArray) -> float:
    a, b = a - a.mean(), b - b.mean()
    scale = float(np.sqrt((a @ a) * (b @ b)))
    return float(a @ b) / scale if scale > 0 else 0.0


def _fit(features: FloatArray, targets: FloatArray, seed: int) -> lightgbm.Booster:
    return grown(features, targets, rounds=ROUNDS, learning_rate=0.1, seed=seed)

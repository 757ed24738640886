"""Feasibility: probability that a job runs, by logistic regression on failed and out-of-memory jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from scipy.special import expit

from services.advisor.core.arrays import BoolArray, FloatArray, TextArray
from services.advisor.core.memory_fit import BYTES_PER_ELEMENT, BYTES_PER_GB, state_bytes_per_parameter
from services.advisor.core.table import Table
from services.advisor.models.gp.space import Space, configuration_space, task_space

if TYPE_CHECKING:
    from sklearn.linear_model import LogisticRegression

PENALTIES: Final = (0.3, 1.0, 3.0, 10.0, 30.0)
"""Candidates for the precision of the coefficients' prior; chosen by cross-validation over tasks."""
FOLDS: Final = 5
BYTES_PER_PARAMETER: Final = state_bytes_per_parameter("Adam")
"""For every task: coefficients are fitted to the pressure, and most tasks train with Adam."""
_NEVER: Final = 0.5
"""Pseudo-failures, so that no probability is 1."""


def memory_pressure(table: Table) -> FloatArray:
    """Return logarithms of needed over given memory, shape ``(rows,)``; NaN if either is unknown.

    Needed is the larger of two lower bounds: parameters with their optimizer state plus a batch of inputs, and what a
    worker of the local run used at its peak, which holds the framework too.
    """
    batch = np.nan_to_num(table.feature("config.batch_size"), nan=1.0)
    inputs = batch * np.nan_to_num(table.feature("task.input_elements")) * BYTES_PER_ELEMENT
    counted = table.feature("task.parameter_count") * BYTES_PER_PARAMETER + inputs
    used = table.feature("series.master.memory_bytes.p90")
    given = table.feature("config.memory_gb") * BYTES_PER_GB
    needed = np.fmax(counted, used)
    known = (needed > 0) & (given > 0)
    return np.log(np.where(known, needed, np.nan) / np.where(known, given, 1.0))


@dataclass(frozen=True, slots=True, eq=False)
class Feasibility:
    """Logistic regression with a normal prior, over configuration, task and memory pressure."""

    configurations: Space
    tasks: Space
    middle: float
    """Of the known memory pressures."""
    weights: FloatArray
    """Of the inputs; all 0 without failures."""
    intercept: float

    @staticmethod
    def of(table: Table, seed: int) -> Feasibility:
        """Fit to all rows, failed ones included. Without failures: the share that ran, with half a pseudo-failure."""
        pressure = memory_pressure(table)
        middle = float(np.nanmedian(pressure)) if np.isfinite(pressure).any() else 0.0
        odds = (float(table.feasible.sum()) + _NEVER) / (float((~table.feasible).sum()) + _NEVER)
        spaces = configuration_space(table), task_space(table)
        inputs = _inputs(spaces, middle, table)
        weights, intercept = np.zeros(inputs.shape[1]), float(np.log(odds))
        if table.feasible.any() and not table.feasible.all():
            found = _fitted(inputs, table.feasible, _penalty(inputs, table.feasible, table.task, seed))
            weights, intercept = np.asarray(found.coef_[0]), float(found.intercept_[0])
        return Feasibility(*spaces, middle, weights, intercept)

    def probability(self, table: Table) -> FloatArray:
        """Return probabilities that each row runs, shape ``(rows,)``."""
        inputs = _inputs((self.configurations, self.tasks), self.middle, table)
        return np.asarray(expit(inputs @ self.weights + self.intercept))


def _inputs(spaces: tuple[Space, Space], middle: float, table: Table) -> FloatArray:
    """Return shape ``(rows, 1 + coordinates)``; each family of coordinates has the same total prior variance."""
    parts = [np.nan_to_num(memory_pressure(table) - middle)[:, None]]
    for space in spaces:
        at = space.coordinates(table)
        parts.extend(at[:, columns] / np.sqrt(len(columns)) for columns in space.members())
    return np.hstack(parts)


def _fitted(inputs: FloatArray, ran: BoolArray, penalty: float) -> LogisticRegression:
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415 - a second, and answers need none of it

    return LogisticRegression(C=1.0 / penalty, max_iter=300).fit(inputs, ran)


def _penalty(inputs: FloatArray, ran: BoolArray, task: TextArray, seed: int) -> float:
    """Return the penalty of the smallest loss in cross-validation over tasks; the middle one where that is impossible.

    Folds whose other tasks all ran, or all failed, have nothing to fit and are left out.
    """
    from sklearn.metrics import log_loss  # noqa: PLC0415 - as above
    from sklearn.model_selection import GroupKFold  # noqa: PLC0415 - as above

    tasks = len(np.unique(task))
    if tasks < 2:
        return PENALTIES[len(PENALTIES) // 2]
    splits = GroupKFold(min(FOLDS, tasks), shuffle=True, random_state=seed).split(inputs, ran, task)
    folds = [(training, test) for training, test in splits if len(np.unique(ran[training])) == 2]

    def loss(penalty: float) -> float:
        total = 0.0
        for training, test in folds:
            chances = _fitted(inputs[training], ran[training], penalty).predict_proba(inputs[test])
            total += float(log_loss(ran[test], chances, labels=[False, True], normalize=False))
        return total

    return min(PENALTIES, key=loss) if folds else PENALTIES[len(PENALTIES) // 2]

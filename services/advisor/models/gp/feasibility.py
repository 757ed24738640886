"""Feasibility: probability that a job runs, by logistic regression on failed and out-of-memory jobs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from services.advisor.core.arrays import FloatArray, IntArray
from services.advisor.core.table import Table
from services.advisor.models.gp.space import Space, configuration_space, task_space

PENALTIES: Final = (0.3, 1.0, 3.0, 10.0, 30.0)
"""Candidates for the precision of the coefficients' prior; chosen by cross-validation over tasks."""
FOLDS: Final = 5
BYTES_PER_PARAMETER: Final = 16.0
"""Weights, gradients and two moments of Adam in single precision."""
_BYTES_PER_ELEMENT: Final = 4.0
_BYTES_PER_GB: Final = 2.0**30
_NEVER: Final = 0.5
"""Pseudo-failures, so that no probability is 1."""


def memory_pressure(table: Table) -> FloatArray:
    """Return logarithms of needed over given memory, shape ``(rows,)``; NaN if either is unknown.

    Needed is the larger of two lower bounds: parameters with their optimizer state plus a batch of inputs, and what a
    worker of the local run used at its peak, which holds the framework too.
    """
    batch = np.nan_to_num(table.feature("config.batch_size"), nan=1.0)
    inputs = batch * np.nan_to_num(table.feature("task.input_elements")) * _BYTES_PER_ELEMENT
    counted = table.feature("task.parameter_count") * BYTES_PER_PARAMETER + inputs
    used = table.feature("series.master.memory_bytes.p90")
    given = table.feature("config.memory_gb") * _BYTES_PER_GB
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
    """The intercept first; empty without failures."""
    base: float
    """Share of jobs that ran, with half a pseudo-failure."""

    @staticmethod
    def of(table: Table, seed: int) -> Feasibility:
        """Fit to all rows, failed ones included."""
        pressure = memory_pressure(table)
        middle = float(np.nanmedian(pressure)) if np.isfinite(pressure).any() else 0.0
        base = (float(table.feasible.sum()) + _NEVER) / (len(table) + 2.0 * _NEVER)
        blank = Feasibility(configuration_space(table), task_space(table), middle, np.zeros(0), base)
        if table.feasible.all() or not table.feasible.any():
            return blank
        inputs = blank.inputs(table)
        penalty = _chosen(inputs, table, seed)
        weights = _fit(inputs, table.feasible.astype(np.float64), penalty)
        return Feasibility(blank.configurations, blank.tasks, middle, weights, base)

    def inputs(self, table: Table) -> FloatArray:
        """Return shape ``(rows, 1 + coordinates)``; each family of coordinates has the same total prior variance."""
        pressure = memory_pressure(table) - self.middle
        parts = [np.ones((len(table), 1)), np.nan_to_num(pressure)[:, None]]
        for space in (self.configurations, self.tasks):
            at = space.coordinates(table)
            parts.extend(at[:, columns] / np.sqrt(len(columns)) for columns in space.members())
        return np.hstack(parts)

    def probability(self, table: Table) -> FloatArray:
        """Return probabilities that each row runs, shape ``(rows,)``."""
        if not len(self.weights):
            return np.full(len(table), self.base)
        return np.asarray(expit(self.inputs(table) @ self.weights))


def _fit(inputs: FloatArray, ran: FloatArray, penalty: float) -> FloatArray:
    """Return the maximum a posteriori coefficients; the intercept's prior is vague."""
    precision = np.full(inputs.shape[1], penalty)
    precision[0] = 1e-3

    def objective(weights: FloatArray) -> tuple[float, FloatArray]:
        logits = inputs @ weights
        loss = float(np.logaddexp(0.0, logits).sum() - ran @ logits) + 0.5 * float(precision @ weights**2)
        return loss, inputs.T @ (expit(logits) - ran) + precision * weights

    found = minimize(objective, np.zeros(inputs.shape[1]), jac=True, method="L-BFGS-B", options={"maxiter": 300})
    return np.asarray(found.x)


def _chosen(inputs: FloatArray, table: Table, seed: int) -> float:
    """Return the penalty of the smallest loss in cross-validation over tasks."""
    tasks, task_of = np.unique(table.task, return_inverse=True)
    if len(tasks) < 2:
        return PENALTIES[len(PENALTIES) // 2]
    fold_of = np.random.default_rng(seed).permutation(len(tasks))[task_of] % min(FOLDS, len(tasks))
    return min(PENALTIES, key=lambda penalty: _loss(inputs, table.feasible.astype(np.float64), fold_of, penalty))


def _loss(inputs: FloatArray, ran: FloatArray, fold_of: IntArray, penalty: float) -> float:
    total = 0.0
    for fold in np.unique(fold_of):
        out = fold_of == fold
        logits = inputs[out] @ _fit(inputs[~out], ran[~out], penalty)
        total += float(np.logaddexp(0.0, logits).sum() - ran[out] @ logits)
    return total

"""Marginal likelihood of the process and its gradient, in closed form; hyperparameters by maximum a posteriori."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.linalg import cho_solve, cholesky
from scipy.optimize import minimize

from services.advisor.core.arrays import FloatArray, IntArray
from services.advisor.models.gp.kernel import VAGUE, ConfigurationCovariance, Design, Similarity, TaskCovariance

JITTER: Final = 1e-8
ITERATIONS: Final = 40
_BOUND: Final = 12.0
"""Of the logarithms."""


@dataclass(frozen=True, slots=True, eq=False)
class Covariances:
    """Components of the rows' covariance at given hyperparameters."""

    value: dict[str, float]
    configuration: ConfigurationCovariance
    task: TaskCovariance
    common: FloatArray
    """Rows by rows, as the following."""
    kinds: FloatArray
    """Factor of `common`."""
    particular: FloatArray
    between_tasks: FloatArray


def _pairs(matrix: FloatArray, rows: IntArray) -> FloatArray:
    return np.asarray(matrix[np.ix_(rows, rows)])


class MarginalLikelihood:
    """Negative logarithm of the posterior of the hyperparameters, as a function of their logarithms."""

    def __init__(self, design: Design, targets: FloatArray) -> None:
        """Of these rows and their logarithmic ratios."""
        self._design = design
        self._targets = targets
        self._configurations = Similarity.between(
            design.kernel.configurations, design.configurations, design.configurations
        )
        self._tasks = Similarity.between(design.kernel.tasks, design.tasks, design.tasks)
        self._prior = design.kernel.prior()

    def covariances(self, logarithms: FloatArray) -> Covariances:
        """Evaluate the components."""
        value = self._design.kernel.values(logarithms)
        configuration = ConfigurationCovariance.of(self._configurations, value)
        task = TaskCovariance.of(self._tasks, value)
        return Covariances(
            value, configuration, task,
            _pairs(configuration.common, self._design.configuration_of),
            _pairs(1.0 + value["common.kind"] * task.kind, self._design.task_of),
            _pairs(configuration.particular, self._design.configuration_of),
            _pairs(task.total, self._design.task_of),
        )  # fmt: skip

    def factor(self, parts: Covariances) -> FloatArray:
        """Return the lower Cholesky factor of the rows' covariance."""
        total = VAGUE + parts.common * parts.kinds + parts.between_tasks * parts.particular
        total[np.diag_indices_from(total)] += self._design.noise(parts.value) + JITTER
        return np.asarray(cholesky(total, lower=True, overwrite_a=True, check_finite=False))

    def __call__(self, logarithms: FloatArray) -> tuple[float, FloatArray]:
        """Return the value and its gradient."""
        parts = self.covariances(logarithms)
        lower = self.factor(parts)
        inverse = cho_solve((lower, True), np.eye(len(lower)), check_finite=False)
        weights = inverse @ self._targets
        means, deviations = self._prior
        from_prior = (logarithms - means) / deviations
        value = 0.5 * float(self._targets @ weights) + float(np.log(np.diag(lower)).sum())
        slopes = self._slopes(parts, 0.5 * (inverse - np.outer(weights, weights)))
        gradient = np.array([slopes[name] * parts.value[name] for name in self._design.kernel.names])
        return value + 0.5 * float(from_prior @ from_prior), gradient + from_prior / deviations

    def _slopes(self, parts: Covariances, outer: FloatArray) -> dict[str, float]:
        """Return derivatives by each hyperparameter (not its logarithm); `outer`: by the covariance."""
        design, similarity, value = self._design, self._configurations, parts.value
        common = _summed(outer * parts.kinds, design.configuration_of, len(design.configurations))
        particular = _summed(outer * parts.between_tasks, design.configuration_of, len(design.configurations))
        tasks = _summed(outer * parts.particular, design.task_of, len(design.tasks))
        weighted = tasks * (1.0 + value["task.kind"] * parts.task.kind)
        kinds = _summed(outer * parts.common, design.task_of, len(design.tasks))
        smooth = parts.configuration.smooth
        slopes = {
            "common.kind": float((kinds * parts.task.kind).sum()),
            "common.smooth": float((common * smooth).sum()),
            "common.own": float((common * similarity.same).sum()),
            "particular.level": float(particular.sum()),
            "particular.smooth": float((particular * smooth).sum()),
            "task.variant": float((tasks * self._tasks.identical).sum()),
            "task.kind": float((tasks * parts.task.kind * parts.task.by_coordinates).sum()),
            "task.linear": float((weighted * self._tasks.product).sum()),
            "task.rbf": float((weighted * parts.task.rbf).sum()),
            "noise.relative": float(np.trace(outer)),
            "noise.absolute": float((np.diag(outer) / design.duration_s**2).sum()),
        }
        stretched = value["task.rbf"] * parts.task.rbf * self._tasks.distance / value["task.length"] ** 3
        slopes["task.length"] = float((weighted * stretched).sum())
        both = (value["common.smooth"] * common + value["particular.smooth"] * particular) * smooth
        for group, squared, product in zip(similarity.groups, similarity.squared, similarity.products, strict=True):
            slopes[f"length.{group}"] = float((both * squared).sum()) / value[f"length.{group}"] ** 3
            slopes[f"common.linear.{group}"] = float((common * product).sum())
            slopes[f"particular.linear.{group}"] = float((particular * product).sum())
        return slopes


def _summed(matrix: FloatArray, rows: IntArray, count: int) -> FloatArray:
    """Return sums over the rows of each pair of groups, shape ``(count, count)``."""
    order = np.argsort(rows, kind="stable")
    starts = np.searchsorted(rows[order], np.arange(count))
    by_row = np.add.reduceat(matrix[order], starts, axis=0)
    return np.asarray(np.add.reduceat(by_row[:, order], starts, axis=1))


def most_likely(likelihood: MarginalLikelihood, start: FloatArray) -> FloatArray:
    """Return the maximum a posteriori logarithms of the hyperparameters, from `start`."""
    bounds = [(-_BOUND, _BOUND)] * len(start)
    found = minimize(likelihood, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": ITERATIONS})
    return np.asarray(found.x)

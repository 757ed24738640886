"""The Gaussian process conditioned on the known tasks, and its posterior for a task's configurations."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from scipy.linalg import cho_factor, cho_solve, cholesky, solve_triangular

from services.advisor.core.arrays import FloatArray, IntArray
from services.advisor.models.gp.kernel import VAGUE, ConfigurationCovariance, Design, Similarity, TaskCovariance
from services.advisor.models.gp.likelihood import JITTER, MarginalLikelihood

EXACT: Final = 1e-6
"""Noise variance of a row whose own outcome is known: rounding only."""


@dataclass(frozen=True, slots=True, eq=False)
class Posterior:
    """A joint normal distribution of logarithms, one per row of a question about one task."""

    mean: FloatArray
    covariance: FloatArray
    """Of observations: the diagonal includes the noise."""

    def conditioned_on(self, rows: IntArray, values: FloatArray, noise: float) -> Posterior:
        """Return the posterior conditioned on some rows' logarithms, up to a noise variance."""
        if not len(rows):
            return self
        within = self.covariance[np.ix_(rows, rows)] + (noise + JITTER) * np.eye(len(rows))
        across = self.covariance[:, rows]
        factor = cho_factor(within, lower=True)
        mean = self.mean + across @ cho_solve(factor, values - self.mean[rows])
        return Posterior(mean, self.covariance - across @ cho_solve(factor, across.T))

    def standard_deviation(self) -> FloatArray:
        """Return standard deviations, shape ``(rows,)``."""
        return np.sqrt(np.maximum(np.diag(self.covariance), JITTER))

    def shifted(self, by: FloatArray) -> Posterior:
        """Return the posterior with its means shifted."""
        return replace(self, mean=self.mean + by)

    def samples(self, count: int, seed: int) -> FloatArray:
        """Return samples in antithetic pairs, shape ``(count, rows)``."""
        half = np.random.default_rng(seed).standard_normal((count // 2, len(self.mean)))
        root = _root(self.covariance)
        return np.asarray(self.mean + np.concatenate([half, -half]) @ root.T)


def _root(covariance: FloatArray) -> FloatArray:
    """Return a matrix whose square is the covariance, whose smallest eigenvalues may have been rounded below 0."""
    values, vectors = np.linalg.eigh(covariance)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))


@dataclass(frozen=True, slots=True, eq=False)
class GaussianProcess:
    """A Gaussian process conditioned on training rows."""

    design: Design
    value: dict[str, float]
    """Hyperparameters by name."""
    lower: FloatArray
    """Cholesky factor of the known rows' covariance."""
    weights: FloatArray
    """Its inverse times the targets."""

    def posterior(self, asked: Design, extra_level: float = 0.0) -> Posterior:
        """Return the posterior of new rows.

        Args:
            asked: Rows of one task.
            extra_level: Variance of the task's level, if it has no local run.
        """
        cross = self._between(asked, self.design)
        half = solve_triangular(self.lower, cross.T, lower=True, check_finite=False)
        covariance = self._between(asked, asked) - half.T @ half + extra_level
        covariance[np.diag_indices_from(covariance)] += asked.noise(self.value)
        return Posterior(cross @ self.weights, covariance)

    def marginals(self, asked: Design, known: IntArray, extra_level: float = 0.0) -> tuple[FloatArray, FloatArray]:
        """Return each row's mean and standard deviation, conditioned on ratio 1 of the rows `known`.

        Equals `posterior` and `Posterior.conditioned_on`, without the covariances of all pairs.
        """
        cross = self._between(asked, self.design)
        half = solve_triangular(self.lower, cross.T, lower=True, check_finite=False)
        noise = asked.noise(self.value)
        variance = self._variances(asked) - (half**2).sum(axis=0) + extra_level + noise
        mean = cross @ self.weights
        if len(known):
            across = self._between(asked, asked.part(known)) - half.T @ half[:, known] + extra_level
            across[known, np.arange(len(known))] += noise[known]
            factor = cho_factor(across[known] + (EXACT + JITTER) * np.eye(len(known)), lower=True)
            mean = mean - across @ cho_solve(factor, mean[known])
            variance = variance - (across * cho_solve(factor, across.T).T).sum(axis=1)
        return mean, np.sqrt(np.maximum(variance, JITTER))

    def _variances(self, asked: Design) -> FloatArray:
        """Return prior variances without noise, shape ``(rows,)``."""
        kernel = asked.kernel
        configuration = ConfigurationCovariance.of(
            Similarity.of_itself(kernel.configurations, asked.configurations), self.value
        )
        task = TaskCovariance.of(Similarity.of_itself(kernel.tasks, asked.tasks), self.value)
        common = configuration.common[asked.configuration_of]
        kinds = 1.0 + self.value["common.kind"] * task.kind[asked.task_of]
        return np.asarray(
            VAGUE + common * kinds + configuration.particular[asked.configuration_of] * task.total[asked.task_of]
        )

    def _between(self, a: Design, b: Design) -> FloatArray:
        """Return covariances without noise, shape ``(rows of a, rows of b)``."""
        kernel = self.design.kernel
        configuration = ConfigurationCovariance.of(
            Similarity.between(kernel.configurations, a.configurations, b.configurations), self.value
        )
        task = TaskCovariance.of(Similarity.between(kernel.tasks, a.tasks, b.tasks), self.value)
        kind, total = (_spread(one, a.task_of, b.task_of) for one in (task.kind, task.total))
        common, particular = (
            _spread(one, a.configuration_of, b.configuration_of)
            for one in (configuration.common, configuration.particular)
        )
        return np.asarray(VAGUE + common * (1.0 + self.value["common.kind"] * kind) + particular * total)


def _spread(matrix: FloatArray, left: IntArray, right: IntArray) -> FloatArray:
    """Return a matrix of points expanded to rows; for a single point on the left, one row for all."""
    return np.asarray(matrix[:, right] if len(matrix) == 1 else matrix[left][:, right])


def fit_process(design: Design, targets: FloatArray, logarithms: FloatArray) -> GaussianProcess:
    """Return the process conditioned on the rows."""
    likelihood = MarginalLikelihood(design, targets)
    parts = likelihood.covariances(logarithms)
    lower = likelihood.factor(parts)
    return GaussianProcess(design, parts.value, lower, cho_solve((lower, True), targets, check_finite=False))


def left_out(process: GaussianProcess, targets: FloatArray, rows: IntArray) -> Posterior:
    """Return the posterior of some training rows with them left out, as errors: outcome minus mean.

    In closed form from the inverse of the covariance, so that leaving out every task in turn costs one factorisation.
    """
    unit = np.eye(len(targets))[:, rows]
    columns = cho_solve((process.lower, True), unit, check_finite=False)
    block = columns[rows]
    root = cholesky(block + JITTER * np.eye(len(rows)), lower=True)
    covariance = cho_solve((root, True), np.eye(len(rows)))
    return Posterior(covariance @ (columns.T @ targets), covariance)

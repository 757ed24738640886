"""The process after it has seen the known tasks, and what it says of a task's configurations."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from scipy.linalg import cho_factor, cho_solve, cholesky, solve_triangular

from services.advisor.core.arrays import FloatArray, IntArray
from services.advisor.core.ours.kernel import ConfigurationCovariance, Design, Likeness, TaskCovariance
from services.advisor.core.ours.likelihood import JITTER, MarginalLikelihood

FREEDOM: Final = 4.0
"""Degrees of freedom of the noise: a run that was disturbed does not bend its neighbours."""
REWEIGHTINGS: Final = 3


@dataclass(frozen=True, slots=True, eq=False)
class Beliefs:
    """A joint normal distribution of logarithms, one per row of a question about one task."""

    mean: FloatArray
    covariance: FloatArray
    """Of what a run would show: the noise is in the diagonal."""

    def given(self, rows: IntArray, values: FloatArray, noise: float) -> Beliefs:
        """Return the beliefs after some rows' logarithms became known, up to a noise variance."""
        if not len(rows):
            return self
        within = self.covariance[np.ix_(rows, rows)] + (noise + JITTER) * np.eye(len(rows))
        across = self.covariance[:, rows]
        factor = cho_factor(within, lower=True)
        mean = self.mean + across @ cho_solve(factor, values - self.mean[rows])
        return Beliefs(mean, self.covariance - across @ cho_solve(factor, across.T))

    def deviation(self) -> FloatArray:
        """Return standard deviations, shape ``(rows,)``."""
        return np.sqrt(np.maximum(np.diag(self.covariance), JITTER))

    def moved(self, by: FloatArray) -> Beliefs:
        """Return the beliefs of the logarithms plus something that is known."""
        return replace(self, mean=self.mean + by)

    def draws(self, count: int, seed: int) -> FloatArray:
        """Return samples in antithetic pairs, shape ``(count, rows)``."""
        half = np.random.default_rng(seed).standard_normal((count // 2, len(self.mean)))
        root = _root(self.covariance)
        return np.asarray(self.mean + np.concatenate([half, -half]) @ root.T)


def _root(covariance: FloatArray) -> FloatArray:
    """Return a matrix whose square is the covariance, whose smallest eigenvalues may have been rounded below 0."""
    values, vectors = np.linalg.eigh(covariance)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))


@dataclass(frozen=True, slots=True, eq=False)
class Process:
    """What was learned."""

    design: Design
    value: dict[str, float]
    """Hyperparameters by name."""
    lower: FloatArray
    """Cholesky factor of the known rows' covariance."""
    weights: FloatArray
    """Its inverse times the targets."""

    @property
    def noise(self) -> float:
        """Variance of the logarithm of repeated runs."""
        return self.value["noise"]

    def beliefs(self, asked: Design, extra_level: float = 0.0) -> Beliefs:
        """Return what is to be expected of the rows asked about.

        Args:
            asked: Rows of one task.
            extra_level: Variance of the task's level, where it has no local run.
        """
        kernel, known = self.design.kernel, self.design
        across = ConfigurationCovariance.of(
            Likeness.between(kernel.configurations, asked.configurations, known.configurations), self.value
        )
        tasks = TaskCovariance.of(Likeness.between(kernel.tasks, asked.tasks, known.tasks), self.value).total
        pairs = np.ix_(asked.configuration_of, known.configuration_of)
        cross = across.common[pairs] + across.particular[pairs] * tasks[np.ix_(asked.task_of, known.task_of)]
        half = solve_triangular(self.lower, cross.T, lower=True, check_finite=False)
        covariance = self._prior(asked) - half.T @ half + extra_level
        covariance[np.diag_indices_from(covariance)] += self.noise
        return Beliefs(cross @ self.weights, covariance)

    def _prior(self, asked: Design) -> FloatArray:
        kernel = self.design.kernel
        own = ConfigurationCovariance.of(
            Likeness.between(kernel.configurations, asked.configurations, asked.configurations), self.value
        )
        tasks = TaskCovariance.of(Likeness.between(kernel.tasks, asked.tasks, asked.tasks), self.value).total
        pairs = np.ix_(asked.configuration_of, asked.configuration_of)
        return np.asarray(own.common[pairs] + own.particular[pairs] * tasks[np.ix_(asked.task_of, asked.task_of)])


def learned(design: Design, targets: FloatArray, logarithms: FloatArray) -> tuple[Process, FloatArray]:
    """Return the process after the rows, and the factors of their noise: far-off rows count less (Student's t)."""
    spread = np.ones(len(targets))
    for _ in range(REWEIGHTINGS):
        likelihood = MarginalLikelihood(design, targets, spread)
        parts = likelihood.covariances(logarithms)
        lower = likelihood.factor(parts)
        inverse = cho_solve((lower, True), np.eye(len(lower)), check_finite=False)
        # Leaving one row out, in closed form (Rasmussen and Williams 5.4.2): residual over its standard deviation.
        off = spread * (inverse @ targets) ** 2 / np.diag(inverse)
        spread = np.maximum(1.0, (FREEDOM + off) / (FREEDOM + 1.0))
    likelihood = MarginalLikelihood(design, targets, spread)
    parts = likelihood.covariances(logarithms)
    lower = likelihood.factor(parts)
    weights = cho_solve((lower, True), targets, check_finite=False)
    return Process(design, parts.value, lower, weights), spread


def left_out(process: Process, targets: FloatArray, rows: IntArray) -> Beliefs:
    """Return what would be believed of some known rows, had they not been seen, as errors: outcome minus mean.

    In closed form from the inverse of the covariance, so that leaving out every task in turn costs one factorisation.
    """
    unit = np.eye(len(targets))[:, rows]
    columns = cho_solve((process.lower, True), unit, check_finite=False)
    block = columns[rows]
    root = cholesky(block + JITTER * np.eye(len(rows)), lower=True)
    covariance = cho_solve((root, True), np.eye(len(rows)))
    return Beliefs(covariance @ (columns.T @ targets), covariance)

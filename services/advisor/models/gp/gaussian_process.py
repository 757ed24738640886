"""The Gaussian process: marginal likelihood with its gradient in closed form, conditioning, posterior of a question.

Hyperparameters are those of maximum a posteriori.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve, cholesky, solve_triangular
from scipy.optimize import minimize

from services.advisor.core.arrays import FloatArray, IntArray
from services.advisor.models.gp.kernel import VAGUE, ConfigurationCovariance, Design, Similarity, TaskCovariance

JITTER: Final = 1e-8
ITERATIONS: Final = 40
_BOUND: Final = 12.0
"""Of the logarithms."""
_UNLIKELY: Final = 1e12
"""The value where there is none; a search turns back from it."""
EXACT: Final = 1e-6
"""Noise variance of a row whose own outcome is known: rounding only."""


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
            value,
            configuration,
            task,
            _pairs(configuration.common, self._design.configuration_of),
            _pairs(1.0 + value["common.kind"] * task.kind, self._design.task_of),
            _pairs(configuration.particular, self._design.configuration_of),
            _pairs(task.total, self._design.task_of),
        )

    def factor(self, parts: Covariances) -> FloatArray:
        """Return the lower Cholesky factor of the rows' covariance."""
        total = VAGUE + parts.common * parts.kinds + parts.between_tasks * parts.particular
        total[np.diag_indices_from(total)] += self._design.noise(parts.value) + JITTER
        return np.asarray(cholesky(total, lower=True, overwrite_a=True, check_finite=False))

    def __call__(self, logarithms: FloatArray) -> tuple[float, FloatArray]:
        """Return the value and its gradient; where the covariance has no factor in floating point, no likely one."""
        parts = self.covariances(logarithms)
        try:
            lower = self.factor(parts)
        except LinAlgError:  # far from the prior's mean, which the first step of a search may try
            return _UNLIKELY, np.zeros_like(logarithms)
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


@dataclass(frozen=True, slots=True, eq=False)
class KnownRows:
    """Rows of a question whose outcomes are known, and how the level of its task applies to each of its rows."""

    rows: IntArray
    values: FloatArray
    """Logarithmic ratios, shape ``(known rows,)``."""
    noise: FloatArray
    """Variances of `values`, beside the process' own noise; same shape."""
    level: FloatArray
    """Standard deviation of the task's level, shape ``(rows,)``: 0 for a row that defines it."""


@dataclass(frozen=True, slots=True, eq=False)
class Posterior:
    """A joint normal distribution of logarithms, one per row of a question about one task."""

    mean: FloatArray
    covariance: FloatArray
    """Of observations: the diagonal includes the noise."""

    def conditioned_on(self, rows: IntArray, values: FloatArray, noise: float | FloatArray) -> Posterior:
        """Return the posterior conditioned on some rows' logarithms, up to noise of one variance or one for each."""
        if not len(rows):
            return self
        within = self.covariance[np.ix_(rows, rows)] + (noise + JITTER) * np.eye(len(rows))
        across = self.covariance[:, rows]
        factor = cho_factor(within, lower=True)
        mean = self.mean + across @ cho_solve(factor, values - self.mean[rows])
        return Posterior(mean, self.covariance - across @ cho_solve(factor, across.T))

    def beside(self, row: int) -> tuple[FloatArray, FloatArray]:
        """Return means and standard deviations of all other rows less this one, shape ``(rows - 1,)``."""
        rest = np.delete(np.arange(len(self.mean)), row)
        variance = np.diag(self.covariance)
        spread = variance[rest] + variance[row] - 2.0 * self.covariance[rest, row]
        return self.mean[rest] - self.mean[row], np.sqrt(np.maximum(spread, JITTER))

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

    def posterior(self, asked: Design, known: KnownRows | None = None) -> Posterior:
        """Return the joint posterior of new rows of one task, conditioned on those that are known."""
        cross = self._between(asked, self.design)
        half = solve_triangular(self.lower, cross.T, lower=True, check_finite=False)
        covariance = self._between(asked, asked) - half.T @ half
        covariance[np.diag_indices_from(covariance)] += asked.noise(self.value)
        if known is None:
            return Posterior(cross @ self.weights, covariance)
        posterior = Posterior(cross @ self.weights, covariance + np.outer(known.level, known.level))
        return posterior.conditioned_on(known.rows, known.values, known.noise)

    def marginals(self, asked: Design, given: KnownRows) -> tuple[FloatArray, FloatArray]:
        """Return means and standard deviations as `posterior`, without the covariances of all pairs of rows."""
        cross = self._between(asked, self.design)
        half = solve_triangular(self.lower, cross.T, lower=True, check_finite=False)
        noise = asked.noise(self.value)
        variance = self._variances(asked) - (half**2).sum(axis=0) + given.level**2 + noise
        mean = cross @ self.weights
        if len(known := given.rows):
            across = self._between(asked, asked.part(known)) - half.T @ half[:, known]
            across += np.outer(given.level, given.level[known])
            across[known, np.arange(len(known))] += noise[known]
            factor = cho_factor(across[known] + np.diag(given.noise + JITTER), lower=True)
            mean = mean + across @ cho_solve(factor, given.values - mean[known])
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

"""Kernel: covariance over tasks and configurations.

The logarithm of a job's duration over its task's local run is

    ``r(t, c) = m(c) + g(k(t), c) + f(t, c) + e``

with ``m``, common to all tasks, a Gaussian process over configurations; ``g`` the same for tasks of one kind (if all
known tasks are of one kind the data do not determine how another differs: the prior does); ``f``, particular to a task,
a process over tasks and configurations with covariance ``K_T(t, t') K_F(c, c')``; and noise ``e`` with a relative part
and one in seconds, such as start-up, by which short jobs are noisier. Without ``f`` the posterior of ``m`` ranks
configurations by their mean logarithmic ratio, shrunk for few tasks: mean ranking is that special case, and the
marginal likelihood determines the weight of ``f``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from services.advisor.core.arrays import FloatArray, IntArray
from services.advisor.models.gp.space import CATEGORY, Points, Space

VAGUE: Final = 25.0
"""Prior variance of the level common to all tasks: a vague prior."""

_PRIOR_MEANS: Final = {
    "length": 1.0,
    "common.smooth": 0.1,
    "common.own": 0.01,
    "common.linear": 0.1,
    "particular.level": 0.1,
    "particular.smooth": 0.05,
    "particular.linear": 0.02,
    "common.kind": 0.3,
    "task.kind": 1.0,
    "task.variant": 0.1,
    "task.linear": 0.1,
    "task.rbf": 0.3,
    "task.length": 1.0,
    "noise.relative": 0.01,
    "noise.absolute": 0.1,
}
"""Medians of the hyperparameters' log-normal priors: variances of logarithms, and lengths in deviations."""

_PRIOR_DEVIATIONS: Final = {"length": 0.7, "task.length": 0.7, "common.kind": 0.7, "task.kind": 0.7}
_PRIOR_DEVIATION: Final = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """The kernel's form; hyperparameters are passed as logarithms in the order of `names`."""

    configurations: Space
    tasks: Space

    @property
    def names(self) -> tuple[str, ...]:
        """Return the hyperparameters in order."""
        groups = self.configurations.groups
        return (
            *(f"length.{one}" for one in groups),
            "common.smooth",
            "common.own",
            "common.kind",
            *(f"common.linear.{one}" for one in groups),
            "particular.level",
            "particular.smooth",
            *(f"particular.linear.{one}" for one in groups),
            "task.variant",
            "task.kind",
            "task.linear",
            "task.rbf",
            "task.length",
            "noise.relative",
            "noise.absolute",
        )

    def prior(self) -> tuple[FloatArray, FloatArray]:
        """Return means and standard deviations of the logarithms: weakly informative."""
        kinds = [next(kind for kind in _PRIOR_MEANS if name.startswith(kind)) for name in self.names]
        means = np.log(np.array([_PRIOR_MEANS[kind] for kind in kinds]))
        return means, np.array([_PRIOR_DEVIATIONS.get(kind, _PRIOR_DEVIATION) for kind in kinds])

    def values(self, logarithms: FloatArray) -> dict[str, float]:
        """Return the hyperparameters by name."""
        return {name: float(value) for name, value in zip(self.names, np.exp(logarithms), strict=True)}


@dataclass(frozen=True, slots=True, eq=False)
class Similarity:
    """Distances and products between two sets of points, independent of hyperparameters."""

    groups: tuple[str, ...]
    squared: tuple[FloatArray, ...]
    """Per group: mean squared distances of coordinates, shape ``(a, b)``."""
    products: tuple[FloatArray, ...]
    """Per group: mean products of coordinates."""
    same: FloatArray
    """1 if both points have the same name."""
    identical: FloatArray
    """1 if they have the same name and coordinates."""

    @staticmethod
    def between(space: Space, a: Points, b: Points) -> Similarity:
        """Compare every point of `a` with every point of `b`."""
        squared, products = [], []
        for columns, count in zip(space.members(), space.sources(), strict=True):
            left, right = a.coordinates[:, columns], b.coordinates[:, columns]
            product = left @ right.T
            norms = (left**2).sum(1)[:, None] + (right**2).sum(1)[None, :]
            squared.append(np.maximum(norms - 2.0 * product, 0.0) / count)
            products.append(product / count)
        same = (a.names[:, None] == b.names[None, :]).astype(np.float64)
        apart = np.sum(squared, axis=0) if squared else np.zeros_like(same)
        return Similarity(space.groups, tuple(squared), tuple(products), same, same * (apart < 1e-12))

    @staticmethod
    def of_itself(space: Space, points: Points) -> Similarity:
        """Compare every point with itself only: all arrays have shape ``(points,)``."""
        alone, ones = np.zeros(len(points)), np.ones(len(points))
        pairs = zip(space.members(), space.sources(), strict=True)
        products = tuple((points.coordinates[:, columns] ** 2).sum(1) / count for columns, count in pairs)
        return Similarity(space.groups, (alone,) * len(products), products, ones, ones)

    @property
    def kind(self) -> FloatArray:
        """Share of equal categories; for tasks without categories, whether they are the same task."""
        return self.products[self.groups.index(CATEGORY)] if CATEGORY in self.groups else self.same

    @property
    def distance(self) -> FloatArray:
        """Mean over the groups of the squared distances."""
        return np.asarray(np.mean(self.squared, axis=0)) if self.squared else np.zeros_like(self.same)

    @property
    def product(self) -> FloatArray:
        """Mean over the groups of the products."""
        return np.asarray(np.mean(self.products, axis=0)) if self.products else np.zeros_like(self.same)


@dataclass(frozen=True, slots=True, eq=False)
class ConfigurationCovariance:
    """Covariances between two sets of configurations."""

    smooth: FloatArray
    common: FloatArray
    """Of ``m``, without the level that all tasks share."""
    particular: FloatArray
    """``K_F``."""

    @staticmethod
    def of(similarity: Similarity, value: dict[str, float]) -> ConfigurationCovariance:
        """Evaluate at hyperparameters by name."""
        exponent = np.zeros_like(similarity.same)
        for group, squared in zip(similarity.groups, similarity.squared, strict=True):
            exponent += squared / (2.0 * value[f"length.{group}"] ** 2)
        smooth = np.exp(-exponent)
        common = value["common.smooth"] * smooth + value["common.own"] * similarity.same
        particular = value["particular.level"] + value["particular.smooth"] * smooth
        for group, product in zip(similarity.groups, similarity.products, strict=True):
            common += value[f"common.linear.{group}"] * product
            particular += value[f"particular.linear.{group}"] * product
        return ConfigurationCovariance(smooth, common, particular)


@dataclass(frozen=True, slots=True, eq=False)
class TaskCovariance:
    """``K_T`` between two sets of tasks: 1 for the same task, more for the same variant, less for a similar one."""

    rbf: FloatArray
    """Squared exponential kernel over the coordinates."""
    kind: FloatArray
    """As `Similarity.kind`."""
    by_coordinates: FloatArray
    """Covariance of tasks of different kinds."""
    total: FloatArray

    @staticmethod
    def of(similarity: Similarity, value: dict[str, float]) -> TaskCovariance:
        """Evaluate at hyperparameters by name."""
        rbf = np.exp(-similarity.distance / (2.0 * value["task.length"] ** 2))
        by_coordinates = value["task.linear"] * similarity.product + value["task.rbf"] * rbf
        total = (
            similarity.same
            + value["task.variant"] * similarity.identical
            + by_coordinates * (1.0 + value["task.kind"] * similarity.kind)
        )
        return TaskCovariance(rbf, similarity.kind, by_coordinates, total)


@dataclass(frozen=True, slots=True, eq=False)
class Design:
    """The configuration and the task of each row."""

    kernel: Kernel
    configurations: Points
    tasks: Points
    configuration_of: IntArray
    task_of: IntArray

    duration_s: FloatArray
    """Approximate duration of each row's job, which divides its noise in seconds."""

    def __len__(self) -> int:
        return len(self.task_of)

    def part(self, rows: IntArray) -> Design:
        """Return some rows, with only their configurations and tasks."""
        configurations, configuration_of = np.unique(self.configuration_of[rows], return_inverse=True)
        tasks, task_of = np.unique(self.task_of[rows], return_inverse=True)
        return Design(
            self.kernel,
            Points(self.configurations.names[configurations], self.configurations.coordinates[configurations]),
            Points(self.tasks.names[tasks], self.tasks.coordinates[tasks]),
            configuration_of.astype(np.int64),
            task_of.astype(np.int64),
            self.duration_s[rows],
        )

    def noise(self, value: dict[str, float]) -> FloatArray:
        """Return the noise variance of each row's logarithm, from hyperparameters by name."""
        return value["noise.relative"] + value["noise.absolute"] / self.duration_s**2

"""Workload-agnostic baselines: rankings without any feature of the task.

The mean ranking alone explains nearly all of the area under the ROC curve on left-out tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from schemas.predictions import Objective
from services.advisor.core.arrays import FloatArray
from services.advisor.core.table import Table
from tests.bench.evaluation.labels import ranks
from tests.bench.evaluation.rng import task_rng


@dataclass(frozen=True, slots=True)
class FittedMeanRanking:
    """Mean logarithmic rank of each configuration over the training tasks."""

    mean_log_rank: Mapping[str, float]
    neutral: float
    """Of a configuration without training rows."""

    def score(self, table: Table) -> FloatArray:
        """Return the negative mean log rank by configuration key."""
        return np.array([-self.mean_log_rank.get(str(key), self.neutral) for key in table.configuration_key])


@dataclass(frozen=True, slots=True)
class MeanRanking:
    """Ranks configurations by their mean logarithmic rank on the known tasks, by configuration key only."""

    target: Objective
    name: str = "mean ranking"

    def fit(self, table: Table, *, seed: int) -> FittedMeanRanking:
        """Rank each task's completed configurations; repeats count once."""
        del seed
        rows = table.select(table.completed(self.target)).without_repeats()
        found: dict[str, list[float]] = {}
        for task in np.unique(rows.task):
            mine = np.flatnonzero(rows.task == task)
            for row, rank in zip(mine, ranks(rows.value(self.target)[mine]), strict=True):
                found.setdefault(str(rows.configuration_key[row]), []).append(float(np.log(rank)))
        means = {key: float(np.mean(values)) for key, values in found.items()}
        return FittedMeanRanking(means, float(np.mean(list(means.values()))) if means else 0.0)


@dataclass(frozen=True, slots=True)
class _ByPrice:
    def score(self, table: Table) -> FloatArray:
        """Return the negative dollars per hour of all machines together; jobs without a price come last."""
        return _last_where_unknown(-(table.price_usd_per_hour * table.workers))


@dataclass(frozen=True, slots=True)
class CheapestHour:
    """The cheapest machines per hour, all workers together."""

    target: Objective
    name: str = "cheapest $/h"

    def fit(self, table: Table, *, seed: int) -> _ByPrice:
        """Return the ranking; it has no parameters."""
        del table, seed
        return _ByPrice()


@dataclass(frozen=True, slots=True)
class _BySize:
    def score(self, table: Table) -> FloatArray:
        """Return the vCPUs of all machines together, or their price if vCPUs are unknown."""
        vcpu = table.feature("config.vcpu") * table.workers
        price = table.price_usd_per_hour * table.workers
        return _last_where_unknown(vcpu if np.isfinite(vcpu).any() else price)


@dataclass(frozen=True, slots=True)
class LargestMachine:
    """The most vCPUs, all workers together."""

    target: Objective
    name: str = "largest machine"

    def fit(self, table: Table, *, seed: int) -> _BySize:
        """Return the ranking; it has no parameters."""
        del table, seed
        return _BySize()


@dataclass(frozen=True, slots=True)
class _ByChance:
    seed: int

    def score(self, table: Table) -> FloatArray:
        """Return a random score for each job, the same under the same seed."""
        return task_rng(self.seed, table).random(len(table))


@dataclass(frozen=True, slots=True)
class RandomChoice:
    """A random configuration."""

    target: Objective
    name: str = "random"

    def fit(self, table: Table, *, seed: int) -> _ByChance:
        """Return the ranking; it has no parameters."""
        del table
        return _ByChance(seed)


def _last_where_unknown(scores: FloatArray) -> FloatArray:
    known = np.isfinite(scores)
    return np.asarray(np.where(known, scores, scores[known].min(initial=0.0) - 1.0))

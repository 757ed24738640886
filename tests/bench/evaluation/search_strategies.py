"""Searches with k runs in the cloud: Bayesian optimisation, Ernest, chance, and the first k of a ranking."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import Matern, WhiteKernel

from schemas.predictions import Objective
from services.advisor.core.arrays import FloatArray, IntArray
from services.advisor.core.encoder import CONFIGURATION
from services.advisor.core.table import SECONDS_PER_HOUR, Table
from services.advisor.models.baselines.feature_preprocessing import Preprocessing
from services.advisor.models.baselines.regressor_model import Regressor
from tests.bench.evaluation.ernest import fit_terms, parallelism, terms
from tests.bench.evaluation.gp import expected_improvement
from tests.bench.evaluation.protocols import FittedRanker, Ranker, best_measured, ranking_of, remaining
from tests.bench.evaluation.rng import task_rng

FAILED_FACTOR: Final = 2.0
"""A run that failed counts as this many times the worst that was measured."""
_LENGTH: Final = 2.0
_CATEGORY_WEIGHT: Final = 0.3
"""Of a category against a number's standard deviation. Length and weight are those of 14 tried that served the search
best on multicloud_ibm and trimtuner: the comparison favours it."""
_NOISES: Final = (1e-4, 1e-2, 1e-1)


def log_values(values: FloatArray) -> FloatArray:
    """Return logarithms; failed runs as `FAILED_FACTOR` times the worst."""
    worst = np.nanmax(values) * FAILED_FACTOR if np.isfinite(values).any() else 1.0
    return np.asarray(np.log(np.where(np.isnan(values), worst, values)))


class _BestMeasured:
    def choose(self, table: Table, measured: IntArray, values: FloatArray) -> int:
        """Return the best measured row."""
        del table
        return best_measured(measured, values)


@dataclass(frozen=True, slots=True)
class FittedBayesian(_BestMeasured):
    """Gaussian process over the configuration's features and expected improvement."""

    seed: int
    first: int

    def propose(self, table: Table, measured: IntArray, values: FloatArray) -> int:
        """Return the first runs far from each other, then the row of most expected improvement."""
        free, features = remaining(table, measured), _space(table)
        if not len(measured):
            return int(task_rng(self.seed, table).choice(free))
        if len(measured) < self.first:
            gaps = np.linalg.norm(features[free][:, None] - features[measured][None], axis=2).min(axis=1)
            return int(free[int(np.argmax(gaps))])
        return int(free[int(np.argmax(_improvement(features[measured], log_values(values), features[free])))])


def _space(table: Table) -> FloatArray:
    """Configurations as points of about unit length: numbers of deviation 1, categories of `_CATEGORY_WEIGHT`."""
    preprocessing = Preprocessing.fit(table, (CONFIGURATION,))
    numeric = preprocessing.logarithmic > 0
    categories = _CATEGORY_WEIGHT * table.features[:, preprocessing.kept]
    points = np.where(numeric, preprocessing.apply(table), categories)
    return np.asarray(points / np.sqrt(numeric.sum() + 2 * _CATEGORY_WEIGHT**2))


def _improvement(known: FloatArray, logs: FloatArray, asked: FloatArray) -> FloatArray:
    """Of the logarithm, for each asked point; the noise is the likeliest of a few, so nothing is random."""
    middle, scale = logs.mean(), max(float(logs.std()), 1e-3)
    standard = (logs - middle) / scale
    fits = [
        GaussianProcessRegressor(Matern(_LENGTH, nu=2.5) + WhiteKernel(noise), optimizer=None).fit(known, standard)
        for noise in _NOISES
    ]
    likeliest = max(fits, key=lambda one: float(one.log_marginal_likelihood_value_))
    mean, deviation = likeliest.predict(asked, return_std=True)
    return expected_improvement(mean, np.maximum(deviation, 1e-9), float(standard.min()))


@dataclass(frozen=True, slots=True)
class Bayesian:
    """CherryPick-like: it learns nothing of other tasks, and everything of the asked one by running it."""

    target: Objective
    name: str = "bayesian"
    first: int = 3
    """Runs before the process is asked."""

    def fit(self, table: Table, *, seed: int) -> FittedBayesian:
        """Nothing to learn."""
        del table
        return FittedBayesian(seed, self.first)


@dataclass(frozen=True, slots=True)
class _FittedChance(_BestMeasured):
    seed: int

    def propose(self, table: Table, measured: IntArray, values: FloatArray) -> int:
        """Return any row that was not run."""
        del values
        return int(task_rng(self.seed, table, len(measured)).choice(remaining(table, measured)))


@dataclass(frozen=True, slots=True)
class RandomSearch:
    """Runs any k configurations and keeps the best."""

    target: Objective
    name: str = "random search"

    def fit(self, table: Table, *, seed: int) -> _FittedChance:
        """Nothing to learn."""
        del table
        return _FittedChance(seed)


@dataclass(frozen=True, slots=True)
class _FittedErnestSearch:
    target: Objective
    seed: int

    def _estimates(self, table: Table, measured: IntArray, values: FloatArray) -> FloatArray:
        """Seconds or dollars of every row by one law over all machines' vCPUs."""
        known = np.isfinite(values)
        rows, time_s = measured[known], values[known]
        dollars = table.price_usd_per_hour * table.workers / SECONDS_PER_HOUR
        per_unit = dollars if self.target is Objective.COST else np.ones(len(table))
        design = terms(parallelism(table))
        if not len(rows):
            return np.full(len(table), np.nan)
        return np.asarray(design @ fit_terms(design[rows], time_s / per_unit[rows]) * per_unit)

    def propose(self, table: Table, measured: IntArray, values: FloatArray) -> int:
        """Return a row whose parallelism is furthest from what was run: few points shall span the law."""
        del values
        free = remaining(table, measured)
        size = np.log(parallelism(table))
        if not len(measured):
            return int(task_rng(self.seed, table).choice(free))
        gaps = np.abs(size[free][:, None] - size[measured][None]).min(axis=1)
        return int(free[int(np.argmax(gaps))])

    def choose(self, table: Table, measured: IntArray, values: FloatArray) -> int:
        """Return the row that the law likes best."""
        estimates = self._estimates(table, measured, values)
        if not np.isfinite(estimates).any():
            return best_measured(measured, values)
        return int(np.nanargmin(estimates))


@dataclass(frozen=True, slots=True)
class ErnestSearch:
    """Runs k configurations of different size and trusts the fitted law."""

    target: Objective
    name: str = "ernest search"

    def fit(self, table: Table, *, seed: int) -> _FittedErnestSearch:
        """Nothing to learn of other tasks."""
        del table
        return _FittedErnestSearch(self.target, seed)


@dataclass(frozen=True, slots=True)
class _FittedFirstOf(_BestMeasured):
    ranking: FittedRanker

    def propose(self, table: Table, measured: IntArray, values: FloatArray) -> int:
        """Return the best-ranked row that was not run."""
        del values
        free = remaining(table, measured)
        return int(free[int(np.argmax(self.ranking.score(table)[free]))])


@dataclass(frozen=True, slots=True)
class FirstOf:
    """Runs the k first of a ranking and keeps the best."""

    ranker: Ranker | Regressor

    @property
    def name(self) -> str:
        """The ranking's, and what is done with it."""
        return f"first of {self.ranker.name}"

    @property
    def target(self) -> Objective:
        """The ranking's."""
        return self.ranker.target

    def fit(self, table: Table, *, seed: int) -> _FittedFirstOf:
        """Learn what the ranking learns."""
        return _FittedFirstOf(ranking_of(self.ranker.fit(table, seed=seed)))

"""The served Gaussian process behind the evaluation's protocols: predicted quantity, order of medians, search.

Dollars are price x machines x time x the fitted cost ratio, as the service answers (`services.advisor.core.answers`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.special import ndtr

from schemas.predictions import Objective
from services.advisor.core.arrays import FloatArray, IntArray
from services.advisor.core.table import SECONDS_PER_HOUR, Table
from services.advisor.models.gp.gaussian_process import EXACT
from services.advisor.models.gp.predictor import GpPredictor
from tests.bench.evaluation.protocols import best_measured, remaining, scores_of

_DENSITY: Final = float(1.0 / np.sqrt(2.0 * np.pi))


def expected_improvement(mean: FloatArray, deviation: FloatArray, best: float) -> FloatArray:
    """Return the expected improvement of each run over the smallest logarithm, shape ``(rows,)``; not negative.

    Args:
        mean: Of the logarithm of each run, shape ``(rows,)``.
        deviation: Positive, shape ``(rows,)``.
        best: Logarithm of the smallest measured value.
    """
    distance = (best - mean) / deviation
    return np.asarray(deviation * np.maximum(distance * ndtr(distance) + _DENSITY * np.exp(-0.5 * distance**2), 0.0))


@dataclass(frozen=True, slots=True)
class FittedGp:
    """A fitted predictor, for one objective."""

    predictor: GpPredictor
    target: Objective

    def _unit(self, table: Table) -> FloatArray:
        """Seconds or dollars per second of each row; NaN for a cost without a price."""
        if self.target is Objective.TIME:
            return np.ones(len(table))
        rate = table.price_usd_per_hour * table.workers / SECONDS_PER_HOUR
        return np.asarray(rate * self.predictor.cost_ratio.predict(table))

    def predict(self, table: Table) -> FloatArray:
        """Return medians."""
        return self.predictor.predict(table) * self._unit(table)

    def interval(self, table: Table, level: float) -> tuple[FloatArray, FloatArray]:
        """Return the ends of the central interval."""
        ends = self.predictor.quantiles(table, level) * self._unit(table)[:, None]
        return ends[:, 0], ends[:, 2]

    def feasible(self, table: Table) -> FloatArray:
        """Return the probability that each row runs at all."""
        return self.predictor.feasibility.probability(table)

    def score(self, table: Table) -> FloatArray:
        """Return negative logarithms of medians; rows without a cost come last."""
        return scores_of(self.predict(table))

    def propose(self, table: Table, measured: IntArray, values: FloatArray) -> int:
        """Return the row to run next: first the smallest median, then the largest expected improvement."""
        free, ran = remaining(table, measured), np.isfinite(values)
        if not ran.any():
            return int(free[int(np.argmax(self.score(table)[free]))])
        posterior = self.predictor.posterior(table).shifted(np.log(self._unit(table)))
        posterior = posterior.conditioned_on(measured[ran], np.log(values[ran]), EXACT)
        best = float(np.log(values[ran].min()))
        gain = expected_improvement(posterior.mean[free], posterior.standard_deviation()[free], best)
        return int(free[int(np.argmax(np.nan_to_num(gain)))])

    def choose(self, table: Table, measured: IntArray, values: FloatArray) -> int:
        """Return the row to use: the best measured one; if none finished, the best-scored other."""
        if np.isfinite(values).any() or len(measured) == len(table):
            return best_measured(measured, values)
        return self.propose(table, measured, values)


@dataclass(frozen=True, slots=True)
class Gp:
    """The service's default algorithm."""

    target: Objective
    name: str = "gp"

    def fit(self, table: Table, *, seed: int) -> FittedGp:
        """Fit to the finished rows."""
        return FittedGp(GpPredictor.fit(table, seed=seed), self.target)

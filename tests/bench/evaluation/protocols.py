"""Protocols of the evaluated models besides regressors: rankers and sequential searches.

An estimator is a small immutable description (its hyperparameters); `fit` returns the fitted one. All are deterministic
under their seed. Rows to predict have no outcomes (`Table.without_outcomes`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from schemas.predictions import Objective
from services.advisor.core.arrays import FloatArray, IntArray
from services.advisor.core.table import Table
from services.advisor.models.baselines.regressor_model import Fitted


@runtime_checkable
class FittedIntervals(Protocol):
    """A fitted regressor with prediction intervals."""

    def interval(self, table: Table, level: float) -> tuple[FloatArray, FloatArray]:
        """Return lower and upper ends that hold the outcome with probability `level`, each of shape ``(rows,)``."""
        ...


@runtime_checkable
class FittedCurves(Protocol):
    """A fitted model with training curves (thesis Figure 4.4)."""

    @property
    def curves(self) -> Mapping[str, FloatArray]:
        """Figures by name, such as ``training loss``, one element per epoch."""
        ...


@runtime_checkable
class FitsValidated(Protocol):
    """An estimator that evaluates validation rows during training, without learning from them."""

    def fit_validated(self, table: Table, validation: Table | None, *, seed: int) -> Fitted | FittedRanker:
        """Fit exactly as `fit` does."""
        ...


@runtime_checkable
class FittedFeasibility(Protocol):
    """A fitted model with a probability of feasibility."""

    def feasible(self, table: Table) -> FloatArray:
        """Return the probability that each row runs at all, shape ``(rows,)``."""
        ...


@runtime_checkable
class FittedRanker(Protocol):
    """A fitted ranker."""

    def score(self, table: Table) -> FloatArray:
        """Return scores, shape ``(rows,)``: higher is better within a task. No NaN."""
        ...


class Ranker(Protocol):
    """Orders a task's configurations."""

    @property
    def name(self) -> str:
        """As shown in tables."""
        ...

    @property
    def target(self) -> Objective:
        """The objective that is minimised."""
        ...

    def fit(self, table: Table, *, seed: int) -> FittedRanker:
        """Fit to the rows with a known outcome."""
        ...


class FittedSequential(Protocol):
    """A fitted search that runs one configuration of a task after the other."""

    def propose(self, table: Table, measured: IntArray, values: FloatArray) -> int:
        """Return the row of `table` (one task, without outcomes) to run next; not one of `measured`.

        Args:
            table: All candidates.
            measured: Rows that were run so far, in that order.
            values: Their seconds or dollars.
        """
        ...

    def choose(self, table: Table, measured: IntArray, values: FloatArray) -> int:
        """Return the row to use: the best measured one, or another that is predicted to be better."""
        ...


class Sequential(Protocol):
    """A search with k runs in the cloud."""

    @property
    def name(self) -> str:
        """As shown in tables."""
        ...

    @property
    def target(self) -> Objective:
        """The objective that is minimised."""
        ...

    def fit(self, table: Table, *, seed: int) -> FittedSequential:
        """Fit to the known tasks; a search that uses none ignores them."""
        ...


@dataclass(frozen=True, slots=True)
class RegressorRanking:
    """Ranking by a regressor: smaller predictions first, unknown ones last."""

    fitted: Fitted

    def score(self, table: Table) -> FloatArray:
        """Return the negative logarithm of the prediction."""
        return scores_of(self.fitted.predict(table))


def scores_of(predicted: FloatArray) -> FloatArray:
    """Return negative logarithms of predictions; unknown ones (NaN) come last."""
    known = np.isfinite(predicted)
    worst = predicted[known].max(initial=1.0) * 2.0
    return np.asarray(-np.log(np.maximum(np.where(known, predicted, worst), np.finfo(float).tiny)))


def ranking_of(fitted: Fitted | FittedRanker) -> FittedRanker:
    """Return a model's own ranking if it has one, else that of its predictions."""
    return fitted if isinstance(fitted, FittedRanker) else RegressorRanking(fitted)


def remaining(table: Table, measured: IntArray) -> IntArray:
    """Return the rows that a search has not run.

    Raises:
        ValueError: every row was run.
    """
    rows = np.setdiff1d(np.arange(len(table)), measured)
    if not len(rows):
        raise ValueError("every configuration was run")
    return rows


def best_measured(measured: IntArray, values: FloatArray) -> int:
    """Return the measured row of the smallest value; the first if all failed (NaN)."""
    return int(measured[int(np.argmin(np.where(np.isnan(values), np.inf, values)))])

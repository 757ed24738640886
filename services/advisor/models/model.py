"""What a model is: the interfaces that the evaluation, the service and every algorithm share.

A model is a small immutable description (its hyperparameters); `fit` returns what it has learned. Everything is
deterministic under its seed. Rows that a model predicts have no outcomes (`Table.without_outcomes`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from schemas.predictions import Objective
from services.advisor.core.arrays import FloatArray, IntArray
from services.advisor.core.table import Table


@runtime_checkable
class Fitted(Protocol):
    """A regression that has learned."""

    def predict(self, table: Table) -> FloatArray:
        """Return positive seconds or dollars, shape ``(rows,)``; NaN where it cannot tell."""
        ...


class Regressor(Protocol):
    """Predicts a quantity."""

    @property
    def name(self) -> str:
        """As shown in tables."""
        ...

    @property
    def target(self) -> Objective:
        """What it predicts."""
        ...

    def fit(self, table: Table, *, seed: int) -> Fitted:
        """Learn from the rows whose outcome is known; the others are there for those who can use them."""
        ...


@runtime_checkable
class FittedIntervals(Protocol):
    """A regression that also knows how sure it is."""

    def interval(self, table: Table, level: float) -> tuple[FloatArray, FloatArray]:
        """Return lower and upper ends that hold the outcome with probability `level`, each of shape ``(rows,)``."""
        ...


@runtime_checkable
class FittedCurves(Protocol):
    """A model that tells how its training went (thesis Figure 4.4)."""

    @property
    def curves(self) -> Mapping[str, FloatArray]:
        """Figures by name, such as ``training loss``, one element per epoch."""
        ...


@runtime_checkable
class Watching(Protocol):
    """A model that can follow rows while it learns which it does not learn from: for validation curves."""

    def fit_watching(self, table: Table, watched: Table | None, *, seed: int) -> Fitted | FittedRanker:
        """Learn exactly what `fit` learns."""
        ...


@runtime_checkable
class FittedFeasibility(Protocol):
    """A model that also knows what will not fit."""

    def feasible(self, table: Table) -> FloatArray:
        """Return the probability that each row runs at all, shape ``(rows,)``."""
        ...


@runtime_checkable
class FittedRanker(Protocol):
    """A ranking that has learned."""

    def score(self, table: Table) -> FloatArray:
        """Return scores, shape ``(rows,)``: the higher, the rather a top configuration of its task. No NaN."""
        ...


class Ranker(Protocol):
    """Orders a task's configurations."""

    @property
    def name(self) -> str:
        """As shown in tables."""
        ...

    @property
    def target(self) -> Objective:
        """What shall be small."""
        ...

    def fit(self, table: Table, *, seed: int) -> FittedRanker:
        """Learn from the rows whose outcome is known."""
        ...


class FittedSequential(Protocol):
    """A search that runs one configuration of the asked task after the other."""

    def propose(self, table: Table, measured: IntArray, values: FloatArray) -> int:
        """Return the row of `table` (one task, without outcomes) to run next: none of `measured`.

        Args:
            table: All candidates.
            measured: Rows that were run so far, in that order.
            values: Their seconds or dollars.
        """
        ...

    def choose(self, table: Table, measured: IntArray, values: FloatArray) -> int:
        """Return the row to use in the end: the best measured one, or another that is thought to be better."""
        ...


class Sequential(Protocol):
    """Searches with k runs in the cloud."""

    @property
    def name(self) -> str:
        """As shown in tables."""
        ...

    @property
    def target(self) -> Objective:
        """What shall be small."""
        ...

    def fit(self, table: Table, *, seed: int) -> FittedSequential:
        """Learn what the known tasks tell; a search that uses none ignores them."""
        ...


@dataclass(frozen=True, slots=True)
class RegressorRanking:
    """A regression's ranking: the smaller the prediction, the better. A row that it cannot tell comes last."""

    fitted: Fitted

    def score(self, table: Table) -> FloatArray:
        """Return the negative logarithm of the prediction."""
        return scores_of(self.fitted.predict(table))


def scores_of(predicted: FloatArray) -> FloatArray:
    """Return negative logarithms of predictions; what cannot be told (NaN) comes last."""
    known = np.isfinite(predicted)
    worst = predicted[known].max(initial=1.0) * 2.0
    return np.asarray(-np.log(np.maximum(np.where(known, predicted, worst), np.finfo(float).tiny)))


def ranking_of(fitted: Fitted | FittedRanker) -> FittedRanker:
    """Return a model's own ranking where it has one, else its predictions'."""
    return fitted if isinstance(fitted, FittedRanker) else RegressorRanking(fitted)


def remaining(table: Table, measured: IntArray) -> IntArray:
    """Return the rows that a search has not run.

    Raises:
        ValueError: All were.
    """
    rows = np.setdiff1d(np.arange(len(table)), measured)
    if not len(rows):
        raise ValueError("every configuration was run")
    return rows


def best_measured(measured: IntArray, values: FloatArray) -> int:
    """Return the measured row of the smallest value; the first where all failed (NaN)."""
    return int(measured[int(np.argmin(np.where(np.isnan(values), np.inf, values)))])

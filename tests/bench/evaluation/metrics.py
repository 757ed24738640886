"""Metrics of predictions and rankings. Regret is the primary one; the area under the ROC curve is for comparison only.

Every function takes known outcomes and predictions without NaN; see `evaluation` for what is scored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.special import comb
from scipy.stats import bootstrap
from sklearn.metrics import r2_score, roc_auc_score, roc_curve, root_mean_squared_error

from services.advisor.core.arrays import BoolArray, FloatArray

BOOTSTRAPS: Final = 10_000


def rmse(actual: FloatArray, predicted: FloatArray) -> float:
    """Return the root mean squared error, in the unit of the values."""
    return float(root_mean_squared_error(actual, predicted))


def rmse_over_mean(actual: FloatArray, predicted: FloatArray) -> float:
    """Return `rmse` over the mean of the actual values."""
    return rmse(actual, predicted) / float(actual.mean())


def r2(actual: FloatArray, predicted: FloatArray) -> float:
    """Return the coefficient of determination; NaN where all actual values are equal."""
    return float(r2_score(actual, predicted)) if np.ptp(actual) > 0 else float("nan")


def relative_errors(actual: FloatArray, predicted: FloatArray) -> FloatArray:
    """Return ``|predicted - actual| / actual`` per row."""
    return np.asarray(np.abs(predicted - actual) / actual)


def median_ape(actual: FloatArray, predicted: FloatArray) -> float:
    """Return the median of the relative errors, 0.1 for 10 %."""
    return float(np.median(relative_errors(actual, predicted)))


def p90_ape(actual: FloatArray, predicted: FloatArray) -> float:
    """Return the 90th percentile of the relative errors."""
    return float(np.quantile(relative_errors(actual, predicted), 0.9))


def err90_over_val90(actual: FloatArray, predicted: FloatArray) -> float:
    """Return the thesis' figure: 90th percentile of the absolute errors over the 90th percentile of the *values*.

    It says less than `p90_ape`: large jobs hide the relative errors of small ones (4.5.1, "within $1.36 ... $13.56").
    """
    return float(np.quantile(np.abs(predicted - actual), 0.9) / np.quantile(actual, 0.9))


def error_figures(actual: FloatArray, predicted: FloatArray) -> dict[str, float]:
    """Return every figure above by its name, over the rows with a prediction; empty where there is none."""
    known = np.isfinite(predicted)
    if not known.any():
        return {}
    figures = (rmse, rmse_over_mean, r2, median_ape, p90_ape, err90_over_val90)
    return {figure.__name__: figure(actual[known], predicted[known]) for figure in figures}


def auc(labels: BoolArray, scores: FloatArray) -> float:
    """Return the area under the ROC curve; ties count one half; NaN where all labels are equal."""
    return float(roc_auc_score(labels, scores)) if labels.any() and not labels.all() else float("nan")


def roc(labels: BoolArray, scores: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return false and true positive rates of all thresholds, from (0, 0) to (1, 1); equal scores are one step."""
    false, true, _ = roc_curve(labels, scores, drop_intermediate=False)
    return np.nan_to_num(false), np.nan_to_num(true)


def _drawn(scores: FloatArray, count: int) -> tuple[BoolArray, BoolArray, int]:
    """Return the rows that are among the `count` best for sure, those tied for the last places, and their number."""
    count = min(count, len(scores))
    last = np.sort(scores)[len(scores) - count]
    sure = scores > last
    return sure, scores == last, count - int(sure.sum())


def recall_at(labels: BoolArray, scores: FloatArray, count: int = 5) -> float:
    """Return which part of the top configurations is among the `count` best scores; NaN where there is none.

    Which of equal scores are among them is left to chance: the mean over all draws.
    """
    positives = int(labels.sum())
    if not positives:
        return float("nan")
    sure, tied, places = _drawn(scores, count)
    return float(labels[sure].sum() + places * labels[tied].sum() / tied.sum()) / positives


def regret(values: FloatArray, chosen: int) -> float:
    """Return the chosen value over the smallest one: at least 1."""
    return float(values[chosen] / values.min())


def best_of(values: FloatArray, scores: FloatArray, count: int = 5) -> float:
    """Return the smallest value among the `count` best scores over the smallest of all: at least 1.

    Which of equal scores are among them is left to chance: the mean over all draws. So neither the order of records nor
    that of machines in a file favours anybody.
    """
    sure, tied, places = _drawn(scores, count)
    best = np.minimum(np.sort(values[tied]), values[sure].min(initial=np.inf))
    # the smallest drawn is the j-th smallest of the tied ones where all other places fall to larger ones
    chances = comb(len(best) - 1 - np.arange(len(best)), places - 1) / comb(len(best), places)
    return float((best[0] + chances @ (best - best[0])) / values.min())


@dataclass(frozen=True, slots=True)
class Confusion:
    """Labels against what a threshold makes of scores."""

    true_positives: int
    false_positives: int
    false_negatives: int
    true_negatives: int

    @property
    def recall(self) -> float:
        """Part of the top configurations that was found; NaN where there is none."""
        positives = self.true_positives + self.false_negatives
        return self.true_positives / positives if positives else float("nan")

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall; 0 where nothing was found."""
        found = 2 * self.true_positives
        return found / (found + self.false_positives + self.false_negatives) if found else 0.0


def confusion(labels: BoolArray, predicted: BoolArray) -> Confusion:
    """Count."""
    return Confusion(
        int((labels & predicted).sum()),
        int((~labels & predicted).sum()),
        int((labels & ~predicted).sum()),
        int((~labels & ~predicted).sum()),
    )


def false_positives_at_recall(labels: BoolArray, scores: FloatArray, recall: float = 0.8) -> float:
    """Return how many others are called top where the threshold just finds `recall` of the top ones; NaN of none.

    The threshold is read off the scored rows themselves: a figure of the order, which no tuning can spoil.
    """
    positives = np.sort(scores[labels])[::-1]
    if not len(positives):
        return float("nan")
    needed = int(np.ceil(recall * len(positives) - 1e-9))
    threshold = positives[max(needed, 1) - 1]
    return float((scores[~labels] >= threshold).sum())


def coverage(actual: FloatArray, low: FloatArray, high: FloatArray) -> float:
    """Return which part of the outcomes lies within its interval."""
    return float(((low <= actual) & (actual <= high)).mean())


def interval_width(low: FloatArray, high: FloatArray) -> float:
    """Return the median of high over low: 1.44 means 20 % to both sides of the middle."""
    return float(np.median(high / np.maximum(low, np.finfo(float).tiny)))


@dataclass(frozen=True, slots=True)
class Difference:
    """A paired comparison: mean of (one - other), with a 95 % interval."""

    mean: float
    low: float
    high: float
    pairs: int

    @property
    def significant(self) -> bool:
        """The interval leaves 0 out."""
        return self.low > 0 or self.high < 0


def paired_difference(one: FloatArray, other: FloatArray, *, seed: int = 0, level: float = 0.95) -> Difference:
    """Return the mean difference of pairs (tasks, or seeds) with a bootstrap interval over the pairs.

    Pairs in which either is NaN are left out. Of fewer than two pairs there is no interval (NaN).
    """
    differences = (one - other)[np.isfinite(one) & np.isfinite(other)]
    if len(differences) < 2:
        mean = float(differences.mean()) if len(differences) else float("nan")
        return Difference(mean, float("nan"), float("nan"), len(differences))
    low, high = bootstrap(
        (differences,),
        np.mean,
        n_resamples=BOOTSTRAPS,
        confidence_level=level,
        method="percentile",
        rng=seed,
    ).confidence_interval
    return Difference(float(differences.mean()), float(low), float(high), len(differences))

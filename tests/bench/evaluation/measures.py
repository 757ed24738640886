"""Figures of answers: errors, intervals, and what choosing by them costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from services.advisor.core.arrays import FloatArray
from tests.bench.evaluation import metrics
from tests.bench.evaluation.evaluation import Answer

Figures = dict[str, float]


def error_figures(answers: Sequence[Answer]) -> Figures:
    """Return errors over all counted rows of `answers` together; empty where the model predicts no quantity.

    ``answered`` is the part of the rows for which it had a prediction: the others are not in the errors.
    """
    actual, predicted = pooled(answers, "predicted")
    figures = metrics.error_figures(actual, predicted)
    return figures | {"answered": float(np.isfinite(predicted).mean())} if figures else {}


def interval_figures(answers: Sequence[Answer]) -> Figures:
    """Return coverage and width over all counted rows together; empty where the model has no intervals."""
    actual, low = pooled(answers, "low")
    _, high = pooled(answers, "high")
    if not len(low):
        return {}
    return {"coverage": metrics.coverage(actual, low, high), "interval_width": metrics.interval_width(low, high)}


def pooled(answers: Sequence[Answer], name: str) -> tuple[FloatArray, FloatArray]:
    """Return the values and one of the predicted quantities of all counted rows; empty where any answer lacks it."""
    quantities = [getattr(one, name) for one in answers]
    if not answers or any(one is None for one in quantities):
        return np.zeros(0), np.zeros(0)
    actual = np.concatenate([one.values[one.counted] for one in answers])
    told = [quantity[one.counted] for one, quantity in zip(answers, quantities, strict=True)]
    return actual, np.concatenate(told)


def choice_figures(answer: Answer) -> Figures:
    """Return what choosing by the scores does on one left-out task.

    ``first_fails`` is 1 where the best-scored configuration of *all* that were asked about does not run at all (of
    several best-scored ones: their part that does not); the other figures count completed configurations only.
    """
    labels, scores, values = answer.labels[answer.counted], answer.scores[answer.counted], answer.values[answer.counted]
    figures = {
        "regret": metrics.best_of(values, scores, 1),
        "best_of_5": metrics.best_of(values, scores, 5),
        "auc": metrics.auc(labels, scores),
        "recall_at_5": metrics.recall_at(labels, scores, 5),
        "false_positives_at_80": metrics.false_positives_at_recall(labels, scores, 0.8),
        "top": float(labels.sum()),
        "candidates": float(len(labels)),
        "first_fails": float((~answer.feasible[answer.scores == answer.scores.max()]).mean()),
    }
    if np.isfinite(answer.threshold):
        found = metrics.confusion(labels, answer.relative()[answer.counted] >= answer.threshold)
        figures |= {
            "tuned_recall": found.recall,
            "tuned_false_positives": float(found.false_positives),
            "tuned_found": float(found.true_positives),
        }
    if answer.predicted is not None and np.isfinite(answer.predicted[answer.counted]).all():
        figures |= {
            "median_ape": metrics.median_ape(values, answer.predicted[answer.counted]),
            "p90_ape": metrics.p90_ape(values, answer.predicted[answer.counted]),
        }
    if answer.feasibility is not None:
        figures["feasibility_auc"] = metrics.auc(answer.feasible, answer.feasibility)
    return figures | interval_figures([answer])


def means(figures: Sequence[Mapping[str, float]]) -> Figures:
    """Return the mean of each figure over tasks (or seeds) that have it; NaN is not counted."""
    names = dict.fromkeys(name for one in figures for name in one)
    found = {name: np.array([one[name] for one in figures if name in one]) for name in names}
    return {
        name: float(values[np.isfinite(values)].mean()) if np.isfinite(values).any() else float("nan")
        for name, values in found.items()
    }

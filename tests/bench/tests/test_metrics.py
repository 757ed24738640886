"""Figures of predictions and choices, against hand-made numbers and the definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from tests.bench.evaluation import metrics

LABELLED = st.integers(2, 30).flatmap(
    lambda rows: st.tuples(
        arrays.arrays(np.bool_, rows), arrays.arrays(np.float64, rows, elements=st.integers(-5, 5).map(float))
    )
)
CHOICES = st.integers(1, 30).flatmap(
    lambda rows: st.tuples(
        arrays.arrays(np.float64, rows, elements=st.floats(0.1, 1e4)),
        arrays.arrays(np.float64, rows, elements=st.floats(-10, 10)),
    )
)
Labelled = tuple[NDArray[np.bool_], NDArray[np.float64]]
Choice = tuple[NDArray[np.float64], NDArray[np.float64]]


def test_errors_by_hand() -> None:
    actual, predicted = np.array([1.0, 2.0, 4.0, 5.0]), np.array([1.0, 3.0, 2.0, 5.0])
    # squares 0 1 4 0: mean 1.25; mean of the values 3; their spread 4 + 1 + 1 + 4 = 10; relative errors 0 .5 .5 0
    assert metrics.rmse(actual, predicted) == pytest.approx(1.25**0.5)
    assert metrics.rmse_over_mean(actual, predicted) == pytest.approx(1.25**0.5 / 3)
    assert metrics.r2(actual, predicted) == pytest.approx(0.5)
    assert metrics.median_ape(actual, predicted) == pytest.approx(0.25)
    assert metrics.p90_ape(actual, predicted) == pytest.approx(0.5)
    # 90th percentile of errors 0 0 1 2: 1.7; of the values: 4.7
    assert metrics.err90_over_val90(actual, predicted) == pytest.approx(1.7 / 4.7)
    assert np.isnan(metrics.r2(np.ones(3), np.ones(3)))


def test_the_thesis_figure_hides_what_the_relative_error_shows() -> None:
    """Nine small jobs are wrong by 100 %, and one large one is right: 10 / 910 only."""
    actual = np.array([10.0] * 9 + [10_000.0])
    predicted = np.array([20.0] * 9 + [10_000.0])
    assert metrics.p90_ape(actual, predicted) == pytest.approx(1.0)
    assert metrics.err90_over_val90(actual, predicted) < 0.01


@given(LABELLED)
def test_the_area_counts_ordered_pairs(case: Labelled) -> None:
    labels, scores = case
    assume(labels.any() and not labels.all())
    above = scores[labels][:, None] > scores[~labels][None]
    equal = scores[labels][:, None] == scores[~labels][None]
    assert metrics.auc(labels, scores) == pytest.approx((above + equal / 2).mean())
    assert metrics.auc(labels, -scores) == pytest.approx(1 - metrics.auc(labels, scores))
    false, true = metrics.roc(labels, scores)
    assert float(np.trapezoid(true, false)) == pytest.approx(metrics.auc(labels, scores))
    assert (false[0], true[0], false[-1], true[-1]) == (0.0, 0.0, 1.0, 1.0)


def test_the_area_of_one_class_is_not_known() -> None:
    assert np.isnan(metrics.auc(np.array([True, True]), np.array([1.0, 2.0])))
    assert np.isnan(metrics.recall_at(np.array([False]), np.array([1.0])))
    assert np.isnan(metrics.false_positives_at_recall(np.array([False]), np.array([1.0])))


@given(LABELLED, st.integers(1, 10))
def test_figures_of_an_order_stay_within_their_bounds(case: Labelled, count: int) -> None:
    labels, scores = case
    assume(labels.any())
    assert 0 <= metrics.recall_at(labels, scores, count) <= min(1.0, count / labels.sum())
    assert 0 <= metrics.false_positives_at_recall(labels, scores) <= (~labels).sum()
    found = metrics.confusion(labels, scores > 0)
    assert found.true_positives + found.false_negatives == labels.sum()
    assert found.false_positives + found.true_negatives == (~labels).sum()
    assert 0 <= found.f1 <= 1


def test_false_positives_at_recall_by_hand() -> None:
    # four of five are found at the threshold 4: two others reach it
    labels = np.array([True, True, True, True, True, False, False, False])
    scores = np.array([9.0, 8.0, 7.0, 4.0, 1.0, 5.0, 4.0, 3.0])
    assert metrics.false_positives_at_recall(labels, scores, 0.8) == 2


@given(CHOICES, st.integers(1, 10))
def test_regret_is_at_least_one_and_more_tries_never_hurt(case: Choice, count: int) -> None:
    values, scores = case
    chosen = np.flatnonzero(scores == scores.max())
    regrets = [metrics.regret(values, int(one)) for one in chosen]
    assert min(regrets) >= 1
    assert metrics.best_of(values, scores, 1) == pytest.approx(np.mean(regrets))
    fewer, more = metrics.best_of(values, scores, count), metrics.best_of(values, scores, count + 1)
    assert 1 <= more <= fewer * (1 + 1e-9)
    assert metrics.best_of(values, -values, count) == 1


@given(CHOICES, st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(case: Choice, random: object) -> None:
    values, scores = case
    order = list(range(len(values)))
    random.shuffle(order)  # type: ignore[attr-defined]
    labels = values <= np.median(values)
    for figure in (metrics.auc, metrics.recall_at, metrics.false_positives_at_recall):
        assert figure(labels, scores) == pytest.approx(figure(labels[order], scores[order]), nan_ok=True)
    assert metrics.best_of(values, scores, 3) == pytest.approx(metrics.best_of(values[order], scores[order], 3))


def test_equal_scores_are_drawn_by_chance() -> None:
    """One row is first; two places are left for three that are tied: two of the three pairs hold the best one, 1.

    So the smallest value is 1, 1 or 2; of the two top rows, the first is found, the second in two of three draws.
    """
    values = np.array([4.0, 1.0, 2.0, 3.0, 0.5])
    scores = np.array([9.0, 5.0, 5.0, 5.0, 1.0])
    labels = np.array([True, True, False, False, False])
    assert metrics.best_of(values, scores, 3) == pytest.approx((1 + 1 + 2) / 3 / 0.5)
    assert metrics.recall_at(labels, scores, 3) == pytest.approx((1 + 2 / 3) / 2)
    assert metrics.best_of(values, np.zeros(5), 1) == pytest.approx(values.mean() / 0.5)


def test_intervals_by_hand() -> None:
    actual, low, high = np.array([1.0, 2.0, 3.0]), np.array([1.0, 2.5, 2.0]), np.array([2.0, 5.0, 4.0])
    assert metrics.coverage(actual, low, high) == pytest.approx(2 / 3)
    assert metrics.interval_width(low, high) == pytest.approx(2.0)


def test_a_paired_difference_that_is_the_same_everywhere_is_certain() -> None:
    # ours is 0.5 less on all five tasks: the interval is that point
    other = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    found = metrics.paired_difference(other - 0.5, other)
    assert (found.mean, found.low, found.high, found.pairs) == (-0.5, -0.5, -0.5, 5)
    assert found.significant


def test_a_paired_difference_without_a_direction_is_not_significant() -> None:
    found = metrics.paired_difference(np.array([1.0, 3.0, 1.0, 3.0]), np.full(4, 2.0))
    assert found.mean == 0
    assert found.low < 0 < found.high
    assert not found.significant
    assert metrics.paired_difference(np.array([1.0]), np.array([2.0])).pairs == 1
    assert np.isnan(metrics.paired_difference(np.array([1.0, np.nan]), np.array([2.0, 1.0])).low)

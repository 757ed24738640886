"""The thesis' labels: among the five best, and within 1.5 times the best."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.bench.evaluation.labels import TOP_COUNT, TOP_FACTOR, ranks, top_labels

VALUES = st.lists(st.floats(0.1, 1e6), min_size=1, max_size=40)


def labels(values: list[float]) -> list[bool]:
    return [bool(one) for one in top_labels(np.array(["t"] * len(values)), np.array(values))]


def test_both_conditions_count() -> None:
    # 1.5 x 10 = 15: the fourth is too slow; and of six near ones, the sixth is too many
    assert labels([10.0, 12.0, 15.0, 15.1]) == [True, True, True, False]
    assert labels([10.0, 10.1, 10.2, 10.3, 10.4, 10.5]) == [True] * 5 + [False]


def test_each_task_has_its_own() -> None:
    found = top_labels(np.array(["a", "b", "a", "b"]), np.array([1.0, 100.0, 2.0, 110.0]))
    assert found.tolist() == [True, True, False, True]


def test_what_failed_is_never_among_the_best() -> None:
    assert labels([np.nan, 5.0]) == [False, True]
    assert labels([np.nan]) == [False]


def test_equal_values_share_a_rank() -> None:
    assert ranks(np.array([3.0, 1.0, 1.0, 2.0, np.nan])).tolist() == [4, 1, 1, 3, 5]


@given(VALUES)
def test_every_task_has_a_best_and_no_label_breaks_the_rule(values: list[float]) -> None:
    found = labels(values)
    assert any(found)
    assert all(value <= TOP_FACTOR * min(values) for value, label in zip(values, found, strict=True) if label)
    beaten_by = [sum(other < value for other in values) for value, label in zip(values, found, strict=True) if label]
    assert max(beaten_by) < TOP_COUNT
    assert sum(found) <= TOP_COUNT or len(set(values)) < len(values)


@given(VALUES, st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(values: list[float], random: object) -> None:
    order = list(range(len(values)))
    random.shuffle(order)  # type: ignore[attr-defined]
    assert [labels(values)[at] for at in order] == labels([values[at] for at in order])

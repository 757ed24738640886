"""What earlier runs say of the next one's ratio of measured by predicted: coverage, width, and which runs count."""

from __future__ import annotations

from math import erf, log, sqrt

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from schemas.plans import Engine
from services.planner.core.correction import LEAST_OF_MODEL, MOST_RUNS, correction_of, expected_ratio
from tests.support.measured_runs import measured_run

RATIOS = st.lists(st.floats(0.1, 10), min_size=1, max_size=60)


def coverage(runs: int, spread: float, histories: int = 400) -> float:
    """With which probability the next ratio is inside, where logarithms of ratios are normal with that deviation."""
    drawn = np.random.default_rng(7).normal(log(1.3), spread, (histories, runs))
    inside = []
    for history in np.exp(drawn):
        low, _, high = expected_ratio(history.tolist())
        below = [(log(bound) - log(1.3)) / spread for bound in (low, high)]
        inside.append((erf(below[1] / sqrt(2)) - erf(below[0] / sqrt(2))) / 2)
    return float(np.mean(inside))


@pytest.mark.parametrize("spread", [0.02, 0.05, 0.1, 0.2])
@pytest.mark.parametrize("runs", [2, 3, 5, 10, 30])
def test_the_next_run_is_inside(runs: int, spread: float) -> None:
    """Nine in ten is what the quantiles are; two runs of a wide spread have the least, 0.77."""
    assert coverage(runs, spread) >= (0.85 if runs >= 5 else 0.75)


@pytest.mark.parametrize("spread", [0.1, 0.2])
def test_many_runs_are_not_a_reason_for_an_interval_that_holds_always(spread: float) -> None:
    assert coverage(50, spread) <= 0.96


@given(RATIOS)
@example([0.1] * 3 + [1.0] * 37 + [10.0] * 3)
def test_bounds_include_the_median_and_most_runs(ratios: list[float]) -> None:
    """Below the 5 % quantile of n values, and above that of 95 %, are at most 0.05 (n - 1) + 1 each."""
    low, median, high = expected_ratio(ratios)

    assert low < median < high
    assert sum(low <= ratio <= high for ratio in ratios) >= 0.9 * len(ratios) - 2


@given(RATIOS, st.floats(1.01, 3))
def test_runs_that_differ_more_give_a_wider_interval(ratios: list[float], factor: float) -> None:
    """Their distances from the median, in logarithms, times the factor."""
    low, median, high = expected_ratio(ratios)
    wider_low, same, wider_high = expected_ratio([median * (ratio / median) ** factor for ratio in ratios])

    assert same == pytest.approx(median)
    assert wider_high / wider_low >= high / low * (1 - 1e-9)


@given(st.floats(0.1, 10), st.integers(1, 60))
def test_another_run_that_took_the_same_gives_a_narrower_interval(ratio: float, runs: int) -> None:
    low, median, high = expected_ratio([ratio] * runs)
    next_low, _, next_high = expected_ratio([ratio] * (runs + 1))

    assert median == pytest.approx(ratio)
    assert next_high / next_low < high / low
    # 1.25 to either side of a single run, 1.25 ** (1 / n) of n
    assert high / median == pytest.approx(1.25 ** (1 / runs))


@given(RATIOS, st.floats(0.1, 10))
def test_devices_that_are_slower_by_a_factor_move_all_by_it(ratios: list[float], factor: float) -> None:
    moved = expected_ratio([ratio * factor for ratio in ratios])

    assert moved == pytest.approx([bound * factor for bound in expected_ratio(ratios)])


def test_only_runs_of_the_engine_and_on_the_same_kinds_count() -> None:
    runs = [
        measured_run(2.0, engine=Engine.FSDP2),
        measured_run(3.0, kinds=("fast", "slow")),
        measured_run(1.5, kinds=("fast",)),
    ]

    found = correction_of(runs, Engine.LAYERED, {"fast"}, {"fast-1"})
    assert found is not None
    assert (found.runs, found.same_model, found.median) == (1, False, pytest.approx(1.5))
    assert correction_of(runs, Engine.LAYERED, {"slow"}, {"slow-1"}) is None
    both = correction_of(runs, Engine.LAYERED, {"slow", "fast"}, set())
    assert both is not None
    assert both.median == pytest.approx(3.0)


def test_runs_of_the_model_count_alone_once_there_are_enough() -> None:
    others = [measured_run(1.1, profiles=("other",)) for _ in range(5)]
    own = [measured_run(2.0, profiles=("fast-1",)) for _ in range(LEAST_OF_MODEL)]

    few = correction_of([*others, *own[1:]], Engine.LAYERED, {"fast"}, {"fast-1"})
    assert few is not None
    assert (few.runs, few.same_model, few.median) == (5 + LEAST_OF_MODEL - 1, False, pytest.approx(1.1))
    assert few.reason.sentence.startswith("7 earlier runs of models on these kinds of devices took 1.1 times")
    enough = correction_of([*others, *own], Engine.LAYERED, {"fast"}, {"fast-1"})
    assert enough is not None
    assert (enough.runs, enough.same_model, enough.median) == (LEAST_OF_MODEL, True, pytest.approx(2.0))
    alone = correction_of(own[:1], Engine.LAYERED, {"fast"}, {"fast-1"})
    assert alone is not None
    assert alone.reason.sentence.startswith("1 earlier run of this model took 2 times")


def test_the_newest_runs_count() -> None:
    old = [measured_run(5.0, ended_ns=1) for _ in range(MOST_RUNS)]
    new = [measured_run(1.0, ended_ns=2) for _ in range(MOST_RUNS)]
    found = correction_of([*new, *old], Engine.LAYERED, {"fast"}, ())

    assert found is not None
    assert (found.runs, found.median) == (MOST_RUNS, 1.0)

"""The Gittins index over quantiles."""

from __future__ import annotations

import math
from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.core import gittins

SERVICES = st.lists(st.floats(1.0, 1e6), min_size=1, max_size=12)


def index(quantiles: list[float], attained: float) -> float:
    return float(gittins.indices(np.array([sorted(quantiles)]), np.array([attained]))[0])


def by_definition(quantiles: list[float], attained: float) -> float:
    """Max over D of P(S - a <= D | S > a) / E[min(S - a, D) | S > a], for D at each quantile."""
    left = [value - attained for value in quantiles if value > attained]
    choices = [(sum(each <= more for each in left), sum(min(each, more) for each in left)) for more in left]
    return max((ended / spent for ended, spent in choices), default=0.0)


@given(SERVICES, st.floats(0.0, 1.1e6))
def test_it_is_the_largest_chance_of_ending_per_unit_of_service(quantiles: list[float], attained: float) -> None:
    assert index(quantiles, attained) == pytest.approx(by_definition(quantiles, attained))


@given(SERVICES, st.floats(0.0, 1e6), st.floats(0.01, 100.0))
def test_it_is_per_second_whatever_the_unit_of_service(quantiles: list[float], attained: float, unit: float) -> None:
    scaled = index([unit * value for value in quantiles], unit * attained)
    assert scaled == pytest.approx(index(quantiles, attained) / unit, rel=1e-6) or attained in quantiles


@given(st.floats(1.0, 1e6), st.floats(0.0, 0.99))
def test_of_a_service_that_is_known_it_is_the_inverse_of_what_is_left(service: float, done: float) -> None:
    assert index([service] * 8, done * service) == pytest.approx(1 / (service - done * service))


def test_it_falls_with_attained_service_where_ends_become_rarer() -> None:
    pareto = [(1 - (k + 0.5) / 64) ** -1.0 for k in range(64)]
    indices = [index(pareto, attained) for attained in (1.1, 2.0, 4.0, 8.0, 16.0)]
    assert indices == sorted(indices, reverse=True)


def test_it_is_nothing_once_all_of_the_distribution_has_passed() -> None:
    assert index([10.0, 20.0], 20.0) == 0.0


def test_an_estimate_has_its_median_and_nine_of_ten_in_its_interval() -> None:
    sigma = gittins.sigma_of(600.0, 2_400.0)
    quantiles = gittins.estimated(np.array([1_200.0]), np.array([sigma]))[0]

    assert float(np.median(quantiles)) == pytest.approx(1_200.0, rel=0.02)
    assert np.mean((quantiles >= 600) & (quantiles <= 2_400)) == pytest.approx(0.9, abs=0.05)


def test_an_estimate_without_a_range_is_not_taken_for_certain() -> None:
    assert gittins.sigma_of(100.0, 100.0) == gittins.LEAST_SIGMA


def test_what_has_ended_replaces_what_was_assumed() -> None:
    observed = gittins.NOTHING_OBSERVED
    assert observed.quantiles[0] == pytest.approx(60.0)
    for _ in range(4):
        observed = observed.ended(300.0)
    assert observed.unread == 0, "of few jobs each fourth counts at once"
    for _ in range(196):
        observed = observed.ended(300.0)

    assert float(np.median(observed.quantiles)) == pytest.approx(300.0)
    assert max(observed.quantiles) > 86_400, "a job that runs on is still possible"
    fresh, old = observed.indices([0.0, 400.0])
    assert fresh > 4 * old


def test_only_the_latest_jobs_count() -> None:
    observed = gittins.NOTHING_OBSERVED
    for service in (*[1e6] * gittins.OBSERVED_MOST, *[300.0] * gittins.OBSERVED_MOST):
        observed = observed.ended(service)
    assert set(observed.services) == {300.0}


@given(st.lists(st.floats(0.0, 3e6), min_size=1, max_size=20))
def test_the_index_of_observed_jobs_is_that_of_up_to_9_percent_less_service(attained: list[float]) -> None:
    quantiles = list(gittins.NOTHING_OBSERVED.quantiles)
    found = gittins.NOTHING_OBSERVED.indices(attained)
    for service, value in zip(attained, found, strict=True):
        assert value in {index(quantiles, 2 ** (step / 8) - 1) for step in [int(8 * math.log2(service + 1))]}


@given(st.lists(st.floats(1.0, 1e6), max_size=120), st.integers(0, 120))
def test_several_that_have_ended_count_as_one_after_another(services: list[float], known: int) -> None:
    before = reduce(gittins.Observed.ended, services[:known], gittins.NOTHING_OBSERVED)
    assert before.ended(*services[known:]) == reduce(gittins.Observed.ended, services[known:], before)

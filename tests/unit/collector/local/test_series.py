"""Series out of counters, and periods in them."""

from __future__ import annotations

import numpy as np
import pytest

from services.collector.profiler.series import (
    Counters,
    Recording,
    autocorrelation,
    period,
    series_of,
    usage_between,
)


def recorded(name: str, rows: list[tuple[float, float, int, int, int]]) -> Recording:
    recording = Recording(name, 1.0)
    for row in rows:
        recording.add(Counters(*row))
    return recording


def test_rates_are_over_the_time_that_has_really_passed() -> None:
    usage = usage_between(Counters(1.0, 3.0, 7, 100, 1000), Counters(1.5, 4.0, 9, 150, 3000))
    # 1 s of CPU, 50 and 2,000 bytes in half a second; memory as it is at the end
    assert usage == (2.0, 9.0, 100.0, 4000.0)


def test_counters_that_went_back_count_as_no_use() -> None:
    assert usage_between(Counters(0, 5.0, 1, 10, 10), Counters(1, 0.0, 1, 0, 0)) == (0.0, 1.0, 0.0, 0.0)


def test_no_time_between_samples_is_refused() -> None:
    with pytest.raises(ValueError, match="no time"):
        usage_between(Counters(1, 0, 0, 0, 0), Counters(1, 0, 0, 0, 0))


def test_the_first_sample_is_only_a_beginning() -> None:
    recording = Recording("master", 1.0)
    assert recording.add(Counters(0, 0, 0, 0, 0)) is None
    assert recording.add(Counters(1, 1, 5, 2, 3)) == (1.0, 5.0, 2.0, 3.0)


def test_a_gap_in_sampling_keeps_the_grid() -> None:
    """Held up for three intervals: each gets the mean, and what follows stands where it belongs."""
    recording = recorded("master", [(0, 0, 0, 0, 0), (1, 1, 0, 0, 0), (4.02, 2.51, 0, 0, 0), (5, 4.47, 0, 0, 0)])
    cores = recording.series(99).column("cpu_cores")
    # 1; 1.51 s of CPU within 3.02 s, three times; 1.96 within 0.98
    assert cores == pytest.approx([1.0, 0.5, 0.5, 0.5, 2.0])


def test_a_sample_that_is_late_by_more_than_half_an_interval_adds_no_row() -> None:
    """It takes the place of the next one, which counts with the one after it: else all later ones stood one too far."""
    recording = recorded(
        "master", [(0, 0, 0, 0, 0), (1, 1, 0, 0, 0), (2.7, 2.7, 0, 0, 0), (3.05, 3.05, 0, 0, 0), (4, 5.3, 0, 0, 0)]
    )
    cores = recording.series(99).column("cpu_cores")
    assert cores == pytest.approx([1.0, 1.0, 1.0, 2.0])


def test_workers_are_cut_to_the_same_length() -> None:
    long = recorded("master", [(t, t, 0, 0, 0) for t in range(6)])
    short = recorded("worker-1", [(t, t, 0, 0, 0) for t in range(4)])
    assert [series.samples for series in series_of([long, short])] == [3, 3]
    assert series_of([]) == ()


def test_autocorrelation_at_the_edges() -> None:
    assert autocorrelation(np.array([1.0, 2.0]), 2) == 0.0
    assert autocorrelation(np.array([1.0, -1.0, 1.0, -1.0]), 2) == pytest.approx(0.5)  # two of four terms are left


@pytest.mark.parametrize("true_period", [3, 5.5, 8, 20])
def test_a_period_is_found_under_noise_and_a_trend(true_period: float) -> None:
    time = np.arange(120)
    noise = np.random.default_rng(1).normal(0, 0.3, 120)
    assert period(np.sin(2 * np.pi * time / true_period) + noise + 0.05 * time) == pytest.approx(true_period, rel=0.06)


def test_bursts_have_a_period() -> None:
    """A slow step's all-reduce: one interval of traffic in six."""
    bursts = np.tile([9.0, 0, 0, 0, 0, 0], 12)
    assert period(bursts) == pytest.approx(6.0, abs=0.1)


@pytest.mark.parametrize("samples", [20, 60, 200])
def test_noise_hardly_ever_has_a_period(samples: int) -> None:
    source = np.random.default_rng(7)
    found = [period(source.normal(size=samples)) for _ in range(100)]
    assert sum(value is not None for value in found) <= 3


@pytest.mark.parametrize("series", [np.zeros(50), np.full(50, 3.3), np.arange(50.0), np.array([1.0, 2.0, 1.0])])
def test_what_does_not_repeat_has_no_period(series: np.ndarray) -> None:
    assert period(series) is None

"""Series out of counters, resampling, summaries, periods."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.jobs import Configuration, TaskFeatures
from schemas.runs import RunEnd, RunProfile
from services.collector.core.series import (
    Counters,
    Recording,
    autocorrelation,
    period,
    resample,
    resample_profile,
    series_of,
    summaries,
    summary,
    usage_between,
)

values = st.lists(st.floats(0, 1e9), min_size=1, max_size=60).map(np.array)


def recorded(name: str, rows: list[tuple[float, float, int, int, int]]) -> Recording:
    recording = Recording(name, 1.0)
    for row in rows:
        recording.add(Counters(*row))
    return recording


def profile(*recordings: Recording) -> RunProfile:
    return RunProfile(
        run="r",
        task=TaskFeatures(task="t"),
        configuration=Configuration(instance_type="local", workers=len(recordings)),
        duration_s=3.0,
        end=RunEnd.FINISHED,
        workers=series_of(recordings),
    )


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


def test_workers_are_cut_to_the_same_length() -> None:
    long = recorded("master", [(t, t, 0, 0, 0) for t in range(6)])
    short = recorded("worker-1", [(t, t, 0, 0, 0) for t in range(4)])
    assert [series.samples for series in series_of([long, short])] == [3, 3]
    assert series_of([]) == ()


def test_resampling_by_hand() -> None:
    # Halves of [1, 3]: two per old interval. Three intervals to two: 1.5 old ones each, (1 + .5*2)/1.5, (.5*2 + 6)/1.5
    assert resample(np.array([1.0, 3.0]), 4) == pytest.approx([1, 1, 3, 3])
    assert resample(np.array([1.0, 2.0, 6.0]), 2) == pytest.approx([4 / 3, 14 / 3])


@given(values, st.integers(1, 200))
def test_resampling_keeps_mean_and_bounds(series: np.ndarray, length: int) -> None:
    stretched = resample(series, length)
    slack = 1e-9 * (1 + series.max() * max(len(series), length))
    assert stretched.shape == (length,)
    assert stretched.mean() == pytest.approx(series.mean(), abs=slack)
    assert stretched.min() >= series.min() - slack
    assert stretched.max() <= series.max() + slack


def test_resampling_refuses_nothing_and_to_nothing() -> None:
    for series, length in ((np.array([]), 3), (np.array([1.0]), 0)):
        with pytest.raises(ValueError, match="cannot resample"):
            resample(series, length)


def test_a_profile_resampled() -> None:
    ramp = recorded("master", [(t, t * t, 10, 2 * t, 3 * t) for t in range(5)])
    flat = recorded("worker-1", [(t, t, 20, 0, 0) for t in range(5)])
    table = resample_profile(profile(ramp, flat), 2)
    assert table.shape == (2, 4, 2)
    # t*t has the differences 1, 3, 5, 7
    assert table[0, 0] == pytest.approx([2, 6])
    assert table[0, 2] == pytest.approx([2, 2])
    assert table[1, 1] == pytest.approx([20, 20])


def test_summary_by_hand() -> None:
    found = summary(np.array([1.0, 2.0, 3.0, 4.0]))
    # deviations -1.5, -.5, .5, 1.5: variance 1.25; lag 1: (.75 - .25 + .75) / 5
    assert found["mean"] == 2.5
    assert found["std"] == pytest.approx(1.25**0.5)
    assert found["variation"] == pytest.approx(1.25**0.5 / 2.5)
    assert found["trend"] == pytest.approx(3 / 2.5)
    assert found["lag1"] == pytest.approx(0.25)
    assert (found["min"], found["median"], found["max"]) == (1, 2.5, 4)


def test_summary_of_constants() -> None:
    for constant in (0.0, 0.1, 7e9):
        found = summary(np.full(33, constant))
        assert found["variation"] == pytest.approx(0, abs=1e-9)
        assert found["trend"] == pytest.approx(0, abs=1e-9)
        assert found["lag1"] == 0
    with pytest.raises(ValueError, match="no values"):
        summary(np.array([]))


def test_imbalance_says_how_unequal_workers_are() -> None:
    busy = recorded("master", [(t, 3 * t, 1, 0, 0) for t in range(4)])
    idle = recorded("worker-1", [(t, t, 1, 0, 0) for t in range(4)])
    found = summaries(profile(busy, idle))
    # means 3 and 1: the higher one is 1.5 times the mean of 2
    assert found["cpu_cores.imbalance"] == pytest.approx(1.5)
    assert found["cpu_cores.mean"] == pytest.approx(2.0)
    assert found["network_in_bytes_per_s.imbalance"] == 1.0


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

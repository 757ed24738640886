"""Intended send times: rates, seeds, shapes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.bench.escra.load.arrivals import KINDS, Load, arrivals
from tests.bench.escra.load.trace import TraceError, read_trace

_TRACE = np.array([10.0, 10.0, 30.0, 30.0] * 30)


def test_fixed_is_a_grid():
    # 4 requests a second for 1.5 s: 0, 0.25 ... 1.25 s.
    assert arrivals(Load("fixed", 4, 1.5, seed=1)).tolist() == [0, 0.25, 0.5, 0.75, 1.0, 1.25]


def test_exponential_has_three_quarters_of_the_rate_and_exponential_gaps():
    gaps = np.diff(arrivals(Load("exponential", 400, 100, seed=3)))
    # 300 per second: mean gap 1/300 s, and a standard deviation as large as the mean.
    assert np.mean(gaps) == pytest.approx(1 / 300, rel=0.03)
    assert np.std(gaps) == pytest.approx(1 / 300, rel=0.03)


def test_burst_is_quiet_for_half_a_cycle():
    times = arrivals(Load("burst", 400, 40, seed=3, cycle_s=4))
    in_burst = times % 4 >= 2
    # 50/s all the time; 600/s more in 20 of 40 s.
    assert np.count_nonzero(~in_burst) == pytest.approx(50 * 20, abs=2)
    assert np.count_nonzero(in_burst) == pytest.approx(650 * 20, rel=0.03)


def test_burst_can_begin_in_the_middle_of_a_cycle():
    times = arrivals(Load("burst", 400, 2, seed=3, cycle_s=4, start_s=2))
    assert len(times) == pytest.approx(650 * 2, rel=0.1)


def test_a_trace_gives_mean_and_shape():
    # 60 s of trace per second; two seconds of 10, two of 30: mean 20, so 0.75 of the base rate on average.
    times = arrivals(Load("bursty", 400, 60, seed=5), _TRACE)
    assert len(times) == pytest.approx(300 * 60, rel=0.03)
    at = (times * 60) % 4
    low, high = np.count_nonzero((at > 0.2) & (at < 0.8)), np.count_nonzero((at > 2.2) & (at < 2.8))
    assert high / low == pytest.approx(3, rel=0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_gives_the_same_times_and_another_one_others(kind):
    first, again, other = (arrivals(Load(kind, 100, 10, seed, cycle_s=4), _TRACE) for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert kind == "fixed" or not np.array_equal(first, other)
    assert np.all(np.diff(first) >= 0)
    assert first[-1] < 10


def test_a_load_without_rate_is_refused():
    with pytest.raises(ValueError, match="above 0"):
        Load("fixed", 0, 1, seed=1)


def test_a_trace_is_needed():
    with pytest.raises(ValueError, match="needs its trace"):
        arrivals(Load("diurnal", 1, 1, seed=1))


def test_a_missing_trace_says_where_it_is_looked_for(tmp_path: Path):
    with pytest.raises(TraceError, match="BENCH_TRACES"):
        read_trace("bursty", tmp_path)
    (tmp_path / "bursty.txt").write_text("1\nnan\n")
    with pytest.raises(TraceError, match="no list of rates"):
        read_trace("bursty", tmp_path)
    (tmp_path / "bursty.txt").write_text("1\n2\n")
    assert read_trace("bursty", tmp_path).tolist() == [1, 2]

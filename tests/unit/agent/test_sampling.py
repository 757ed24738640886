"""Counters become usage per period, whatever the sampler's timing was."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.cfs import SampleFlag
from services.agent.sampling.sampler import per_period


def sample(before, after, elapsed_us, quota_us):
    """One container's row."""
    return per_period(
        np.array([before], dtype=np.int64),
        np.array([after], dtype=np.int64),
        np.array([elapsed_us], dtype=np.int64),
        np.array([quota_us], dtype=np.int64),
    )


def test_one_period_on_time():
    """20 ms used of 30 ms in one period of 100 ms: 10 ms unused."""
    row = sample((5, 0, 0, 1_000, 0), (6, 0, 0, 21_000, 4096), 100_000, 30_000)

    assert (row.periods[0], row.used_us[0], row.unused_us[0], row.throttled[0]) == (1, 20_000, 10_000, 0)
    assert row.memory_usage_bytes[0] == 4096


def test_first_reading_carries_no_usage():
    row = sample((0, 0, 0, 0, 0), (600, 3, 9_000, 7_000_000, 1), 0, 30_000)

    assert (row.periods[0], row.used_us[0], row.throttled[0], row.flags[0]) == (0, 0, 0, 0)


def test_idle_container_is_reported_as_using_nothing():
    """The kernel's timer stops while idle: no period is counted, the whole quota is unused."""
    row = sample((5, 0, 0, 1_000, 0), (5, 0, 0, 1_000, 0), 100_000, 30_000)

    assert (row.periods[0], row.used_us[0], row.unused_us[0]) == (1, 0, 30_000)
    assert row.flags[0] == SampleFlag.IDLE


def test_throttled_container_read_late_is_divided_by_the_counted_periods():
    """Two bursts of 30 ms counted as two periods 110 ms apart are 30 ms per period, not 60 / 1.1 = 54.5."""
    row = sample((5, 1, 0, 0, 0), (7, 3, 140_000, 60_000, 0), 110_000, 30_000)

    assert (row.used_us[0], row.unused_us[0], row.throttled[0], row.throttled_us[0]) == (30_000, 0, 2, 70_000)


def test_boundary_just_missed_does_not_double_the_usage():
    """Steady 20 ms per 100 ms; 199 ms pass with one boundary counted: still 20 ms per period."""
    row = sample((5, 0, 0, 0, 0), (6, 0, 0, 39_800, 0), 199_000, 30_000)

    assert row.used_us[0] == 20_000


def test_unlimited_container_is_scaled_from_the_wall_clock():
    row = sample((0, 0, 0, 0, 0), (0, 0, 0, 150_000, 0), 300_000, -1)

    assert (row.periods[0], row.used_us[0], row.unused_us[0]) == (3, 50_000, 0)
    assert row.flags[0] == SampleFlag.WALL_CLOCK


counters = st.tuples(*[st.integers(0, 10**12)] * 5)


@given(before=counters, after=counters, elapsed_us=st.integers(0, 10**8), quota_us=st.integers(-1, 10**7))
def test_any_counters_give_a_sane_row(before, after, elapsed_us, quota_us):
    """Counters that jump or go back (a recreated cgroup) never give negative figures."""
    row = sample(before, after, elapsed_us, quota_us)

    assert row.used_us[0] >= 0
    assert 0 <= row.unused_us[0] <= max(quota_us, 0)
    assert row.throttled[0] >= 0
    assert row.throttled_us[0] >= 0
    assert (row.periods[0] == 0) == (elapsed_us == 0)


@given(demand=st.floats(0, 2), steps=st.lists(st.integers(60_000, 250_000), min_size=2, max_size=30))
def test_steady_unthrottled_usage_is_exact_under_any_sampler_jitter(demand, steps):
    """Usage of a steady container is reported within rounding, however late each sample is."""
    now_us, before = 0, (0, 0, 0, 0, 0)
    for step in steps:
        now_us += step
        after = (now_us // 100_000, 0, 0, int(demand * now_us), 0)
        row = sample(before, after, step, 1_000_000)
        assert row.used_us[0] == pytest.approx(demand * 100_000, abs=4)
        before = after

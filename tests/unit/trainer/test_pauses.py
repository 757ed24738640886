"""Pauses between generations of workers, out of the steps that rank 0 reports."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from services.trainer.core.pauses import Pause, PauseMeter, PauseSummary, summary


def test_a_pause_lasts_from_the_last_steps_end_to_the_next_ones_beginning() -> None:
    meter = PauseMeter()

    assert meter.take(1, 0, (1_000, 5_000), ()) is None, "nothing rested before the first step"
    assert meter.take(1, 1, (1_000, 6_500), ()) is None, "within a generation"
    # It ended at 10,000 us and took 1,000: it began 2,500 us after 6,500.
    assert meter.take(2, 2, (1_000, 10_000), ()) == Pause(2, 2, 2_500, after_failure=False)
    assert meter.take(2, 3, (1_000, 11_000), ()) is None
    assert meter.changes == PauseSummary(1, 2_500, 2_500)
    assert meter.failures == PauseSummary(0, None, None)


def test_a_pause_after_a_failure_is_told_apart_also_where_the_next_generation_never_made_a_step() -> None:
    meter = PauseMeter()
    meter.take(1, 8, (10, 100), ())

    # The second was ordered because the first had failed, and the third before the second had trained.
    assert meter.take(3, 6, (10, 500), {2}) == Pause(3, 6, 390, after_failure=True)
    assert meter.take(4, 7, (10, 600), {2}) == Pause(4, 7, 90, after_failure=False)
    assert (meter.changes.count, meter.failures.count) == (1, 1)


def test_where_the_last_steps_were_not_reported_no_pause_is_known() -> None:
    meter = PauseMeter()
    meter.take(1, 8, (10, 100), ())

    assert meter.take(2, 12, (10, 500), ()) is None
    assert meter.take(3, 13, (10, 600), ()) == Pause(3, 13, 90, after_failure=False)


def test_a_report_of_an_older_generation_that_comes_late_changes_nothing() -> None:
    meter = PauseMeter()
    meter.take(2, 8, (10, 100), ())
    assert meter.take(1, 7, (10, 50), ()) is None
    assert meter.take(3, 9, (10, 200), ()) == Pause(3, 9, 90, after_failure=False)


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=50))
def test_quantiles_are_measured_values_that_so_many_do_not_exceed(pauses_us: list[int]) -> None:
    found = summary(pauses_us)

    for value, share in ((found.p50_us, 0.5), (found.p95_us, 0.95)):
        assert value in pauses_us
        assert sum(one <= value for one in pauses_us) >= share * len(pauses_us)
        assert sum(one < value for one in pauses_us) < math.ceil(share * len(pauses_us))

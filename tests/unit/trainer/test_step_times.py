"""Steps out of ranks' reports, lines about them, and drift from the plan: values in, values and reasons out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.plans import Plan
from services.trainer.core.drift import STEPS, DriftWatch, drift
from services.trainer.core.progress import ProgressMeter
from services.trainer.core.step_times import StepTime, StepTimes
from tests.support.trainer_plans import plan_of

PLAN = plan_of([6, 2], [2, 1], [3, 1]).model_copy(
    update={"step_us": 1_000.0, "step_low_us": 900.0, "step_high_us": 1_200.0}
)


def report(first: int, *times_us: int, end_us: int = 0) -> dict[str, Any]:
    steps = range(first, first + len(times_us))
    return {
        "step": list(steps),
        "step_us": list(times_us),
        "end_us": [end_us + step for step in steps],
        "loss": [0.5] * len(times_us),
    }


def test_a_step_takes_as_long_as_its_slowest_rank() -> None:
    times = StepTimes(2)

    assert times.take(report(0, 10, 20, 30)) == []
    assert times.take(report(0, 15, 5, end_us=7)) == [StepTime(0, 15, 7, 0.5), StepTime(1, 20, 8, 0.5)]
    assert times.take(report(2, 40)) == [StepTime(2, 40, 2, 0.5)]


def test_steps_of_a_lost_report_are_left_out_and_not_kept() -> None:
    times = StepTimes(2)
    times.take(report(0, 1, 1, 1))

    assert [step.step for step in times.take(report(2, 1))] == [2]
    assert times._open == {}


@given(st.lists(st.integers(1, 4), min_size=1, max_size=12), st.integers(1, 4), st.randoms(use_true_random=False))
def test_each_step_comes_once_and_in_order_however_reports_are_cut(cuts: list[int], ranks: int, draw: Any) -> None:
    """Each rank's own reports in their order, those of several ranks in any."""
    firsts = [sum(cuts[:place]) for place in range(len(cuts))]
    waiting = {rank: list(zip(firsts, cuts, strict=True)) for rank in range(ranks)}
    times, found = StepTimes(ranks), []
    while waiting:
        rank = draw.choice(sorted(waiting))
        first, count = waiting[rank].pop(0)
        found += times.take(report(first, *[rank + 1] * count))
        if not waiting[rank]:
            del waiting[rank]

    assert [(step.step, step.step_us) for step in found] == [(step, ranks) for step in range(sum(cuts))]


def steps_of(first: int, count: int, apart_us: int = 1_000, step_us: int = 800) -> list[StepTime]:
    return [StepTime(step, step_us, (step + 1) * apart_us, 0.25) for step in range(first, first + count)]


def test_a_line_has_the_rate_of_all_that_happened_since_the_one_before() -> None:
    meter = ProgressMeter(PLAN, 2_000)
    first = meter.take(steps_of(0, 10))
    # half a millisecond between steps, for loading samples, say: 8 samples in 1 ms
    second = meter.take(steps_of(10, 600))

    assert first is not None
    assert (first.done, first.total, first.step_us, first.predicted_step_us) == (10, 2_000, 800, 1_000)
    assert first.samples_per_s == pytest.approx(8 / 800e-6)
    assert second is not None
    assert (second.done, second.loss) == (610, 0.25)
    assert second.samples_per_s == pytest.approx(8 / 1_000e-6)


def test_steps_that_came_a_little_later_wait_for_the_next_line() -> None:
    meter = ProgressMeter(PLAN, 2_000)
    meter.take(steps_of(0, 10))

    assert meter.take(steps_of(10, 3)) is None
    rest = meter.rest()
    assert rest is not None
    assert rest.done == 13
    assert meter.rest() is None


def watched(plan: Plan, times_us: Sequence[float]) -> list[tuple[int, float]]:
    """After which steps a drift was said, and its bound."""
    watch = DriftWatch(plan)
    found = [(place, watch.take(time_us)) for place, time_us in enumerate(times_us, start=1)]
    return [(place, reason.threshold) for place, reason in found if reason is not None]


def test_a_drift_has_its_median_its_bound_and_a_sentence() -> None:
    reason = drift([1_500.0, *[1_300.0] * (STEPS - 1)], PLAN)

    assert reason is not None
    assert (reason.measured, reason.threshold, reason.unit) == (1_300, 1_200, "us")
    assert "each of the last 20 steps took more than the 1.2 ms of the plan, the median is 1.3 ms" in reason.sentence
    faster = drift([800.0] * STEPS, PLAN)
    assert faster is not None
    assert faster.threshold == 900
    assert "took less than the 0.9 ms" in faster.sentence


def test_times_of_a_second_or_more_are_said_in_seconds() -> None:
    plan = PLAN.model_copy(update={"step_us": 1_500_000.0, "step_low_us": 1_400_000.0, "step_high_us": 1_600_000.0})
    reason = drift([1_953_000.0] * STEPS, plan)

    assert reason is not None
    assert "took more than the 1.6 s of the plan, the median is 1.95 s:" in reason.sentence


@pytest.mark.parametrize(
    "times_us", [[1_300.0] * (STEPS - 1), [1_300.0] * (STEPS - 1) + [1_200.0], [1_300.0] * 19 + [800.0], [900.0] * 20]
)
def test_fewer_steps_or_one_inside_are_no_drift(times_us: list[float]) -> None:
    assert drift(times_us, PLAN) is None


def test_it_is_said_once_until_steps_were_inside_for_as_long() -> None:
    slow, planned, fast = [1_300.0] * 100, [1_000.0] * STEPS, [500.0] * 30

    assert watched(PLAN, slow) == [(STEPS, 1_200)]
    assert watched(PLAN, [*slow, *planned[:-1], *slow]) == [(STEPS, 1_200)]
    assert watched(PLAN, [*slow, *planned, *slow]) == [(STEPS, 1_200), (100 + 2 * STEPS, 1_200)]
    assert watched(PLAN, [*slow, *fast]) == [(STEPS, 1_200), (100 + STEPS, 900)]

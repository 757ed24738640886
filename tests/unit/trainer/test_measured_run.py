"""A training's steps become a measured run, or the reason why later plans learn nothing from it."""

from __future__ import annotations

import pytest

from schemas.measured_runs import MeasuredRun
from schemas.plans import Plan
from services.trainer.core.measured_run import FIRST_STEPS, LEAST_STEPS, MOST_STEPS, StepSample, measured_run
from tests.support.trainer_plans import plan_of


def plan(*kinds: str, **changes: object) -> Plan:
    made = plan_of([6, 2], [2, 1], [3, 1])
    devices = tuple(device.model_copy(update={"kind": kind}) for device, kind in zip(made.devices, kinds, strict=True))
    return made.model_copy(update={"devices": devices, "profiles": ("p1", "p2"), "step_us": 20.0, **changes})


def test_the_first_steps_do_not_count_and_the_last_ones_are_kept() -> None:
    sample = StepSample()
    for step in range(MOST_STEPS + 10):
        sample.take(step)

    assert len(sample.steps_us) == MOST_STEPS
    assert sample.steps_us[-1] == MOST_STEPS + 9
    short = StepSample()
    for step in range(FIRST_STEPS + 2):
        short.take(step)
    assert short.steps_us == (FIRST_STEPS, FIRST_STEPS + 1)


def test_median_and_deciles_of_the_steps() -> None:
    """Of 1 to 11 the deciles are 2, 6 and 10."""
    run = measured_run(plan("slow", "fast"), [float(us) for us in range(1, 12)], 5)

    assert isinstance(run, MeasuredRun)
    assert (run.step_p10_us, run.step_us, run.step_p90_us) == pytest.approx((2, 6, 10))
    assert (run.kinds, run.profiles, run.steps, run.ended_ns) == (("fast", "slow"), ("p1", "p2"), 11, 5)
    assert run.predicted_step_us == 20


def test_a_corrected_plan_is_compared_with_what_its_profiles_predicted() -> None:
    """Else a correction would be learned away by the next run."""
    run = measured_run(plan("a", "a", profiled_step_us=16.0), [24.0] * LEAST_STEPS, 5)

    assert isinstance(run, MeasuredRun)
    assert run.ratio == pytest.approx(24 / 16)
    assert run.kinds == ("a",)


@pytest.mark.parametrize(
    ("made", "steps", "words"),
    [
        (plan("a", ""), LEAST_STEPS, "does not say of which kinds its devices are"),
        (plan("a", "b"), LEAST_STEPS - 1, "9 steps after the first 3 are too few: 10 count"),
        (plan("a" * 201, "b"), LEAST_STEPS, "kinds.0: String should have at most 200 characters"),
        (plan("a", "b", step_us=1e-6), LEAST_STEPS, "no measured run has that: predicted_step_us: "),
    ],
)
def test_what_teaches_nothing_says_why(made: Plan, steps: int, words: str) -> None:
    refused = measured_run(made, [1.0] * steps, 5)

    assert isinstance(refused, str)
    assert words in refused

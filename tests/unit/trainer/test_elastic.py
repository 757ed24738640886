"""How many workers an elastic training should have: by each policy, with the value and the threshold that decided."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.trainer.core.elastic import (
    LEAST_STEPS,
    Decision,
    Goal,
    Join,
    Leave,
    Measured,
    Policy,
    State,
    Stay,
    decide,
    predicted_step_us,
)

EFFICIENT = Goal(Policy.THROUGHPUT_PER_DOLLAR, 1, 4, usd_per_hour=3.6)


def state(workers: int, step_us: float, compute_us: float, *more: Measured, steps: int = LEAST_STEPS) -> State:
    """With so many steps measured, and 100 of 12 samples left."""
    known = (Measured(workers, 12, step_us, compute_us, steps), *more)
    return State(workers, 12, ((12, 100),), 0.0, known)


def test_nothing_is_decided_before_enough_steps_are_measured() -> None:
    decision = decide(EFFICIENT, state(1, 1e6, 1e6, steps=LEAST_STEPS - 1), 0.0)

    assert isinstance(decision, Stay)
    assert (decision.reason.measured, decision.reason.threshold, decision.reason.unit) == (9, 10, "steps")


def test_workers_join_while_samples_per_dollar_stay_near_the_best() -> None:
    # 900 ms of computing and 100 ms that stay: 12 samples/s for 0.001 USD/s with one worker: 12,000 samples/$.
    # two workers: 450 + 100 ms: 21.8 samples/s for 0.002: 10,909; three: 300 + 100 ms: 10,000; four: 325 ms: 9,231
    decision = decide(EFFICIENT, state(1, 1e6, 0.9e6), 0.0)

    # 0.8 of 12,000 are 9,600: three workers, but no more than twice as many at once
    assert isinstance(decision, Join)
    assert decision.workers == 2
    assert decision.reason.measured == pytest.approx(10_000)
    assert decision.reason.threshold == pytest.approx(9_600)
    assert "4 would give 9231" in decision.reason.sentence


def test_workers_that_are_not_worth_it_leave_and_are_not_tried_again() -> None:
    slow = Measured(2, 12, 0.9e6, 0.45e6, LEAST_STEPS)  # 13.3 samples/s for 0.002 USD/s: 6,667 samples/$
    one = Measured(1, 12, 1e6, 0.9e6, LEAST_STEPS)

    decision = decide(EFFICIENT, replace(state(2, 0.9e6, 0.45e6, one), measured=(slow, one)), 0.0)
    assert isinstance(decision, Leave)
    assert decision.workers == 1

    assert isinstance(decide(EFFICIENT, replace(state(1, 1e6, 0.9e6), measured=(slow, one)), 0.0), Stay)


def test_the_fewest_workers_that_meet_the_deadline() -> None:
    goal = Goal(Policy.DEADLINE, 1, 4, deadline_s=70.0)

    # 100 steps of 1 s by one worker take 100 s; two take 550 ms a step: 55 s, and 10 s have passed
    decision = decide(goal, state(1, 1e6, 0.9e6), 10.0)
    assert isinstance(decision, Join)
    assert decision.workers == 2
    assert (decision.reason.measured, decision.reason.threshold) == (pytest.approx(65), 70)

    # 60 s of the 70 have passed: none is fast enough, so as many as there may be, twice as many at once
    late = decide(goal, state(2, 0.55e6, 0.45e6), 60.0)
    assert isinstance(late, Join)
    assert late.workers == 4


def test_the_most_workers_that_the_budget_allows() -> None:
    goal = Goal(Policy.BUDGET, 1, 4, usd_per_hour=3.6, budget_usd=0.13)

    # one worker: 100 s at 0.001 USD/s: 0.10 USD; two: 55 s at 0.002: 0.11; three: 40 s: 0.12; four: 32.5 s: 0.13
    spending = replace(state(1, 1e6, 0.9e6), spent_usd=0.015)
    decision = decide(goal, spending, 0.0)
    assert isinstance(decision, Join)
    assert decision.workers == 2

    # with 0.05 USD spent not even one is within the budget
    assert isinstance(decide(goal, replace(state(2, 0.55e6, 0.45e6), spent_usd=0.05), 0.0), Leave)


def test_a_larger_batch_is_predicted_from_the_one_before() -> None:
    # twice the samples: twice the computing of one worker, divided by two workers
    assert predicted_step_us([Measured(1, 12, 1e6, 0.9e6, 20)], 2, 24) == pytest.approx(1e6)


def test_outside_of_the_bounds_nothing_else_counts() -> None:
    assert decide(replace(EFFICIENT, least=2), state(1, 1, 1, steps=0), 0.0).reason.unit == "workers"
    decision = decide(replace(EFFICIENT, most=2), state(4, 1, 1, steps=0), 0.0)
    assert isinstance(decision, Leave)
    assert decision.workers == 2


@given(
    st.sampled_from(Policy),
    st.floats(0.01, 10),
    st.lists(st.floats(0.001, 5), min_size=4, max_size=4),
    st.floats(1, 500),
    st.integers(1, 4),
)
def test_constant_steps_end_in_no_change(
    policy: Policy, compute_s: float, rest_s: list[float], limit: float, workers: int
) -> None:
    goal = Goal(policy, 1, 4, usd_per_hour=3_600, deadline_s=limit, budget_usd=limit)
    measured: dict[int, Measured] = {}
    decisions: list[Decision] = []
    for _ in range(12):
        step_us = 1e6 * (compute_s / workers + rest_s[workers - 1])
        measured[workers] = Measured(workers, 12, step_us, 1e6 * compute_s / workers, LEAST_STEPS)
        decision = decide(goal, State(workers, 12, ((12, 100),), 0.0, tuple(measured.values())), 0.0)
        decisions.append(decision)
        if not isinstance(decision, Stay):
            assert 1 <= decision.workers <= 4
            workers = decision.workers

    # four counts of workers: after each has been tried nothing is new, and nothing changes
    assert isinstance(decisions[-1], Stay), decisions

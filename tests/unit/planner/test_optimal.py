"""The corrected rules give the fastest division there is, and every plan fits."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from services.planner.core import cephalo
from services.planner.core.profile import Infeasible
from tests.support.examples import examples
from tests.support.plan_enumeration import affine_problems, divisions, fits


@given(affine_problems())
@settings(max_examples=examples(1_000))
def test_no_division_is_faster(problem: cephalo.Problem) -> None:
    best = min((cephalo.step_ms(problem, split) for split in divisions(problem) if fits(problem, split)), default=None)
    plan = cephalo.plan(problem)

    if best is None:
        assert isinstance(plan, Infeasible)
    else:
        assert isinstance(plan, cephalo.Plan)
        assert plan.step_ms == pytest.approx(best, rel=1e-12)


@given(affine_problems(most_devices=5, most_samples=24))
@settings(max_examples=examples(500))
def test_every_plan_fits(problem: cephalo.Problem) -> None:
    plan = cephalo.plan(problem)
    assume(isinstance(plan, cephalo.Plan))
    assert isinstance(plan, cephalo.Plan)

    assert sum(plan.split.samples) == problem.batch
    assert all(
        count * size == samples
        for samples, count, size in zip(plan.split.samples, plan.split.counts, plan.split.sizes, strict=True)
    )
    assert sum(plan.shares) == pytest.approx(1, abs=1e-12)
    assert min(plan.shares) >= 0
    held = cephalo.held_gib(problem, plan.split)
    for allowed, part, share in zip(problem.allowed_gib, held, plan.shares, strict=True):
        assert part + share * problem.state_gib <= allowed + 1e-9


@given(affine_problems(most_devices=4, most_samples=16), st.randoms(use_true_random=False))
@settings(max_examples=examples(300))
def test_the_order_of_devices_does_not_change_the_time(problem: cephalo.Problem, random: Random) -> None:
    order = list(range(len(problem.devices)))
    random.shuffle(order)
    layers = tuple(replace(one, times=tuple(one.times[i] for i in order)) for one in problem.layers)
    shuffled = replace(
        problem,
        devices=tuple(problem.devices[i] for i in order),
        layers=layers,
        accumulation_ms=tuple(problem.accumulation_ms[i] for i in order),
    )

    assert time_of(cephalo.plan(shuffled)) == pytest.approx(time_of(cephalo.plan(problem)), rel=1e-12)


@given(affine_problems(most_devices=4, most_samples=16), st.integers(0, 3))
@settings(max_examples=examples(300))
def test_another_gib_never_slows(problem: cephalo.Problem, which: int) -> None:
    rank = which % len(problem.devices)
    devices = [replace(one, memory_gib=one.memory_gib + (one.rank == rank)) for one in problem.devices]

    assert time_of(cephalo.plan(replace(problem, devices=tuple(devices)))) <= time_of(cephalo.plan(problem)) * (
        1 + 1e-12
    )


def time_of(plan: cephalo.Plan | Infeasible) -> float:
    return float("inf") if isinstance(plan, Infeasible) else plan.step_ms


@given(affine_problems(most_devices=3, most_samples=12))
@settings(max_examples=examples(200))
def test_units_are_divided_like_samples(problem: cephalo.Problem) -> None:
    """Twice as many samples in units of two: every micro-batch has an even number of samples."""
    doubled = cephalo.plan(replace(problem, batch=2 * problem.batch, unit=2, max_microbatch=100))
    assume(isinstance(doubled, cephalo.Plan))
    assert isinstance(doubled, cephalo.Plan)

    assert sum(doubled.split.samples) == 2 * problem.batch
    assert all(size % 2 == 0 for size in doubled.split.sizes)

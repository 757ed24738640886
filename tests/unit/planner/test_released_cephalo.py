"""The rules ``released`` give the plans of Cephalo's released planner: samples, micro-batches, shares."""

from __future__ import annotations

import pytest

from services.planner.core import cephalo, comparisons
from services.planner.core.profile import Infeasible
from services.planner.core.rules import CORRECTED, RELEASED
from tests.support.peer_planners import DATA, cephalo_problem, layer_times, read

CASES = sorted(path.name for path in (DATA / "cephalo").glob("*.*.json"))


def test_all_cases_are_there() -> None:
    assert len(CASES) == 10


@pytest.mark.parametrize("name", [name for name in CASES if ".dp_ga." in name])
def test_uneven(name: str) -> None:
    expected = read(f"cephalo/{name}")
    plan = cephalo.plan(cephalo_problem(expected["model_name"], sum(expected["uneven_batch_sizes"])), RELEASED)

    assert isinstance(plan, cephalo.Plan)
    assert list(plan.split.samples) == expected["uneven_batch_sizes"]
    assert list(plan.split.counts) == expected["uneven_microbatches"]
    assert list(plan.shares) == expected["split_uneven_partitions"]


@pytest.mark.parametrize("name", [name for name in CASES if ".dp." in name])
def test_whole(name: str) -> None:
    expected = read(f"cephalo/{name}")
    problem = cephalo_problem(expected["model_name"], sum(expected["uneven_batch_sizes"]))
    split = comparisons.split_whole(problem)

    assert isinstance(split, cephalo.Split)
    assert list(split.samples) == expected["uneven_batch_sizes"]
    assert list(cephalo.released_shares(problem, split.samples)) == expected["split_uneven_partitions"]


@pytest.mark.parametrize("name", [name for name in CASES if ".greedy." in name])
def test_by_speed(name: str) -> None:
    expected = read(f"cephalo/{name}")
    problem = cephalo_problem(expected["model_name"], sum(expected["uneven_batch_sizes"]))
    slopes = [times.forward.slope + times.backward.slope for times in problem.layers[0].times]
    samples = comparisons.split_by_speed(slopes, problem.batch)

    assert samples == expected["uneven_batch_sizes"]
    assert list(cephalo.released_shares(problem, samples)) == expected["split_uneven_partitions"]


def test_the_published_example_exceeds_the_memory_it_was_planned_with() -> None:
    """An L4 with 13 samples and a quarter of the state needs more than its 75 %; by the corrected rules it does not."""
    problem = cephalo_problem("deepspeedgpt_2.7b", 64)
    released, corrected = cephalo.plan(problem, RELEASED), cephalo.plan(problem, CORRECTED)
    assert isinstance(released, cephalo.Plan)
    assert isinstance(corrected, cephalo.Plan)

    # 13 samples: 2.2334 + 9 * 0.37098 + 2 = 7.572 GiB; 2,770,621,440 parameters * 16 / 2^30 / 4 = 10.321 GiB
    assert planned_gib(problem, released)[0] == pytest.approx(7.572 + 10.321, abs=0.001)
    assert problem.allowed_gib[0] == 16.875
    # The same samples, with shares of which the smallest is what the first L4 has room for: (16.875 - 7.572) / 41.286
    assert corrected.split == released.split
    assert corrected.shares == pytest.approx((0.2253, 0.2582, 0.2582, 0.2582), abs=0.0001)
    assert all(a <= b + 1e-9 for a, b in zip(planned_gib(problem, corrected), problem.allowed_gib, strict=True))


def planned_gib(problem: cephalo.Problem, plan: cephalo.Plan) -> list[float]:
    held = cephalo.held_gib(problem, plan.split)
    return [part + share * problem.state_gib for part, share in zip(held, plan.shares, strict=True)]


def test_a_line_of_times_alone_is_refused() -> None:
    with pytest.raises(ValueError, match="no times of forward and backward pass"):
        layer_times([1.5, 0.5])


def test_more_devices_than_samples_is_no_plan() -> None:
    plan = cephalo.plan(cephalo_problem("deepspeedgpt_1.3b", 3))

    assert isinstance(plan, Infeasible)
    assert plan.reason == cephalo.UNPLACEABLE

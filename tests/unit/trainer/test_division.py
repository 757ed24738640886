"""Who has how many samples: as the plan says, or evenly without one."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.plans import Engine
from services.trainer.worker.division import among_workers, evenly, of_plan
from services.trainer.worker.plan_file import RefusedError
from tests.support.trainer_plans import pipeline_plan, plan_of


def test_a_plans_own() -> None:
    found = of_plan(plan_of([4, 0, 6], [2, 0, 1], [1, 0, 3]), 3)

    assert (found.engine, found.batch, found.samples) == (Engine.LAYERED, 10, (4, 0, 6))
    assert found.microbatch_samples == (2, 0, 6)
    assert found.state_shares == (0.25, 0, 0.75)


def test_a_plan_that_cannot_be_followed_is_refused() -> None:
    with pytest.raises(RefusedError, match="for 2 devices, but torchrun started 3"):
        of_plan(plan_of([1, 1], [1, 1], [1, 1]), 3)
    with pytest.raises(RefusedError, match="one micro-batch per rank"):
        of_plan(plan_of([2, 2], [2, 1], [1, 1], Engine.FSDP2), 2)


def test_a_pipelines_ranks_load_the_samples_of_their_micro_batches() -> None:
    found = of_plan(pipeline_plan([[0, 1], [2]], [(0, 1), (1, 1)], [1, 2, 3], [1, 1, 1], microbatch=2), 3)

    assert (found.batch, found.samples, found.microbatch_samples) == (6, (2, 4, 6), (2, 2, 2))
    # rank 1 is done with its two at a half and the whole of the time, rank 0 with its one at the end: 1, 0, 1
    assert [list(found.sample_positions(rank)) for rank in range(3)] == [[2, 3], [0, 1, 4, 5], [0, 1, 2, 3, 4, 5]]


def test_evenly_the_first_ranks_have_one_more() -> None:
    found = evenly(15, 4)  # 3 each, and 3 are left

    assert (found.engine, found.batch, found.samples) == (Engine.FSDP2, 15, (4, 4, 4, 3))
    assert found.microbatch_samples == found.samples
    assert found.state_shares == (0.25,) * 4


def test_ranks_without_a_sample_need_the_layered_engine() -> None:
    found = evenly(2, 3)

    assert (found.engine, found.samples) == (Engine.LAYERED, (1, 1, 0))


@given(batch=st.integers(1, 65_536), world=st.integers(1, 4_096))
def test_evenly_all_samples_are_divided_and_none_has_two_more_than_another(batch: int, world: int) -> None:
    found = evenly(batch, world)

    assert sum(found.samples) == batch
    assert max(found.samples) - min(found.samples) <= 1
    assert list(found.samples) == sorted(found.samples, reverse=True)
    assert math.isclose(math.fsum(found.state_shares), 1)
    assert (found.engine is Engine.FSDP2) == (min(found.samples) > 0)


def test_workers_that_are_alike_take_the_same_in_micro_batches() -> None:
    found = among_workers(15, 4, 3)  # 3 each, and 3 are left

    assert (found.engine, found.batch, found.samples) == (Engine.LAYERED, 15, (4, 4, 4, 3))
    assert found.microbatch_samples == (3, 3, 3, 3)
    assert found.state_shares == (0.25,) * 4
    # fewer samples than workers: one has none, but its part of the state
    assert among_workers(2, 3, 8).samples == (1, 1, 0)
    assert among_workers(2, 3, 8).microbatch_samples == (1, 1, 0)

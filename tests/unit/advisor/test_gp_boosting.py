"""Trees get the weight in the order that they earn on left-out tasks, and no other."""

from __future__ import annotations

import numpy as np
import pytest

from schemas.predictions import Objective
from services.advisor.core.table import Table, build
from services.advisor.models.gp.boosting import LeftOut, Trees
from tests.support.gp_tables import World


@pytest.fixture(scope="module")
def table() -> Table:
    world = World(tasks=6)
    return build(world.records(), world.profiles())[0]


def left_out(table: Table, predicted: np.ndarray) -> LeftOut:
    rates = np.log(table.cost_usd / table.time_s)
    return LeftOut(table, np.log(table.time_s / table.anchor_time_s), predicted, rates)


def test_a_process_that_is_right_is_left_alone(table):
    trees = Trees.of(left_out(table, np.log(table.time_s / table.anchor_time_s)), 0)
    assert set(trees.weights.values()) == {0.0}
    assert trees.booster is None
    assert trees.moves(table, np.ones(len(table)), Objective.TIME).tolist() == [0.0] * len(table)


def test_a_process_that_orders_by_chance_is_moved_towards_the_trees(table):
    chance = np.random.default_rng(0).standard_normal(len(table))
    trees = Trees.of(left_out(table, chance), 0)
    assert trees.weights[Objective.TIME] > 0
    moved = chance + trees.moves(table, chance, Objective.TIME)
    actual = np.log(table.time_s / table.anchor_time_s)
    assert np.corrcoef(moved, actual)[0, 1] > np.corrcoef(chance, actual)[0, 1] + 0.1


def test_two_tasks_are_too_few_to_leave_one_out(table):
    two = table.select(np.isin(table.task, ["alpha", "beta"]))
    assert Trees.of(left_out(two, np.zeros(len(two))), 0).booster is None


def test_rows_that_were_never_left_out_do_not_count(table):
    chance = np.random.default_rng(0).standard_normal(len(table))
    some = np.where(np.arange(len(table)) % 3 == 0, np.nan, chance)
    assert Trees.of(left_out(table, some), 0).weights[Objective.TIME] > 0
    assert set(Trees.of(left_out(table, np.full(len(table), np.nan)), 0).weights.values()) == {0.0}


def test_the_same_seed_gives_the_same_trees(table):
    chance = np.random.default_rng(0).standard_normal(len(table))
    one, other = (Trees.of(left_out(table, chance), 5) for _ in range(2))
    assert one.moves(table, chance, Objective.COST).tolist() == other.moves(table, chance, Objective.COST).tolist()

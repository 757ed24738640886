"""The served Gaussian process as the evaluation sees it: costs, order, and runs that it proposes."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.predictions import Objective
from services.advisor.core.table import Table, build
from services.advisor.models.baselines.regressor_model import Fitted
from tests.bench.evaluation.gp import FittedGp, Gp, expected_improvement
from tests.bench.evaluation.metrics import regret
from tests.bench.evaluation.protocols import FittedFeasibility, FittedIntervals, FittedRanker
from tests.bench.evaluation.workload_agnostic import MeanRanking
from tests.support.examples import examples
from tests.support.gp_tables import World

LEFT_OUT = "epsilon"


def table_of(world: World) -> Table:
    return build(world.records(), world.profiles())[0]


def split(table: Table, task: str = LEFT_OUT) -> tuple[Table, Table, Table]:
    """Training rows, questions, and the truth."""
    truth = table.select((table.task == task) & table.completed(Objective.TIME))
    return table.select(table.task != task), truth.without_outcomes(), truth


@pytest.fixture(scope="module")
def world() -> Table:
    return table_of(World(tasks=8))


@pytest.fixture(scope="module")
def fitted_without(world) -> Callable[[str], FittedGp]:
    """Task -> the model that was trained on all others, once."""
    return cache(lambda task: Gp(Objective.TIME).fit(split(world, task)[0], seed=0))


@pytest.fixture(scope="module")
def fitted(fitted_without) -> FittedGp:
    return fitted_without(LEFT_OUT)


def test_it_has_every_interface_of_the_core(fitted):
    for protocol in (Fitted, FittedIntervals, FittedRanker, FittedFeasibility):
        assert isinstance(fitted, protocol)


def test_its_choices_on_left_out_tasks_cost_no_more_than_the_mean_ranking(world, fitted_without):
    learned, ranking = [], []
    for task in map(str, np.unique(world.task)):
        training, questions, truth = split(world, task)
        blind = MeanRanking(Objective.TIME).fit(training, seed=0)
        for model, regrets in ((fitted_without(task), learned), (blind, ranking)):
            regrets.append(regret(truth.time_s, int(np.argmax(model.score(questions)))))
    assert np.mean(learned) <= np.mean(ranking)
    assert np.mean(learned) < 1.2


def test_a_derived_cost_is_price_times_machines_times_time(world, fitted):
    questions = split(world)[1]
    dollars = FittedGp(fitted.predictor, Objective.COST).predict(questions)
    expected = fitted.predict(questions) * questions.workers * questions.price_usd_per_hour / 3600.0
    assert dollars == pytest.approx(expected, rel=1e-6)


def test_what_is_billed_beyond_the_price_is_learned():
    training, questions, truth = split(table_of(World(tasks=5, billed=1.3)))
    fitted = Gp(Objective.COST).fit(training, seed=0)
    derived = fitted.predictor.predict(questions) * truth.workers * truth.price_usd_per_hour / 3600.0
    assert fitted.predict(questions) / derived == pytest.approx(np.full(len(truth), 1.3), rel=1e-6)


def test_runs_that_it_proposes_are_new_and_find_the_best_sooner_than_chance(world, fitted):
    _, questions, truth = split(world)
    measured = np.zeros(0, dtype=np.int64)
    for _ in range(3):
        row = fitted.propose(questions, measured, truth.time_s[measured])
        assert row not in measured
        measured = np.append(measured, row)
    chosen = fitted.choose(questions, measured, truth.time_s[measured])
    by_chance = [np.random.default_rng(seed).permutation(len(truth))[:3] for seed in range(200)]
    assert regret(truth.time_s, chosen) < np.mean([truth.time_s[rows].min() for rows in by_chance]) / truth.time_s.min()


def test_every_run_can_be_proposed_and_a_failed_one_is_never_chosen(world, fitted):
    _, questions, truth = split(world)
    few = questions.select(np.arange(4))
    measured, values = np.zeros(0, dtype=np.int64), truth.time_s[:4].copy()
    values[2] = np.nan
    for _ in range(4):
        measured = np.append(measured, fitted.propose(few, measured, values[measured]))
    assert sorted(measured.tolist()) == [0, 1, 2, 3]
    assert fitted.choose(few, measured, values[measured]) == int(np.nanargmin(values))


def test_training_tasks_without_local_runs_teach_what_configurations_are_like():
    training, questions, truth = split(table_of(World(tasks=6, local_runs=False)))
    fitted = Gp(Objective.TIME).fit(training, seed=0)
    assert regret(truth.time_s, int(np.argmax(fitted.score(questions)))) < 1.5


@settings(max_examples=examples(25))
@given(st.floats(-2, 2), st.floats(0.05, 1.0), st.floats(-2, 2))
def test_expected_improvement_is_that_of_draws(mean, deviation, best):
    drawn = mean + deviation * np.random.default_rng(0).standard_normal(100_000)
    improvement = expected_improvement(np.array([mean]), np.array([deviation]), best)
    assert improvement[0] == pytest.approx(np.maximum(best - drawn, 0.0).mean(), abs=0.02)

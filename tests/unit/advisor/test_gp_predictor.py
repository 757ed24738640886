"""Our predictor on a small world whose law is known."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.jobs import JobState
from schemas.predictions import Objective
from services.advisor.core.table import Table, build
from services.advisor.models.baselines.workload_agnostic import MeanRanking
from services.advisor.models.gp.predictor import FittedGpPredictor, GpPredictor
from services.advisor.models.metrics import regret
from services.advisor.models.model import Fitted, FittedFeasibility, FittedIntervals, FittedRanker
from tests.support.gp_tables import World, in_kind

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
def fitted_without(world) -> Callable[[str], FittedGpPredictor]:
    """Task -> the model that was trained on all others, once."""
    return cache(lambda task: GpPredictor(Objective.TIME).fit(split(world, task)[0], seed=0))


@pytest.fixture(scope="module")
def fitted(fitted_without) -> FittedGpPredictor:
    return fitted_without(LEFT_OUT)


def test_it_has_every_interface_of_the_core(fitted):
    for protocol in (Fitted, FittedIntervals, FittedRanker, FittedFeasibility):
        assert isinstance(fitted, protocol)


def test_a_left_out_task_is_predicted_well(world, fitted):
    _, questions, truth = split(world)
    error = np.abs(np.log(fitted.predict(questions) / truth.time_s))
    assert np.median(error) < 0.25


def test_its_choices_on_left_out_tasks_cost_no_more_than_the_mean_ranking(world, fitted_without):
    learned, ranking = [], []
    for task in map(str, np.unique(world.task)):
        training, questions, truth = split(world, task)
        blind = MeanRanking(Objective.TIME).fit(training, seed=0)
        for model, regrets in ((fitted_without(task), learned), (blind, ranking)):
            regrets.append(regret(truth.time_s, int(np.argmax(model.score(questions)))))
    assert np.mean(learned) <= np.mean(ranking)
    assert np.mean(learned) < 1.2


def test_intervals_hold_what_they_promise_on_left_out_tasks(world, fitted_without):
    inside = []
    for task in map(str, np.unique(world.task)):
        _, questions, truth = split(world, task)
        low, high = fitted_without(task).interval(questions, 0.9)
        inside.append(((low <= truth.time_s) & (truth.time_s <= high)).mean())
    assert 0.8 <= np.mean(inside) <= 1.0


def test_intervals_are_nested_and_hold_the_median(world, fitted):
    questions = split(world)[1]
    median = fitted.predict(questions)
    ends = [fitted.interval(questions, level) for level in (0.5, 0.8, 0.95)]
    assert all((low < median).all() and (median < high).all() for low, high in ends)
    assert all((ends[at][0] >= ends[at + 1][0]).all() and (ends[at][1] <= ends[at + 1][1]).all() for at in (0, 1))


def test_the_same_seed_gives_the_same_and_the_order_of_questions_is_nothing(world, fitted):
    training, questions, _ = split(world)
    again = GpPredictor(Objective.TIME).fit(training, seed=0)
    assert again.predict(questions).tolist() == fitted.predict(questions).tolist()
    assert again.score(questions).tolist() == fitted.score(questions).tolist()
    order = np.random.default_rng(0).permutation(len(questions))
    assert fitted.predict(questions.select(order)) == pytest.approx(fitted.predict(questions)[order], rel=1e-9)


def test_questions_about_several_tasks_are_answered_as_each_alone(world, fitted):
    two = world.select(np.isin(world.task, [LEFT_OUT, "alpha"])).without_outcomes()
    together = fitted.predict(two)
    for task in (LEFT_OUT, "alpha"):
        rows = np.flatnonzero(two.task == task)
        assert together[rows] == pytest.approx(fitted.predict(two.select(rows)), rel=1e-9)


def test_a_derived_cost_is_price_times_machines_times_time(world, fitted):
    questions = split(world)[1]
    dollars = fitted.aimed_at(Objective.COST).predict(questions)
    expected = fitted.predict(questions) * questions.workers * questions.price_usd_per_hour / 3600.0
    assert dollars == pytest.approx(expected, rel=1e-6)


def test_what_is_billed_beyond_the_price_is_learned():
    training, questions, truth = split(table_of(World(tasks=5, billed=1.3)))
    fitted = GpPredictor(Objective.COST).fit(training, seed=0)
    derived = fitted.aimed_at(Objective.TIME).predict(questions) * truth.workers * truth.price_usd_per_hour / 3600.0
    assert fitted.predict(questions) / derived == pytest.approx(np.full(len(truth), 1.3), rel=1e-6)


def test_without_any_price_what_was_paid_for_a_machine_is_used_and_a_stranger_has_no_cost():
    training, questions, truth = split(table_of(World(tasks=5)))
    unlisted = replace(training, price_usd_per_hour=np.full(len(training), np.nan))
    fitted = GpPredictor(Objective.COST).fit(unlisted, seed=0)
    asked = replace(questions, price_usd_per_hour=np.full(len(questions), np.nan))
    assert fitted.predict(asked) / truth.cost_usd == pytest.approx(np.ones(len(truth)), abs=0.5)
    features = asked.features.copy()
    features[:, asked.columns("config.instance_type=")] = 0.0
    stranger = replace(asked, features=features)
    assert np.isnan(fitted.predict(stranger)).all()
    assert np.isfinite(fitted.score(stranger)).all()


def test_memory_that_does_not_suffice_is_foreseen():
    table = table_of(World(tasks=6, memory_limit=True))
    training = table.select(table.task != LEFT_OUT)
    asked = table.select(table.task == LEFT_OUT)
    assert not asked.feasible.all()
    chance = GpPredictor(Objective.TIME).fit(training, seed=0).feasible(asked.without_outcomes())
    assert ((chance > 0) & (chance < 1)).all()
    assert chance[asked.feasible].min() > chance[~asked.feasible].max()


def test_where_nothing_ever_failed_nothing_is_certain(fitted, world):
    chance = fitted.feasible(split(world)[1])
    assert (chance > 0.95).all()
    assert (chance < 1.0).all()


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


def test_a_measured_run_corrects_the_others(world, fitted):
    _, questions, truth = split(world)
    slower = truth.time_s * 5.0
    before = fitted.posterior(questions)
    after = fitted.posterior(questions, np.array([3]), slower[[3]])
    others = np.setdiff1d(np.arange(len(truth)), [3])
    assert (after.mean[others] > before.mean[others]).mean() > 0.9


def test_without_a_local_run_it_answers_and_is_less_sure(world, fitted):
    questions = split(world)[1]
    blind = replace(questions, anchor_time_s=np.full(len(questions), np.nan))
    low, high = fitted.interval(questions, 0.9)
    blind_low, blind_high = fitted.interval(blind, 0.9)
    assert np.isfinite(fitted.predict(blind)).all()
    assert (blind_high / blind_low > high / low).all()


def test_training_tasks_without_local_runs_teach_what_configurations_are_like():
    training, questions, truth = split(table_of(World(tasks=6, local_runs=False)))
    fitted = GpPredictor(Objective.TIME).fit(training, seed=0)
    assert regret(truth.time_s, int(np.argmax(fitted.score(questions)))) < 1.5


def test_a_known_task_without_a_local_run_keeps_its_level():
    """Its other rows are known: a row that is held out is predicted from them, not from other tasks' level."""
    table = table_of(World(tasks=5, local_runs=False))
    held_out = (table.task == "gamma") & (np.arange(len(table)) % 4 == 0)
    fitted = GpPredictor(Objective.TIME).fit(table.select(~held_out), seed=0)
    predicted = fitted.predict(table.select(held_out).without_outcomes())
    assert np.median(np.abs(np.log(predicted / table.time_s[held_out]))) < 0.1


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10_000))
def test_it_learns_from_any_few_rows_and_never_answers_with_nan(world, seed):
    random = np.random.default_rng(seed)
    rows = random.permutation(len(world))[: int(random.integers(1, 12))]
    fitted = GpPredictor(Objective.TIME).fit(world.select(rows), seed=seed)
    predicted = fitted.predict(world.without_outcomes())
    low, high = fitted.interval(world.without_outcomes(), 0.9)
    assert (predicted > 0).all()
    assert np.isfinite(predicted).all()
    assert (low <= predicted).all()
    assert (predicted <= high).all()


def test_lower_bounds_and_failures_teach_no_durations():
    world = World(tasks=4)
    records = world.records()
    cut = [
        one.model_copy(update={"state": JobState.TIMED_OUT if at % 2 else JobState.FAILED, "duration_s": 1e-3})
        for at, one in enumerate(records)
        if one.task.task == "alpha"
    ]
    rest = [one for one in records if one.task.task != "alpha"]
    with_cut = build([*rest, *cut], world.profiles())[0]
    without = with_cut.select(with_cut.task != "alpha")
    questions = with_cut.select(with_cut.task == "alpha").without_outcomes()
    one, other = (GpPredictor(Objective.TIME).fit(table, seed=0) for table in (with_cut, without))
    assert one.predict(questions) == pytest.approx(other.predict(questions), rel=1e-9)


def test_nothing_that_ran_through_is_refused():
    table = table_of(World(tasks=1))
    with pytest.raises(ValueError, match="no job ran through"):
        GpPredictor(Objective.TIME).fit(table.without_outcomes(), seed=0)


def test_it_survives_being_stored(world, fitted):
    questions = split(world)[1]
    again = pickle.loads(pickle.dumps(fitted))
    assert again.predict(questions).tolist() == fitted.predict(questions).tolist()


def of_kinds(kinds: dict[str, str]) -> Table:
    """A world in which tasks are of named kinds, and their networks are not described."""
    world = World(tasks=len(kinds), noise=0.2)
    records = [in_kind(one, kinds[one.task.task]) for one in world.records()]
    return build(records, world.profiles())[0]


def test_where_one_kind_is_known_a_stranger_is_ranked_as_the_mean_ranking_does_and_a_relative_is_not():
    table = of_kinds({"alpha": "cnn", "beta": "cnn", "gamma": "cnn", "delta": "rnn"})
    training = table.select(np.isin(table.task, ["alpha", "beta"]))
    fitted, ranking = (
        GpPredictor(Objective.COST).fit(training, seed=0),
        MeanRanking(Objective.COST).fit(training, seed=0),
    )
    stranger = table.select(table.task == "delta").without_outcomes()
    relative = table.select(table.task == "gamma").without_outcomes()
    assert fitted.score(stranger).tolist() == ranking.score(stranger).tolist()
    assert fitted.score(relative) == pytest.approx(-np.log(fitted.predict(relative)), rel=1e-9)


def test_where_two_kinds_are_known_the_model_ranks():
    table = of_kinds({"alpha": "cnn", "beta": "rnn", "gamma": "mlp"})
    fitted = GpPredictor(Objective.TIME).fit(table.select(table.task != "gamma"), seed=0)
    asked = table.select(table.task == "gamma").without_outcomes()
    assert fitted.score(asked) == pytest.approx(-np.log(fitted.predict(asked)), rel=1e-9)


def test_tasks_of_one_name_whose_networks_differ_are_several_kinds():
    world = World(tasks=4)
    named = {"attributes": {"library": "torch"}}
    records = [one.model_copy(update={"task": one.task.model_copy(update=named)}) for one in world.records()]
    table = build(records, world.profiles())[0]
    fitted = GpPredictor(Objective.TIME).fit(table.select(table.task != "delta"), seed=0)
    assert fitted.extras.one_kind is None

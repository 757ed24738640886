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
from services.advisor.models.gp.predictor import GpPredictor
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
def fitted_without(world) -> Callable[[str], GpPredictor]:
    """Task -> the model that was trained on all others, once."""
    return cache(lambda task: GpPredictor.fit(split(world, task)[0], seed=0))


@pytest.fixture(scope="module")
def fitted(fitted_without) -> GpPredictor:
    return fitted_without(LEFT_OUT)


def test_a_left_out_task_is_predicted_well(world, fitted):
    _, questions, truth = split(world)
    error = np.abs(np.log(fitted.predict(questions) / truth.time_s))
    assert np.median(error) < 0.25


def test_intervals_hold_what_they_promise_on_left_out_tasks(world, fitted_without):
    inside = []
    for task in map(str, np.unique(world.task)):
        _, questions, truth = split(world, task)
        low, high = fitted_without(task).quantiles(questions, 0.9).T[[0, 2]]
        inside.append(((low <= truth.time_s) & (truth.time_s <= high)).mean())
    assert 0.8 <= np.mean(inside) <= 1.0


def test_intervals_are_nested_and_hold_the_median(world, fitted):
    questions = split(world)[1]
    median = fitted.predict(questions)
    ends = [fitted.quantiles(questions, level).T[[0, 2]] for level in (0.5, 0.8, 0.95)]
    assert all((low < median).all() and (median < high).all() for low, high in ends)
    assert all((ends[at][0] >= ends[at + 1][0]).all() and (ends[at][1] <= ends[at + 1][1]).all() for at in (0, 1))


def test_the_same_seed_gives_the_same_and_the_order_of_questions_is_nothing(world, fitted):
    training, questions, _ = split(world)
    again = GpPredictor.fit(training, seed=0)
    assert again.predict(questions).tolist() == fitted.predict(questions).tolist()
    order = np.random.default_rng(0).permutation(len(questions))
    assert fitted.predict(questions.select(order)) == pytest.approx(fitted.predict(questions)[order], rel=1e-9)


def test_questions_about_several_tasks_are_answered_as_each_alone(world, fitted):
    two = world.select(np.isin(world.task, [LEFT_OUT, "alpha"])).without_outcomes()
    together = fitted.predict(two)
    for task in (LEFT_OUT, "alpha"):
        rows = np.flatnonzero(two.task == task)
        assert together[rows] == pytest.approx(fitted.predict(two.select(rows)), rel=1e-9)


def test_memory_that_does_not_suffice_is_foreseen():
    table = table_of(World(tasks=6, memory_limit=True))
    training = table.select(table.task != LEFT_OUT)
    asked = table.select(table.task == LEFT_OUT)
    assert not asked.feasible.all()
    chance = GpPredictor.fit(training, seed=0).feasibility.probability(asked.without_outcomes())
    assert ((chance > 0) & (chance < 1)).all()
    assert chance[asked.feasible].min() > chance[~asked.feasible].max()


def test_where_nothing_ever_failed_nothing_is_certain(fitted, world):
    chance = fitted.feasibility.probability(split(world)[1])
    assert (chance > 0.95).all()
    assert (chance < 1.0).all()


def test_without_a_local_run_it_answers_and_is_less_sure(world, fitted):
    questions = split(world)[1]
    blind = replace(questions, reference_time_s=np.full(len(questions), np.nan))
    low, high = fitted.quantiles(questions, 0.9).T[[0, 2]]
    blind_low, blind_high = fitted.quantiles(blind, 0.9).T[[0, 2]]
    assert np.isfinite(fitted.predict(blind)).all()
    assert (blind_high / blind_low > high / low).all()


def test_a_known_task_without_a_local_run_keeps_its_level():
    """Its other rows are known: a row that is held out is predicted from them, not from other tasks' level."""
    table = table_of(World(tasks=5, local_runs=False))
    held_out = (table.task == "gamma") & (np.arange(len(table)) % 4 == 0)
    fitted = GpPredictor.fit(table.select(~held_out), seed=0)
    predicted = fitted.predict(table.select(held_out).without_outcomes())
    assert np.median(np.abs(np.log(predicted / table.time_s[held_out]))) < 0.1


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 10_000))
def test_it_learns_from_any_few_rows_and_never_answers_with_nan(world, seed):
    random = np.random.default_rng(seed)
    rows = random.permutation(len(world))[: int(random.integers(1, 12))]
    fitted = GpPredictor.fit(world.select(rows), seed=seed)
    predicted = fitted.predict(world.without_outcomes())
    low, high = fitted.quantiles(world.without_outcomes(), 0.9).T[[0, 2]]
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
    one, other = (GpPredictor.fit(table, seed=0) for table in (with_cut, without))
    assert one.predict(questions) == pytest.approx(other.predict(questions), rel=1e-9)


def test_nothing_that_ran_through_is_refused():
    table = table_of(World(tasks=1))
    with pytest.raises(ValueError, match="no job ran through"):
        GpPredictor.fit(table.without_outcomes(), seed=0)


def test_it_survives_being_stored(world, fitted):
    questions = split(world)[1]
    again = pickle.loads(pickle.dumps(fitted))
    assert again.predict(questions).tolist() == fitted.predict(questions).tolist()


def of_kinds(kinds: dict[str, str]) -> Table:
    """A world in which tasks are of named kinds, and their networks are not described."""
    world = World(tasks=len(kinds), noise=0.2)
    records = [in_kind(one, kinds[one.task.task]) for one in world.records()]
    return build(records, world.profiles())[0]


def test_where_one_kind_is_known_another_is_out_of_distribution_and_a_relative_is_not():
    table = of_kinds({"alpha": "cnn", "beta": "cnn", "gamma": "cnn", "delta": "rnn"})
    one_kind = GpPredictor.fit(table.select(np.isin(table.task, ["alpha", "beta"])), seed=0).one_kind
    assert one_kind is not None
    assert one_kind.is_out_of_distribution(table.select(table.task == "delta").without_outcomes())
    assert not one_kind.is_out_of_distribution(table.select(table.task == "gamma").without_outcomes())


def test_where_two_kinds_are_known_none_is_out_of_distribution():
    table = of_kinds({"alpha": "cnn", "beta": "rnn", "gamma": "mlp"})
    assert GpPredictor.fit(table.select(table.task != "gamma"), seed=0).one_kind is None


def test_tasks_of_one_name_whose_networks_differ_are_several_kinds():
    world = World(tasks=4)
    named = {"attributes": {"library": "torch"}}
    records = [one.model_copy(update={"task": one.task.model_copy(update=named)}) for one in world.records()]
    table = build(records, world.profiles())[0]
    fitted = GpPredictor.fit(table.select(table.task != "delta"), seed=0)
    assert fitted.one_kind is None

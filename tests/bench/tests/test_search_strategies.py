"""Searches run each configuration once, and better ones need fewer runs."""

from __future__ import annotations

import numpy as np
import pytest

from schemas.predictions import Objective
from services.advisor.core.arrays import FloatArray, IntArray
from services.advisor.core.table import Table
from tests.bench.evaluation.evaluation import evaluate_search, leave_one_task_out
from tests.bench.evaluation.protocols import Sequential, best_measured, remaining
from tests.bench.evaluation.search_strategies import Bayesian, ErnestSearch, FirstOf, RandomSearch
from tests.bench.evaluation.workload_agnostic import CheapestHour, MeanRanking
from tests.support.advisor_records import made_table

TIME = Objective.TIME
SEARCHES = [Bayesian(TIME), RandomSearch(TIME), ErnestSearch(TIME), FirstOf(MeanRanking(TIME))]


def names(model: Sequential) -> str:
    return model.name


def one_task(task: str = "ccc") -> Table:
    table = made_table()
    return table.select(table.task == task)


def searched(model: Sequential, runs: int, seed: int = 0) -> tuple[IntArray, FloatArray]:
    table = one_task()
    fitted = model.fit(made_table(), seed=seed)
    measured = np.zeros(0, dtype=np.int64)
    for _ in range(runs):
        values = table.time_s[measured]
        measured = np.append(measured, fitted.propose(table.without_outcomes(), measured, values))
    return measured, table.time_s[measured]


@pytest.mark.parametrize("model", SEARCHES, ids=names)
def test_every_configuration_is_run_once_and_then_there_is_none(model: Sequential) -> None:
    measured, values = searched(model, 16)
    assert sorted(measured.tolist()) == list(range(16))
    with pytest.raises(ValueError, match="every configuration was run"):
        model.fit(made_table(), seed=0).propose(one_task(), measured, values)


@pytest.mark.parametrize("model", SEARCHES, ids=names)
def test_the_same_seed_searches_the_same(model: Sequential) -> None:
    assert np.array_equal(searched(model, 5, seed=3)[0], searched(model, 5, seed=3)[0])


@pytest.mark.parametrize("model", SEARCHES, ids=names)
def test_a_failed_run_is_not_chosen(model: Sequential) -> None:
    table, fitted = one_task(), model.fit(made_table(), seed=0)
    measured, values = np.array([2, 5, 9]), np.array([np.nan, 7.0, 8.0])
    assert fitted.propose(table, measured, values) not in measured
    if not isinstance(model, ErnestSearch):
        assert fitted.choose(table, measured, values) == 5


@pytest.mark.parametrize("model", SEARCHES, ids=names)
def test_all_runs_may_fail(model: Sequential) -> None:
    table, fitted = one_task(), model.fit(made_table(), seed=0)
    measured, values = np.array([2, 5, 9]), np.full(3, np.nan)
    assert 0 <= fitted.propose(table, measured, values) < 16
    assert fitted.choose(table, measured, values) == 2


def test_regrets_of_a_search_that_keeps_the_best_never_grow() -> None:
    table = made_table()
    for split in leave_one_task_out(table):
        (search,) = evaluate_search(Bayesian(TIME), table, split, seed=1, runs=15)
        assert (np.diff(search.regrets) <= 0).all()
        assert search.regrets[-1] == 1.0
        assert set(table.task[search.runs]) == {split.name}


def test_bayesian_optimisation_needs_fewer_runs_than_chance() -> None:
    """On a smooth law of 16 configurations; means over all tasks and 5 seeds, after 5 runs."""
    table = made_table()
    means = [
        np.mean(
            [
                evaluate_search(model, table, split, seed=seed, runs=5)[0].regrets[-1]
                for split in leave_one_task_out(table)
                for seed in range(5)
            ]
        )
        for model in (Bayesian(TIME), RandomSearch(TIME))
    ]
    assert means[0] < means[1]


def test_the_first_of_a_ranking_are_run_in_its_order() -> None:
    table = one_task()
    measured, _ = searched(FirstOf(CheapestHour(TIME)), 3)
    hourly = (table.price_usd_per_hour * table.workers)[measured]
    assert hourly.tolist() == sorted(hourly.tolist())
    assert hourly[0] == pytest.approx(0.05)


def test_ernest_trusts_its_law_beyond_what_was_run() -> None:
    """One machine type: 1, 2 and 4 workers say that 8 are best for long work, though 8 were never run."""
    table = made_table(("a" * 40,))
    table = table.select(np.char.startswith(table.configuration_key, "made/small"))
    assert table.workers.tolist() == [1, 2, 4, 8]
    fitted = ErnestSearch(TIME).fit(table, seed=0)
    assert fitted.choose(table.without_outcomes(), np.array([0, 1, 2]), table.time_s[:3]) == 3


def test_what_is_left_and_what_is_best() -> None:
    assert remaining(one_task(), np.array([0, 3])).tolist() == [1, 2, *range(4, 16)]
    assert best_measured(np.array([4, 2]), np.array([np.nan, 3.0])) == 2

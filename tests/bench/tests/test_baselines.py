"""What the baselines learn of a law that is known."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest

from schemas.jobs import JobState
from schemas.predictions import Objective
from services.advisor.core.table import Table, build
from services.advisor.models.baselines.feature_preprocessing import Preprocessing
from services.advisor.models.baselines.learned import Boosting, Forest, Linear
from services.advisor.models.baselines.regressor_model import Regressor
from tests.bench.evaluation.ernest import Ernest
from tests.bench.evaluation.importance import families, permutation_importance, shuffled
from tests.bench.evaluation.learned_baselines import BoostingOfRatio, ForestClassifier, Poisson
from tests.bench.evaluation.metrics import median_ape
from tests.bench.evaluation.protocols import Ranker, ranking_of
from tests.bench.evaluation.workload_agnostic import CheapestHour, LargestMachine, MeanRanking, RandomChoice
from tests.support.advisor_records import grid, made_table, price, record

TIME, COST = Objective.TIME, Objective.COST
REGRESSORS = [
    Linear(TIME),
    Poisson(TIME),
    Forest(TIME, trees=20),
    Boosting(TIME, rounds=150),
    BoostingOfRatio(TIME, rounds=150),
    Ernest(TIME),
]
RANKERS = [
    MeanRanking(TIME),
    CheapestHour(TIME),
    LargestMachine(TIME),
    RandomChoice(TIME),
    ForestClassifier(TIME, trees=20),
]


def names(model: Regressor | Ranker) -> str:
    return model.name


def held_out(table: Table) -> tuple[Table, Table]:
    """Every third row, and the others."""
    third = np.arange(len(table)) % 3 == 1
    return table.select(~third), table.select(third)


@pytest.mark.parametrize("model", REGRESSORS, ids=names)
def test_a_regression_predicts_known_tasks(model: Regressor) -> None:
    """The middle of the values' spread is a factor of 3: 30 % is far better than a constant."""
    training, test = held_out(made_table(("a", "bb", "cccc", "dddddddd", "e" * 16)))
    predicted = model.fit(training, seed=1).predict(test.without_outcomes())
    assert (predicted > 0).all()
    assert median_ape(test.time_s, predicted) < 0.3


@pytest.mark.parametrize("model", [*REGRESSORS, *RANKERS], ids=names)
def test_the_same_seed_learns_the_same_and_survives_storage(model: Regressor | Ranker) -> None:
    table = made_table()
    first, second = (ranking_of(model.fit(table, seed=5)) for _ in range(2))
    stored = pickle.loads(pickle.dumps(first))
    asked = table.without_outcomes()
    assert np.array_equal(first.score(asked), second.score(asked))
    assert np.array_equal(first.score(asked), stored.score(asked))
    assert np.isfinite(first.score(asked)).all()


@pytest.mark.parametrize(
    "model",
    [one for one in [*REGRESSORS, *RANKERS] if one.name not in {"cheapest $/h", "largest machine", "random"}],
    ids=names,
)
def test_unfinished_jobs_teach_nothing(model: Regressor | Ranker) -> None:
    """The same jobs beside failed and stopped ones with absurd times: the same ranking."""
    good = grid(("a", "bb", "ccc"))
    bad = [
        one.model_copy(update={"job": f"{one.job}-bad", "state": state, "duration_s": 1e-3})
        for one, state in zip(good[:8], [JobState.FAILED, JobState.TIMED_OUT] * 4, strict=True)
    ]
    table, encoder = build(good, {})
    with_bad, _ = build([*good, *bad], {}, encoder=encoder)
    asked = table.without_outcomes()
    scores = [ranking_of(model.fit(one, seed=2)).score(asked) for one in (table, with_bad)]
    assert np.allclose(scores[0], scores[1])


def test_mean_ranking_by_hand() -> None:
    """Of small-1, small-2, small-4: task a ranks 1 2 3, task b ranks 3 1 2; mean logs (0 + log 3)/2, log(2)/2, ..."""
    seconds = {"a": (1.0, 2.0, 3.0), "b": (9.0, 7.0, 8.0)}
    records = [
        record(task, "small", workers, duration_s=one)
        for task, times in seconds.items()
        for workers, one in zip((1, 2, 4), times, strict=True)
    ]
    fitted = MeanRanking(TIME).fit(build(records, {})[0], seed=0)
    asked, _ = build([record("new", "small", workers) for workers in (1, 2, 4, 8)], {})
    log2, log3 = np.log(2), np.log(3)
    known = [-log3 / 2, -log2 / 2, -(log3 + log2) / 2]
    assert fitted.score(asked).tolist() == pytest.approx([*known, np.mean(known)])


def test_mean_ranking_looks_at_nothing_but_the_configuration() -> None:
    table = made_table()
    spoiled = replace(table, features=np.full_like(table.features, np.nan), task_series={})
    scores = [MeanRanking(COST).fit(one, seed=0).score(table) for one in (table, spoiled)]
    assert np.array_equal(*scores)


def test_the_cheapest_hour_and_the_largest_machine() -> None:
    """Hours of all machines: 0.20 x 1 against 0.05 x 2 and 0.45 x 1; vCPUs 4, 2 and 8."""
    table, _ = build([record("a", "large", 1), record("a", "small", 2), record("a", "huge", 1)], {})
    assert int(np.argmax(CheapestHour(TIME).fit(table, seed=0).score(table))) == 1
    assert int(np.argmax(LargestMachine(TIME).fit(table, seed=0).score(table))) == 2


def test_a_machine_without_a_price_is_no_cheap_one() -> None:
    table, _ = build([record("a", "huge", 8), record("a", "small", 1, price=None)], {})
    assert CheapestHour(TIME).fit(table, seed=0).score(table).argmax() == 0
    assert price("huge").usd_per_hour > price("small").usd_per_hour


def test_chance_differs_between_tasks_and_seeds() -> None:
    table = made_table(("a", "bb"))
    one, other = table.select(table.task == "a"), table.select(table.task == "bb")
    score = RandomChoice(TIME).fit(table, seed=0).score
    assert not np.array_equal(score(one), score(other))
    assert not np.array_equal(score(one), RandomChoice(TIME).fit(table, seed=1).score(one))


def test_a_classifier_finds_the_top_configurations_of_what_it_has_seen() -> None:
    table = made_table()
    scores = ForestClassifier(TIME, trees=30).fit(table, seed=0).score(table)
    best = [
        scores[rows][np.argmin(table.time_s[rows])] for rows in (table.task == one for one in np.unique(table.task))
    ]
    assert min(best) > 0.5
    assert (scores <= 1).all()
    assert scores.min() < 0.1


def test_ernest_recovers_its_own_law_and_says_nothing_of_unknown_tasks() -> None:
    """5 + work/(vcpu n) + 0.01 work (n - 1) is Ernest's law in n: 1, 1/n and n."""
    table = made_table(("a", "bb"))
    fitted = Ernest(TIME).fit(table.select(table.workers != 4), seed=0)
    asked = table.select(table.workers == 4)
    assert fitted.predict(asked.without_outcomes()) == pytest.approx(asked.time_s, rel=1e-4)
    dollars = Ernest(COST).fit(table.select(table.workers != 4), seed=0).predict(asked.without_outcomes())
    assert dollars == pytest.approx(asked.cost_usd, rel=1e-4)
    unknown, _ = build([record("unknown", "small", 1)], {})
    assert np.isnan(fitted.predict(unknown)).all()


@pytest.mark.parametrize("model", [*REGRESSORS, ForestClassifier(TIME)], ids=names)
def test_nothing_can_be_learned_of_nothing(model: Regressor | Ranker) -> None:
    table, _ = build([record("a", "small", 1, state=JobState.FAILED)], {})
    with pytest.raises(ValueError, match="no job with a known time"):
        model.fit(table, seed=0)


def test_prepared_features_come_from_the_training_rows_only() -> None:
    table = made_table()
    training = table.select(table.task != "dddd")
    prepared = Preprocessing.fit(training).apply(training)
    assert prepared.mean(axis=0) == pytest.approx(0, abs=1e-9)
    assert prepared.std(axis=0) == pytest.approx(1, abs=1e-9)
    assert np.isfinite(Preprocessing.fit(training).apply(table)).all()
    assert Preprocessing.fit(training, ("nothing of the kind",)).apply(table).shape == (len(table), 0)


def test_shuffling_what_a_model_uses_hurts_and_the_rest_does_not() -> None:
    """Ernest-like knowledge: the prediction is a function of the workers and the vCPUs only."""

    class Knowing:
        def predict(self, table: Table) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
            return np.exp(table.feature("config.vcpu")) * table.feature("config.workers")

    table = made_table()
    importance = permutation_importance(Knowing(), table, Knowing().predict(table), seed=0)
    assert set(list(importance)[:2]) == {"config.vcpu", "config.workers"}
    assert all(value == 0 for name, value in importance.items() if name not in {"config.vcpu", "config.workers"})
    assert importance["config.workers"] > 0.1


@pytest.mark.parametrize(
    ("family", "also"),
    [
        ("config.workers", "workers"),
        ("config.price_usd_per_hour", "price_usd_per_hour"),
        ("local.time_s", "reference_time_s"),
    ],
)
def test_what_tells_the_same_as_a_shuffled_feature_is_shuffled_with_it(family: str, also: str) -> None:
    table = made_table()
    changed = shuffled(table, family, families(table)[family], np.random.default_rng(0))
    assert not np.array_equal(changed.feature(family), table.feature(family))
    assert np.array_equal(getattr(changed, also), changed.feature(family))


def test_a_configuration_of_shuffled_features_is_not_known_by_its_name() -> None:
    table = made_table()
    changed = shuffled(table, "config.vcpu", families(table)["config.vcpu"], np.random.default_rng(0))
    moved = changed.feature("config.vcpu") != table.feature("config.vcpu")
    assert moved.any()
    assert np.array_equal(changed.configuration_key != table.configuration_key, moved)
    assert not np.isin(changed.configuration_key[moved], table.configuration_key).any()
    other = shuffled(table, "task.parameter_count", families(table)["task.parameter_count"], np.random.default_rng(0))
    assert np.array_equal(other.configuration_key, table.configuration_key)


def test_families_cover_every_feature_once() -> None:
    table = made_table()
    columns = np.concatenate(list(families(table).values()))
    assert sorted(columns.tolist()) == list(range(len(table.feature_names)))
    assert {"config.instance_type", "series.master.cpu_cores"} <= families(table).keys()

"""The thesis' networks as the evaluation and the service use them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from schemas.predictions import Objective
from services.advisor.core.table import Table
from services.advisor.core.trained_model import Algorithm
from services.advisor.model_file import Header, libraries, pack, unpack
from services.advisor.models.baselines.regressor_model import Fitted, RegressorAlgorithm
from services.advisor.models.thesis_bilstm.model import (
    THESIS_MEAN,
    ThesisRegressor,
    Unit,
    thesis_values,
)
from services.advisor.models.thesis_bilstm.network import Output
from tests.bench.evaluation.evaluation import evaluate_left_out, evaluate_split, leave_one_task_out, random_split
from tests.bench.evaluation.labels import top_labels
from tests.bench.evaluation.protocols import FittedCurves, FittedRanker, ranking_of
from tests.bench.evaluation.thesis_classifier import ThesisClassifier
from tests.support.thesis_jobs import jobs, local_run, table_of

EPOCHS = 3


@pytest.fixture(scope="module")
def table() -> Table:
    return table_of(("a", "b", "c"), each=12)


def test_curves_cannot_be_asked_of_nothing(table: Table) -> None:
    with pytest.raises(ValueError, match="at least two"):
        ThesisRegressor(Objective.TIME).fit(table.select(np.array([0])), seed=0)
    with pytest.raises(ValueError, match="no job"):
        ThesisClassifier(Objective.TIME).fit(table.without_outcomes(), seed=0)


@pytest.mark.parametrize("target", list(Objective))
def test_a_regressor_is_what_the_evaluation_expects(table: Table, target: Objective) -> None:
    model = ThesisRegressor(target, epochs=EPOCHS)
    answer, fitted = evaluate_split(model, table, random_split(table, seed=0), seed=0)
    assert isinstance(fitted, Fitted)
    assert isinstance(fitted, FittedCurves)
    assert not isinstance(fitted, FittedRanker)
    assert answer.predicted is not None
    assert (answer.predicted > 0).all()
    assert len(fitted.curves["training loss"]) == EPOCHS
    assert ranking_of(fitted).score(table).shape == (len(table),)


@pytest.mark.parametrize("target", list(Objective))
def test_a_classifier_ranks_left_out_tasks(table: Table, target: Objective) -> None:
    model = ThesisClassifier(target, epochs=EPOCHS)
    split = next(iter(leave_one_task_out(table)))
    answers = evaluate_left_out(model, table, split, seed=0)
    assert [one.task for one in answers] == ["a"]
    fitted = model.fit(table.select(split.training), seed=0)
    assert isinstance(fitted, FittedRanker)
    assert isinstance(fitted, FittedCurves)
    assert not isinstance(fitted, Fitted)
    assert set(fitted.curves) == {"training loss", "training AUC"}
    probability = fitted.probability(table)
    assert ((probability > 0) & (probability < 1)).all()
    np.testing.assert_allclose(probability, 1.0 / (1.0 + np.exp(-fitted.score(table))))


def test_hours_and_dollars_are_what_the_networks_see(table: Table) -> None:
    np.testing.assert_array_equal(thesis_values(table, Objective.TIME), table.time_s / 3600.0)
    np.testing.assert_array_equal(thesis_values(table, Objective.COST), table.cost_usd)
    fitted = ThesisRegressor(Objective.TIME, epochs=1).fit(table, seed=0)
    assert fitted.unit == 1.0
    # a network's output is hours; a prediction is seconds; the curve's RMSE is hours
    output = np.log1p(np.exp(fitted.before_output(table)))
    np.testing.assert_allclose(fitted.predict(table), output * 3600.0, rtol=1e-6)
    rmse_h = np.sqrt(np.mean((fitted.predict(table) - table.time_s) ** 2)) / 3600.0
    assert fitted.curves["training RMSE"][-1] == pytest.approx(rmse_h, rel=1e-5)


def test_a_matched_unit_makes_short_jobs_look_like_the_thesis(table: Table) -> None:
    """Whatever the jobs' length, the same network is learned; predictions and RMSE are in hours all the same."""
    short = replace(table, time_s=table.time_s / 1_000.0)
    model = ThesisRegressor(Objective.TIME, unit=Unit.MATCHED, epochs=EPOCHS)
    long_fit, short_fit = model.fit(table, seed=0), model.fit(short, seed=0)
    assert long_fit.unit == pytest.approx(table.time_s.mean() / 3600.0 / THESIS_MEAN[Objective.TIME])
    np.testing.assert_allclose(short_fit.predict(table) * 1_000.0, long_fit.predict(table), rtol=1e-3)
    np.testing.assert_allclose(short_fit.curves["training RMSE"] * 1_000.0, long_fit.curves["training RMSE"], rtol=1e-3)
    np.testing.assert_allclose(short_fit.curves["training loss"], long_fit.curves["training loss"], rtol=1e-3)


def test_the_unit_is_learned_of_training_rows_only(table: Table) -> None:
    validation = replace(table, time_s=table.time_s * 50.0)
    model = ThesisRegressor(Objective.TIME, unit=Unit.MATCHED, epochs=1)
    assert model.fit_validated(table, validation, seed=0).unit == model.fit(table, seed=0).unit


def test_failed_and_stopped_rows_are_not_learned_from(table: Table) -> None:
    wrong = np.zeros(len(table), dtype=bool)
    wrong[:5] = True
    stopped = replace(table, censored=wrong, time_s=np.where(wrong, 1e9, table.time_s))
    model = ThesisRegressor(Objective.TIME, epochs=1)
    np.testing.assert_array_equal(
        model.fit(stopped, seed=0).predict(table), model.fit(table.select(~wrong), seed=0).predict(table)
    )


@pytest.mark.parametrize(
    "model", [ThesisRegressor(Objective.COST, epochs=2), ThesisClassifier(Objective.COST, epochs=2)]
)
def test_the_same_seed_gives_the_same_bits(table: Table, model: ThesisRegressor | ThesisClassifier) -> None:
    first = model.fit(table, seed=3)
    torch.manual_seed(99)
    again, other = model.fit(table, seed=3), model.fit(table, seed=4)
    np.testing.assert_array_equal(first.before_output(table), again.before_output(table))
    assert not np.array_equal(first.before_output(table), other.before_output(table))


def test_predictions_follow_their_rows(table: Table) -> None:
    fitted = ThesisRegressor(Objective.TIME, epochs=1).fit(table, seed=0)
    order = np.random.default_rng(0).permutation(len(table))
    np.testing.assert_allclose(fitted.predict(table.select(order)), fitted.predict(table)[order], rtol=1e-4)
    one_by_one = [fitted.predict(table.select(np.array([at])))[0] for at in range(4)]
    np.testing.assert_allclose(one_by_one, fitted.predict(table)[:4], rtol=1e-4)
    assert fitted.predict(table.select(np.zeros(0, dtype=np.int64))).shape == (0,)


def test_in_one_batch_the_order_of_training_rows_does_not_matter(table: Table) -> None:
    few = table.select(np.arange(0, 36, 2))
    order = np.random.default_rng(1).permutation(len(few))
    model = ThesisRegressor(Objective.COST, epochs=4)
    np.testing.assert_allclose(
        model.fit(few, seed=0).predict(table), model.fit(few.select(order), seed=0).predict(table), rtol=1e-3
    )


def test_a_task_without_a_local_run_is_answered(table: Table) -> None:
    fitted = ThesisRegressor(Objective.TIME, epochs=1).fit(table, seed=0)
    without = {name: series for name, series in table.task_series.items() if name != "b"}
    said, told = fitted.predict(replace(table, task_series=without)), fitted.predict(table)
    of_b = table.task == "b"
    assert np.isfinite(said).all()
    assert not np.allclose(said[of_b], told[of_b], rtol=1e-3)
    np.testing.assert_allclose(said[~of_b], told[~of_b], rtol=1e-4)


def test_a_set_without_any_series_is_learned() -> None:
    bare = table_of(("a", "b"), each=10, with_series=False)
    fitted = ThesisRegressor(Objective.TIME, epochs=EPOCHS).fit(bare, seed=0)
    assert np.isfinite(fitted.predict(bare)).all()


def test_a_dead_relu_still_predicts_something_positive(table: Table) -> None:
    fitted = ThesisRegressor(Objective.COST, output=Output.RELU, epochs=1).fit(table, seed=0)
    bias = np.array([-1e3], dtype=np.float32)
    dead = replace(fitted, trained=replace(fitted.trained, tensors={**fitted.trained.tensors, "last.bias": bias}))
    assert (dead.before_output(table) < 0).all()
    assert (dead.predict(table) > 0).all()
    assert (dead.predict(table) < 1e-6).all()


def test_labels_of_the_classifiers_are_the_thesis() -> None:
    """Learned long enough on few rows, the top configurations are on top."""
    table = table_of(("a", "b"), each=8, with_series=False)
    few = table.select(np.concatenate([np.flatnonzero(table.task == one)[:8] for one in ("a", "b")]))
    fitted = ThesisClassifier(Objective.TIME, epochs=150).fit(few, seed=0)
    labels = top_labels(few.task, few.time_s)
    assert labels.any()
    assert not labels.all()
    curve = fitted.curves["training loss"]
    assert curve[-1] < 0.7 * curve[0]
    assert fitted.score(few)[labels].mean() > fitted.score(few)[~labels].mean()


def test_eight_rows_are_learned_by_heart(table: Table) -> None:
    eight = table.select(np.arange(0, 32, 4))
    fitted = ThesisRegressor(Objective.TIME, unit=Unit.MATCHED, epochs=100).fit(eight, seed=0)
    assert fitted.curves["training R2"][0] < 0.5
    # not quite 1: in use, the batch normalisation's variance of 8 rows is 8/7 of that in training
    assert fitted.curves["training R2"][-1] > 0.95
    assert fitted.curves["training loss"][-1] < fitted.curves["training loss"][0]


def test_the_service_can_keep_one_in_its_model_file(table: Table) -> None:
    """Its allow-list knows nothing of torch: fitted networks are plain arrays."""
    algorithm: Algorithm = RegressorAlgorithm(ThesisRegressor(Objective.TIME, epochs=1))
    runs = {f"run-{task}": local_run(task) for task in ("a", "b")}
    trained = algorithm.fit(jobs(("a", "b"), each=10), runs, seed=0)
    header = Header("thesis_bilstm", "v", "d", 20, 2, 0, 0, libraries())
    _, read = unpack(pack(header, trained))
    np.testing.assert_array_equal(read.predict(table).time_s, trained.predict(table).time_s)

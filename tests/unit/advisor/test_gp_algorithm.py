"""GpPredictor as the service asks it: predictions, reasons, known tasks and proposals."""

from __future__ import annotations

import numpy as np
import pytest

from schemas.jobs import Configuration, JobRecord
from services.advisor.core.table import Table, build
from services.advisor.models.gp.algorithm import GpAlgorithm, GpModel
from tests.support.gp_tables import World, in_kind, of_task

WORLD = World(tasks=7)


@pytest.fixture(scope="module")
def trained() -> GpModel:
    records = [one for one in WORLD.records() if one.task.task != "delta"]
    return GpAlgorithm().fit(records, WORLD.profiles(), seed=0)


def asked(trained: GpModel, records: list[JobRecord]) -> Table:
    return build(records, WORLD.profiles(), encoder=trained.encoder)[0].without_outcomes()


@pytest.fixture(scope="module")
def question(trained) -> Table:
    return asked(trained, of_task(WORLD.records(), "delta"))


def elsewhere(**changes: object) -> list[JobRecord]:
    """A job on a configuration that differs from a known one."""
    record = of_task(WORLD.records(), "delta")[0]
    configuration = Configuration(**{**record.configuration.model_dump(exclude={"type"}), **changes})
    return [record.model_copy(update={"configuration": configuration})]


def test_the_outlook_is_ordered_and_complete(trained, question):
    predictions = trained.predict(question)
    assert predictions.time_s.shape == (len(question), 3)
    assert (np.diff(predictions.time_s, axis=1) > 0).all()
    assert (predictions.time_s > 0).all()
    assert ((predictions.feasible > 0) & (predictions.feasible <= 1)).all()
    assert predictions.cost_ratio == pytest.approx(np.ones(len(question)), rel=1e-6)
    assert len(predictions.unknown) == len(predictions.extrapolated) == len(question)


def test_what_was_measured_is_no_extrapolation(trained):
    predictions = trained.predict(asked(trained, of_task(WORLD.records(), "alpha")))
    assert set(predictions.extrapolated) == {()}
    assert set(predictions.unknown) == {""}


def test_more_workers_than_measured_are_marked_and_less_sure(trained, question):
    far = trained.predict(asked(trained, elsewhere(workers=64)))
    assert any("workers 64 (measured: 1 to 8)" in one for one in far.extrapolated[0])
    known = trained.predict(question)
    width = known.time_s[:, 2] / known.time_s[:, 0]
    assert far.time_s[0, 2] / far.time_s[0, 0] > np.median(width)


def test_a_machine_that_was_never_measured_is_named(trained):
    predictions = trained.predict(asked(trained, elsewhere(instance_type="quantum-1")))
    assert any("quantum-1" in one for one in predictions.extrapolated[0])


def test_the_machine_and_the_workers_are_reasons_and_factors_say_how_much(trained, question):
    predictions = trained.predict(question)
    fastest, slowest = int(np.argmin(predictions.time_s[:, 1])), int(np.argmax(predictions.time_s[:, 1]))
    fast, slow = trained.contributions(question, np.array([fastest, slowest]))
    for told in (fast, slow):
        strengths = [abs(np.log(one.factor)) for one in told]
        assert strengths == sorted(strengths, reverse=True)
        assert {"machine"} <= {one.feature for one in told}
    assert next(one for one in slow if one.feature == "machine").factor > 1
    assert next(one for one in fast if one.feature == "machine").factor < 1
    assert next(one for one in slow if one.feature == "machine").value == "small"
    assert trained.contributions(question, np.zeros(0, dtype=np.int64)) == []


def test_a_known_task_is_its_own_nearest_neighbour(trained):
    found = trained.neighbours(asked(trained, of_task(WORLD.records(), "beta")), 3)
    assert found[0].task == "beta"
    assert found[0].distance == pytest.approx(0.0, abs=1e-6)
    assert found[0].records == len(of_task(WORLD.records(), "beta")) + 1  # its local run was a job as well
    distances = [one.distance for one in found]
    assert distances == sorted(distances)
    assert len({one.task for one in found}) == 3


def test_proposals_are_different_and_leave_out_what_cannot_be_chosen(trained, question):
    predictions = trained.predict(question)
    values = predictions.time_s[:, 1].copy()
    values[int(np.argmin(values))] = np.nan
    found = trained.propose(question, predictions, values, 3)
    rows = [one.row for one in found]
    assert len(set(rows)) == 3
    assert np.isfinite(values[rows]).all()
    assert all("x the optimum" in one.reason for one in found)
    assert trained.propose(question, predictions, np.full(len(values), np.nan), 3) == []
    assert (
        len(
            trained.propose(
                question.select(np.arange(2)), trained.predict(question.select(np.arange(2))), values[:2], 5
            )
        )
        <= 2
    )


def test_too_few_jobs_are_refused():
    with pytest.raises(ValueError, match="at least"):
        GpAlgorithm().fit(WORLD.records()[:3], WORLD.profiles(), seed=0)


def test_a_stranger_to_the_only_known_kind_is_not_known():
    records = [one for one in World(tasks=3).records() if one.task.task != "gamma"]
    trained = GpAlgorithm().fit([in_kind(one, "cnn") for one in records], WORLD.profiles(), seed=0)
    for name, said in (("rnn", True), ("cnn", False)):
        question = asked(trained, [in_kind(one, name) for one in of_task(WORLD.records(), "gamma")])
        assert all(("one kind" in one) == said for one in trained.predict(question).unknown)

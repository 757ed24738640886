"""The live check's own part: predictions that are fixed, joined with what was measured, and told."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from schemas.jobs import Configuration, JobRecord, JobState, TaskFeatures
from schemas.predictions import ConfigurationPrediction, Estimate, ModelName
from services._jobs.record_files import JobFile
from services.collector.emulator.grid import expand, parse
from services.collector.write_ahead_log import read_journal
from tests.bench.advisor_live_check import (
    CheckFailedError,
    Predicted,
    Promise,
    figures,
    joined,
    make_runs,
    markdown,
    promised,
    record,
    unmeasured,
    write_predictions,
)
from tests.support import training_jobs
from tests.support.fake_trainer import FakeTrainer, expected_duration_s

MODEL = ModelName(model="gp", version="gp-abc-s0", data_hash="abc", records=48, tasks=2, trained_ns=1)


def estimate(median: float) -> Estimate:
    return Estimate(median=median, low=0.5 * median, high=2 * median)


def predicted(workers: int = 1, *, task: str = "text-dnn", **changes) -> Predicted:
    where = Configuration(instance_type="em-wide-16", workers=workers, batch_size=16)
    fields = {"configuration": where, "time_s": estimate(4.0), "cost_usd": estimate(0.01)} | changes
    return Predicted(task=task, prediction=ConfigurationPrediction(**fields))


def measured(
    one: Predicted,
    time_s: float | None,
    cost_usd: float | None,
    state: JobState = JobState.SUCCEEDED,
) -> JobRecord:
    where = one.prediction.configuration
    return JobRecord(
        job=f"{one.task}-{where.workers}",
        dataset="d",
        task=TaskFeatures(task=one.task),
        # the machine as the grid has it: more of it is known than was asked about
        configuration=where.model_copy(update={"vcpu": 0.5}),
        state=state,
        duration_s=time_s,
        cost_usd=cost_usd,
    )


def promise(*predictions: Predicted) -> Promise:
    return Promise(MODEL, 0.9, predictions, "f" * 64, "2026-11-21T15:00:00+00:00")


def test_each_prediction_gets_its_own_measurement_whatever_the_order() -> None:
    asked = [predicted(1), predicted(2), predicted(1, task="image-cnn")]
    runs = [measured(one, 1.0 + at, 0.01) for at, one in enumerate(asked)]
    found = joined(asked, reversed(runs))
    assert [(one.task, one.predicted.configuration.workers, one.time_s) for one in found] == [
        ("text-dnn", 1, 1.0),
        ("text-dnn", 2, 2.0),
        ("image-cnn", 1, 3.0),
    ]


def test_a_prediction_that_was_not_run_is_told() -> None:
    with pytest.raises(CheckFailedError, match="text-dnn on 2 x em-wide-16, batch 16 was predicted, but not run"):
        joined([predicted(1), predicted(2)], [measured(predicted(1), 1.0, 0.01)])


def test_errors_and_intervals_of_time_and_cost_are_told_apart() -> None:
    one = predicted()
    (checked,) = joined([one], [measured(one, 5.0, 0.1)])
    assert checked.time.error == pytest.approx(-0.2)
    assert checked.time.inside is True
    assert checked.cost.error == pytest.approx(-0.9)
    assert checked.cost.inside is False


@pytest.mark.parametrize(
    ("state", "time_s", "inside"),
    [
        (JobState.TIMED_OUT, 25.0, False),  # longer than the interval's end
        (JobState.TIMED_OUT, 6.0, None),  # may be within it
        (JobState.OUT_OF_MEMORY, None, None),
        (JobState.FAILED, None, None),
    ],
)
def test_what_did_not_end_has_no_error(state: JobState, time_s: float | None, inside: bool | None) -> None:
    one = predicted()
    (checked,) = joined([one], [measured(one, time_s, None, state)])
    assert (checked.time.error, checked.time.inside) == (None, inside)
    assert (checked.cost.error, checked.cost.inside) == (None, None)


def test_a_prediction_without_a_price_is_judged_by_its_time_alone() -> None:
    one = predicted(cost_usd=None)
    (checked,) = joined([one], [measured(one, 4.0, 0.01)])
    assert (checked.time.inside, checked.cost.inside) == (True, None)
    assert "| 4 (2 - 8) | 4 | +0% | yes | - | 0.01 | - | - |" in markdown([checked], promise(one))


def test_figures_count_what_can_be_judged() -> None:
    asked = [predicted(workers) for workers in (1, 2, 3, 4)]
    runs = [
        measured(asked[0], 4.0, 0.01),  # right
        measured(asked[1], 5.0, 0.01),  # 20 % too little
        measured(asked[2], 1.0, 0.01),  # 300 % too much
        measured(asked[3], None, None, JobState.OUT_OF_MEMORY),
    ]
    found = figures(one.time for one in joined(asked, runs))
    assert found == {
        "scored": 3,
        "inside": 2,
        "coverage": pytest.approx(2 / 3),
        "median_error": pytest.approx(0.2),
        "largest_error": pytest.approx(3.0),
    }
    assert figures([])["coverage"] is None


def test_the_table_says_what_was_predicted_and_what_came() -> None:
    asked = [predicted(1), predicted(2, known=False, why_unknown="far away"), predicted(3, feasible=0.2)]
    runs = [
        measured(asked[0], 4.0, 0.01),
        measured(asked[1], 25.0, 0.02, JobState.TIMED_OUT),
        measured(asked[2], None, None, JobState.OUT_OF_MEMORY),
    ]
    lines = markdown(joined(asked, runs), promise(*asked)).splitlines()
    assert lines[0].count("|") == lines[1].count("|")
    cost = "0.01 (0.005 - 0.02)"
    first, second, third = lines[2:5]
    assert first == (f"| text-dnn | 1 x em-wide-16, batch 16 | 4 (2 - 8) | 4 | +0% | yes | {cost} | 0.01 | +0% | yes |")
    assert second == (
        "| text-dnn | 2 x em-wide-16, batch 16 | 4 (2 - 8), not known | timed_out 25 | - | no "
        f"| {cost} | timed_out 0.02 | - | - |"
    )
    assert third == (
        "| text-dnn | 3 x em-wide-16, batch 16 | 4 (2 - 8), will not fit | out_of_memory - | - | - "
        f"| {cost} | out_of_memory - | - | - |"
    )
    said = "\n".join(lines[5:])
    assert "intervals of 90%. 1 of 3 configurations ended, 1 were predicted as not known." in said
    assert "Time: 1 of 2 inside, median error 0%. Cost: 1 of 1 inside, median error 0%." in said
    assert f"SHA-256 {'f' * 64}" in said


def test_the_record_is_plain_json_with_a_row_each() -> None:
    asked = [predicted(1), predicted(2)]
    checked = joined(asked, [measured(one, 4.0, 0.01) for one in asked])
    plain = json.loads(json.dumps(record(checked, promise(*asked)), allow_nan=False))
    assert (plain["configurations"], plain["ended"], plain["time"]["coverage"]) == (2, 2, 1.0)
    assert [row["predicted"]["configuration"]["workers"] for row in plain["rows"]] == [1, 2]


def test_predictions_are_fixed_before_the_run(tmp_path: Path) -> None:
    path = tmp_path / "predictions.json"
    made = write_predictions(Promise(MODEL, 0.9, (predicted(),)), path)
    assert made.digest == hashlib.sha256(path.read_bytes()).hexdigest()
    assert made.written
    assert [Predicted.model_validate(one) for one in json.loads(path.read_text())] == [predicted()]
    with pytest.raises(CheckFailedError, match="give another --out"):
        write_predictions(Promise(MODEL, 0.9, (predicted(2),)), path)
    assert made.digest == hashlib.sha256(path.read_bytes()).hexdigest()


GRID = {
    "tasks": ["text-dnn", "tabular-mlp"],
    "instance_types": ["em-wide-16", "em-highcpu-16"],
    "workers": [1, 2],
    "batch_sizes": [16, 64],
    "share": 0.5,
}


def of(rows) -> JobFile:
    """Records of these runs."""
    where = [(row.task, row.instance.configuration(row.workers, row.batch_size)) for row in rows]
    made = [
        JobRecord(
            job=f"job-{number}",
            dataset="d",
            task=TaskFeatures(task=task),
            configuration=at,
            duration_s=1.0,
            state=JobState.SUCCEEDED,
        )
        for number, (task, at) in enumerate(where)
    ]
    return JobFile(tuple(made), ())


def test_what_the_grid_leaves_out_and_nobody_measured_is_asked_the_tasks_in_turn() -> None:
    grid = parse(GRID, "grid.yaml")
    taken = expand(grid, 2)
    left = unmeasured(grid, 2, of(taken), 100)
    # two types x two worker counts x two batch sizes a task, of which a half is drawn
    assert [row.task for row in left] == ["text-dnn", "tabular-mlp"] * 4
    assert {row.key for row in [*taken, *left]} == {row.key for row in expand(parse({**GRID, "share": 1.0}, "g"), 2)}
    assert unmeasured(grid, 2, of(taken), 3) == left[:3]
    assert set(unmeasured(grid, 2, of([*taken, left[0]]), 100)) == set(left[1:])
    only_one_task = of([row for row in taken if row.task == "text-dnn"])
    assert unmeasured(grid, 2, only_one_task, 100) == left[::2]


def test_a_grid_that_leaves_out_nothing_is_told() -> None:
    whole = parse({**GRID, "share": 1.0}, "grid.yaml")
    with pytest.raises(CheckFailedError, match="leaves out nothing"):
        unmeasured(whole, 2, of(expand(whole, 2)), 10)


def test_what_was_predicted_is_run_and_kept_apart(tmp_path: Path) -> None:
    grid = parse(GRID, "grid.yaml")
    found = of(expand(grid, 2))
    rows, trainer = unmeasured(grid, 2, found, 3), FakeTrainer()
    made = make_runs(grid, rows, found, tmp_path, trainer)
    assert [one.duration_s for one in made] == [expected_duration_s(order) for order in trainer.orders]
    assert [(order.task, order.workers, order.batch_size) for order in trainer.orders] == [
        (row.task, row.workers, row.batch_size) for row in rows
    ]
    assert {one.dataset for one in made} == {"emulated-check"}
    assert list(read_journal(tmp_path)) == made


def test_what_is_asked_is_predicted_by_a_model_of_the_records() -> None:
    """Two configurations of two tasks that were left out of the records; the law is simple, so they are hit."""
    tasks = ["one", "three", "fifteen"]
    every = training_jobs.records(tasks)
    left = [one for one in every if one.job in ("one-medium-2-64", "three-large-4-16", "three-medium-1-64")]
    found = JobFile(
        tuple(one for one in every if one not in left), tuple(training_jobs.profile(task) for task in tasks)
    )
    made = promised(found, [(one.task.task, one.configuration) for one in left], seed=0)
    assert made.model.records == len(every) - 3
    assert [(one.task, one.prediction.configuration) for one in made.predictions] == [
        (one.task.task, one.configuration) for one in left
    ]
    for truth, one in zip(left, made.predictions, strict=True):
        assert truth.duration_s == pytest.approx(one.prediction.time_s.median, rel=0.3)
        assert one.prediction.cost_usd is not None
        assert one.prediction.time_s.low <= one.prediction.time_s.median <= one.prediction.time_s.high

"""The live check: what is predicted is read with care, and set beside what was measured."""

from __future__ import annotations

import json

import pytest

from schemas.jobs import JobRecord, JobState, TaskFeatures
from schemas.predictions import ConfigurationPrediction, Estimate
from services.collector.emulator.checking import Comparison, compare, never_measured, read_predictions, table
from services.collector.emulator.grid import expand, parse
from services.collector.tool import BadDataError

GRID = parse(
    {"tasks": ["text-dnn"], "instance_types": ["em-wide-16"], "workers": [1, 2], "batch_sizes": [16]}, "grid.yaml"
)
ROWS = expand(GRID, 2)


def prediction(workers: int = 1, **changes) -> ConfigurationPrediction:
    configuration = GRID.instance_types[0].configuration(workers, 16).model_copy(update=changes)
    return ConfigurationPrediction(configuration=configuration, time_s=Estimate(median=4.0, low=3.0, high=5.0))


def record(row, state: JobState, duration_s: float | None) -> JobRecord:
    return JobRecord(
        job=row.key,
        dataset="d",
        task=TaskFeatures(task=row.task),
        configuration=row.instance.configuration(row.workers, row.batch_size),
        state=state,
        duration_s=duration_s,
    )


def write(tmp_path, entries) -> object:
    path = tmp_path / "predictions.json"
    path.write_text(json.dumps(entries))
    return path


def entry(**changes) -> dict[str, object]:
    return {"task": "text-dnn", "prediction": prediction(**changes).model_dump(mode="json")}


def test_entries_become_runs_of_the_grids_machines(tmp_path):
    ((row, predicted),) = read_predictions(write(tmp_path, [entry(workers=8)]), GRID, 2)
    assert (row.task, row.instance, row.workers, row.batch_size) == ("text-dnn", GRID.instance_types[0], 8, 16)
    assert row.contended  # 8 x 0.5 cores
    assert predicted.time_s.median == 4.0


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([], "holds 0 predictions"),
        ([entry()] * 501, "holds 501 predictions"),
        ({"task": "text-dnn"}, "valid list"),
        ([{"task": "text-dnn"}], "0.prediction: Field required"),
        ([{**entry(), "task": "chess"}], "the grid has no task 'chess'"),
        ([entry(instance_type="n1")], "no machine type 'n1'"),
        ([entry(batch_size=0)], "no batch size"),
    ],
)
def test_what_cannot_be_checked_is_refused(tmp_path, entries, message):
    with pytest.raises(BadDataError, match=message):
        read_predictions(write(tmp_path, entries), GRID, 2)


def test_files_that_are_no_predictions(tmp_path):
    with pytest.raises(BadDataError, match="cannot be read"):
        read_predictions(tmp_path / "none.json", GRID, 2)
    path = tmp_path / "predictions.json"
    path.write_text("[")
    with pytest.raises(BadDataError, match="no JSON"):
        read_predictions(path, GRID, 2)


def test_another_repeat_of_a_configuration_is_known():
    known = [record(ROWS[0], JobState.SUCCEEDED, 1.0).model_copy(update={"repeat": 2})]
    assert never_measured(ROWS, known) == [False, True]


@pytest.mark.parametrize(
    ("state", "duration_s", "ratio", "inside"),
    [
        (JobState.SUCCEEDED, 3.0, 0.75, True),
        (JobState.SUCCEEDED, 6.0, 1.5, False),
        (JobState.TIMED_OUT, 4.5, None, True),  # may still end before 5 s
        (JobState.TIMED_OUT, 30.0, None, False),
        (JobState.OUT_OF_MEMORY, None, None, None),
    ],
)
def test_ratio_and_interval(state, duration_s, ratio, inside):
    each = Comparison(ROWS[0], prediction(), record(ROWS[0], state, duration_s))
    assert each.ratio == ratio
    assert each.inside is inside
    assert each.fields()["state"] == str(state)
    json.dumps(each.fields(), allow_nan=False)


def test_the_table_has_a_line_for_each():
    pairs = [(row, prediction()) for row in ROWS]
    made = list(compare(pairs, lambda row: record(row, JobState.SUCCEEDED, 2.0 * row.workers)))
    lines = table(made).splitlines()
    assert len(lines) == 2 + len(ROWS)
    one = next(line for line in lines if "1 x em-wide-16" in line)
    assert one == "| text-dnn | 1 x em-wide-16 | 16 | 4.00 (3.00 - 5.00) | 2.00 | 0.50 | no |"

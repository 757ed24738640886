"""Figures for the datasheet, computed by hand; and the tool's commands that start nothing."""

from __future__ import annotations

import json

import pytest

from schemas.jobs import JobRecord, JobState, TaskFeatures
from services._runtime.record_files import read_job_file, write_job_file
from services.collector.emulator import commands as emulate
from services.collector.emulator.campaign import Campaign, campaign_name
from services.collector.emulator.figures import markdown, repeat_variations
from services.collector.emulator.grid import BadGridError, expand, parse, read
from services.collector.emulator.instance_types import CATALOGUE
from services.collector.emulator.tasks import base_task
from services.collector.tool import BadDataError
from services.collector.write_ahead_log import Journal
from tests.support.fake_trainer import FakeTrainer
from tests.support.finished_runs import finished

CONTENT = {
    "tasks": ["text-dnn"],
    "instance_types": ["em-wide-16"],
    "workers": [1, 2],
    "batch_sizes": [16],
    "share": 0.5,
}


def record(
    duration_s: float | None, repeat: int = 0, state: JobState = JobState.SUCCEEDED, workers: int = 1
) -> JobRecord:
    return JobRecord(
        job=f"job-{workers}-{repeat}",
        dataset="d",
        task=TaskFeatures(task="text-dnn", parameter_count=1234, epochs=2, samples_per_epoch=100),
        configuration=CATALOGUE[0].configuration(workers, 16),
        state=state,
        duration_s=duration_s,
        repeat=repeat,
        load_average=0.5,
    )


def test_repeats_vary_by_their_standard_deviation():
    records = [
        record(9.0),
        record(10.0, 1),
        record(11.0, 2),
        record(3.0, workers=2),
        record(99.0, 3, JobState.TIMED_OUT),
    ]
    assert repeat_variations(records) == [pytest.approx(0.1)]  # 1 / 10; a single run has none


def test_the_table_counts_every_end():
    records = [
        record(9.0),
        record(11.0, 1),
        record(25.0, 2, JobState.TIMED_OUT, 2),
        record(None, 3, JobState.OUT_OF_MEMORY, 3),
    ]
    text = markdown(records, [])
    assert "4 runs of 3 configurations: 2 succeeded, 1 timed_out, 1 out_of_memory; 0 contended." in text
    assert "| text-dnn | 1,234 | 0.00 | 2 x 100 | 3 | 4 | 1 | 1 | 0 | 9.00 / 10.00 / 11.00 | - |" in text
    assert "median 14.1%" in text  # sqrt 2 / 10


@pytest.fixture
def directory(tmp_path):
    """Of a finished grid; the grid beside it."""
    grid_file, out = tmp_path / "grid.yaml", tmp_path / "out"
    grid_file.write_text(json.dumps(CONTENT))
    grid = read(grid_file)
    with Journal(out) as journal:
        name = campaign_name(out, grid, expand(grid, 2))
        Campaign(grid, expand(grid, 2), name, journal, FakeTrainer(), lambda *_: None).go_on()
    return out


def run(directory, capsys, *arguments: str) -> tuple[list[dict], str]:
    assert emulate.main([str(directory.with_name("grid.yaml")), "--out", str(directory), *arguments]) == 0
    captured = capsys.readouterr()
    return [json.loads(line) for line in captured.out.splitlines()], captured.err


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    monkeypatch.setattr(emulate, "machine_cores", lambda: 2)


def test_the_plan_makes_no_run(directory, capsys):
    events, text = run(directory, capsys, "--plan")
    assert [event["event"] for event in events] == ["plan"] * len(expand(parse(CONTENT, "g"), 2))
    assert text == "1 runs, 0 of them contended\n"


def test_what_is_left_is_told_with_features_and_local_run(directory, capsys):
    events, _ = run(directory, capsys, "--unmeasured", "10")
    assert [event["event"] for event in events] == ["unmeasured"]
    assert events[0]["task"]["task"] == "text-dnn"
    assert events[0]["run"].endswith("-local-text-dnn")


def test_figures_of_a_directory(directory, capsys):
    events, text = run(directory, capsys, "--figures")
    assert events == []
    assert "1 runs of 1 configurations: 1 succeeded" in text


def test_a_wrong_command_line_and_a_wrong_grid(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        emulate.main(["--plan", "--figures"])
    assert ended.value.code == 2
    assert "not allowed with" in capsys.readouterr().err
    with pytest.raises(BadDataError, match="cannot be read"):
        emulate.main([str(tmp_path / "none.yaml"), "--plan"])


def test_joined_files_hold_each_run_once_with_what_a_cut_would_have_told(tmp_path, capsys):
    """Runs at a load of other work are contended from then on."""
    calm, busy = record(9.0), record(11.0, 1).model_copy(update={"load_average": 9.0})
    one, other = tmp_path / "one.parquet", tmp_path / "other.parquet"
    write_job_file(one, [calm], [finished(300)])
    write_job_file(other, [calm, busy], [])

    assert emulate.main(["--out", str(tmp_path / "out"), "--join", str(one), str(other), "--busy-load", "8"]) == 0

    found = read_job_file(tmp_path / "out/records.parquet")
    assert [record.contended for record in found.records] == [False, True]
    assert [run.run for run in found.profiles] == ["whole", "whole-cut-3", "whole-cut-10"]
    emulate.main(["--out", str(tmp_path / "out"), "--figures"])
    assert "| t | 3.0 | 30.0 | 30 |" in capsys.readouterr().err


def test_a_task_may_be_trained_several_times_as_long():
    assert parse(CONTENT | {"tasks": ["text-dnn", "text-dnn-x20"]}, "f").tasks == ("text-dnn", "text-dnn-x20")
    assert base_task("text-dnn-x20") == ("text-dnn", 20)
    assert base_task("text-dnn") == ("text-dnn", 1)
    with pytest.raises(BadGridError, match="no such task: text-x20"):
        parse(CONTENT | {"tasks": ["text-x20"]}, "f")


def test_no_run_begins_too_late_and_a_later_start_goes_on(tmp_path):
    grid = parse(CONTENT | {"share": 1.0}, "f")
    rows = expand(grid, 2)
    kept: list[object] = []
    with Journal(tmp_path) as journal:
        name = campaign_name(tmp_path, grid, rows)
        late = Campaign(grid, rows, name, journal, FakeTrainer(), lambda *told: kept.append(told), -1.0)
        late.go_on()
        assert kept == []
        Campaign(grid, rows, name, journal, FakeTrainer(), lambda *told: kept.append(told)).go_on()
    assert len(kept) == len(rows) + 1

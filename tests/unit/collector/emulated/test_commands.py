"""The tool's commands that start nothing, and when a campaign begins a run."""

from __future__ import annotations

import json

import pytest

from services.collector.emulator import commands as emulate
from services.collector.emulator.campaign import Campaign, campaign_name
from services.collector.emulator.grid import BadGridError, expand, parse, read
from services.collector.emulator.tasks import base_task
from services.collector.tool import BadDataError
from services.collector.write_ahead_log import Journal
from tests.support.fake_trainer import FakeTrainer

CONTENT = {
    "tasks": ["text-dnn"],
    "instance_types": ["em-wide-16"],
    "workers": [1, 2],
    "batch_sizes": [16],
    "share": 0.5,
}


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


def test_a_wrong_command_line_and_a_wrong_grid(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        emulate.main(["--plan", "--stop-after", "never"])
    assert ended.value.code == 2
    assert "--stop-after" in capsys.readouterr().err
    with pytest.raises(BadDataError, match="cannot be read"):
        emulate.main([str(tmp_path / "none.yaml"), "--plan"])


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

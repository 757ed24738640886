"""Lines of `turnbuckle train`, for people and for programs, also where their reader has gone away."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from schemas.measured_runs import MeasuredRun
from schemas.plans import PlanReason
from services.trainer.commands.train_output import TrainOutput
from services.trainer.commands.training import split_event
from services.trainer.core.pauses import Pause, PauseSummary
from services.trainer.core.progress import Progress
from tests.support.measured_runs import measured_run

PROGRESS = Progress(
    done=10, total=50, step_us=21_500.0, predicted_step_us=20_000.0, samples_per_s=1_234.6, loss=0.12345678
)
REASON = PlanReason(measured=1_300, threshold=1_200, unit="us", sentence="steps are slow")
RESULT = {"event": "result", "step": 10, "loss": None, "stopped": True}


def test_lines_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    output = TrainOutput(as_json=False)
    output.progress(PROGRESS)
    output.drift(REASON)
    output.from_ranks("printed by the model", stream="stdout")
    output.from_torchrun("Traceback of torchrun")
    output.result(RESULT, 50, "saved")
    shown, said = capsys.readouterr()

    assert shown.splitlines() == [
        "step 10 of 50  21.5 ms (planned 20 ms)  1,235 samples/s  loss 0.123457",
        "stopped after step 10 of 50",
    ]
    assert said.splitlines() == [
        "warning: steps are slow",
        "printed by the model",
        "the same command goes on at the last checkpoint in saved",
    ]


def test_events_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    output = TrainOutput(as_json=True)
    output.progress(PROGRESS)
    output.drift(REASON)
    output.from_ranks("printed by the model", stream="stdout")
    output.from_torchrun("Traceback of torchrun")
    output.result(RESULT, 50, "saved")
    shown, said = capsys.readouterr()
    progress, drift, first, second, result = map(json.loads, shown.splitlines())

    assert said == ""
    assert (progress["event"], progress["done"], progress["predicted_step_us"]) == ("progress", 10, 20_000)
    assert drift == {
        "event": "drift",
        "measured": 1_300,
        "threshold": 1_200,
        "unit": "us",
        "sentence": "steps are slow",
    }
    assert first == {"event": "output", "stream": "stdout", "text": "printed by the model"}
    assert second["stream"] == "stderr"
    assert result == RESULT | {"total": 50}


@pytest.mark.parametrize(
    ("line", "text", "event"),
    [
        ('{"event": "result", "step": 8}', "", {"event": "result", "step": 8}),
        ('epoch 3{"event": "result", "step": 8}', "epoch 3", {"event": "result", "step": 8}),
        ('see {"event": 1}', 'see {"event": 1}', None),
        ('{"event": "result"', '{"event": "result"', None),
        ("", "", None),
    ],
)
def test_an_event_is_found_behind_what_another_rank_has_begun_to_print(
    line: str, text: str, event: dict[str, Any] | None
) -> None:
    assert split_event(line) == (text, event)


def test_a_reader_that_goes_away_does_not_end_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    with os.fdopen(write, "w", encoding="utf-8") as stream:
        monkeypatch.setattr("sys.stdout", stream)
        output = TrainOutput(as_json=False)
        output.progress(PROGRESS)
        os.close(read)
        for _ in range(3):
            output.progress(PROGRESS)
        monkeypatch.undo()


def test_what_later_plans_learn(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file, run = tmp_path / "runs.jsonl", measured_run(1.2)
    for output in (TrainOutput(as_json=False), TrainOutput(as_json=True)):
        output.recorded(run, file)
        output.recorded("too few steps", file)
    shown, said = capsys.readouterr()

    assert said.splitlines() == [
        f"recorded in {file}: 12 ms a step, the layer profiles predict 10 ms",
        "not recorded for later plans: too few steps",
    ]
    first, second = (json.loads(line) for line in shown.splitlines())
    assert MeasuredRun.model_validate(first["run"]) == run
    assert (first["event"], first["file"], first["refused"]) == ("recorded", str(file), "")
    assert (second["run"], second["refused"]) == (None, "too few steps")


def test_pauses_are_summed_up_for_people_where_there_were_any(capsys: pytest.CaptureFixture[str]) -> None:
    output = TrainOutput(as_json=False)
    output.continued(Pause(2, 7, 240_000, after_failure=False))
    output.pauses(PauseSummary(3, 240_000, 1_500_000), PauseSummary(0, None, None))
    shown, said = capsys.readouterr()

    assert (shown, said) == ("", "steps paused at each change of workers: 240 ms (p50), 1.5 s (p95) of 3\n")


def test_each_pause_and_their_sums_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    output = TrainOutput(as_json=True)
    output.continued(Pause(2, 7, 240_000, after_failure=True))
    output.pauses(PauseSummary(0, None, None), PauseSummary(1, 240_000, 240_000))
    continued, pauses = map(json.loads, capsys.readouterr()[0].splitlines())

    assert continued == {"event": "continued", "generation": 2, "step": 7, "pause_us": 240_000, "after_failure": True}
    assert pauses["changes"] == {"count": 0, "p50_us": None, "p95_us": None}
    assert pauses["failures"] == {"count": 1, "p50_us": 240_000, "p95_us": 240_000}

"""`turnbuckle train` as a user types it: two unequal ranks by the example's plan, stopped midway, and gone on with."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from schemas.measured_runs import MeasuredRun
from services._jobs.measured_run_file import read_runs
from services._runtime.exit_code import ExitCode
from services.trainer.core.measured_run import FIRST_STEPS

BIN = Path(sys.executable).parent
EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "trainer"
ENDLESS = 1_000_000
DEADLINE_S = 240
KILLING = """
import os
calls = []
def loss(output, target):
    calls.append(1)
    if os.environ["RANK"] == "1" and len(calls) == 5:
        os.kill(os.getpid(), 9)
    return (output - target).square().sum()
"""
pytestmark = [pytest.mark.host, pytest.mark.slow]
"""torchrun and each rank import torch: a quarter of a minute of a processor for each start."""


@contextmanager
def started(directory: Path, steps: int, *words: str, example: str = "plan.json") -> Iterator[subprocess.Popen[str]]:
    plan = json.loads((EXAMPLE / example).read_text())
    plan["devices"] = [device | {"kind": "cpu"} for device in plan["devices"]]
    (directory / "plan.json").write_text(json.dumps(plan))
    line = [BIN / "turnbuckle", "train", "plan.json", f"{EXAMPLE}/model.py:build"]
    given = ["--data", f"{EXAMPLE}/data.py:batches", "--steps", str(steps), "--device", "cpu", *words]
    pipe = subprocess.PIPE
    with subprocess.Popen([*line, *given], cwd=directory, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_it_saves_at_sigterm_and_the_same_command_goes_on(tmp_path: Path) -> None:
    with started(tmp_path, ENDLESS, "--checkpoint", "saved") as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        out, said = process.communicate(timeout=DEADLINE_S)

    assert process.returncode == 0, said
    assert re.fullmatch(rf"step \d+ of {ENDLESS}  [\d.]+ m?s \(planned 20 ms\)  \S+ samples/s  loss \S+\n", first), (
        first
    )
    end = re.fullmatch(rf"stopped after step (\d+) of {ENDLESS}, loss \S+", out.splitlines()[-1])
    assert end, out
    done = int(end[1])
    assert f"saved after step {done}\n" in said
    assert "the same command goes on at the last checkpoint in saved" in said

    with started(tmp_path, done + 30, "--checkpoint", "saved", "--json") as process:
        out, said = process.communicate(timeout=DEADLINE_S)

    assert (process.returncode, said) == (0, "")
    events = [json.loads(line) for line in out.splitlines()]
    assert f"goes on after step {done}" in [event["text"] for event in events if event["event"] == "output"]
    [result] = [event for event in events if event["event"] == "result"]
    assert (result["step"], result["total"], result["stopped"]) == (done + 30, done + 30, False)
    steps = [event["done"] for event in events if event["event"] == "progress"]
    assert steps == sorted(steps)
    assert (steps[0] > done, steps[-1]) == (True, done + 30)
    [recorded] = [event for event in events if event["event"] == "recorded"]
    run = read_runs(Path(recorded["file"]), print)[-1]
    assert run == MeasuredRun.model_validate(recorded["run"])
    assert (run.plan, run.kinds, run.predicted_step_us) == ("example", ("cpu",), 20_000)
    assert 0 < run.steps <= 30 - FIRST_STEPS


def test_a_pipeline_has_the_loss_of_another_plan(tmp_path: Path) -> None:
    """Three ranks in two groups, two turns; beside two ranks that divide each layer."""
    results = []
    for example in ("pipeline.json", "plan.json"):
        with started(tmp_path, 30, "--checkpoint", example.removesuffix(".json"), "--json", example=example) as process:
            out, said = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, said) == (0, "")
        [result] = [event for event in map(json.loads, out.splitlines()) if event["event"] == "result"]
        results.append(result)

    assert [result["step"] for result in results] == [30, 30]
    # in float32, with sums in another order
    assert results[0]["loss"] == pytest.approx(results[1]["loss"], rel=1e-4)


def test_a_killed_rank_is_75_and_is_named(tmp_path: Path) -> None:
    (tmp_path / "losses.py").write_text(KILLING)
    with started(tmp_path, 50, "--loss", "losses.py:loss", "--checkpoint", "saved", "--json") as process:
        out, said = process.communicate(timeout=DEADLINE_S)

    assert process.returncode == ExitCode.RESUMABLE, out
    error = json.loads(said)["error"]
    assert error["kind"] == "resumable"
    assert "rank 1 was killed (SIGKILL): by the kernel where memory ran out" in error["message"]
    assert "the same command goes on at the last checkpoint in saved" in error["message"]


def test_what_a_rank_refuses_is_65_with_its_sentence_last(tmp_path: Path) -> None:
    (tmp_path / "losses.py").write_text("loss = 3\n")
    with started(tmp_path, 5, "--loss", "losses.py:loss") as process:
        out, said = process.communicate(timeout=DEADLINE_S)

    assert (process.returncode, out) == (ExitCode.BAD_DATA, "")
    assert "losses.py:loss is a int, not a function" in said.splitlines()[-1]
    assert "Traceback" not in said, "torchrun's own page is left out"

"""The command line of a local run, and the task's features in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from services._runtime.command.errors import UsageError
from services.collector.profiler.options import parse
from services.collector.tool import BadDataError

FEATURES = {"task": "mnist", "parameter_count": 42, "layers": ["Linear"], "epochs": 3}


def test_defaults() -> None:
    plan = parse(["--", "python", "dir/train.py", "--lr", "0.1"])
    assert plan.argv == ("python", "dir/train.py", "--lr", "0.1")
    assert (plan.workers, plan.limit_s, plan.interval_s) == (3, 600.0, 1.0)
    assert plan.task.task == "train"
    assert plan.run.startswith("train-")
    assert plan.configuration.instance_type == "local"
    assert plan.configuration.workers == 3
    assert plan.use_bus


def test_the_commands_own_options_are_left_alone() -> None:
    plan = parse(["--workers", "2", "--", "python", "-m", "pkg.train", "--workers", "9", "--out", "x"])
    assert plan.workers == 2
    assert plan.argv[-4:] == ("--workers", "9", "--out", "x")
    assert plan.task.task == "pkg.train"


def test_limits_are_the_configuration() -> None:
    plan = parse(["--cpus", "0.5", "--memory", "2GiB", "--network-bps", "100000000", "--batch-size", "32", "--", "x"])
    assert (plan.limits.cpu_cores, plan.limits.memory_bytes) == (0.5, 2 << 30)
    assert (plan.configuration.vcpu, plan.configuration.memory_gb) == (0.5, 2.0)
    assert plan.configuration.network_gbps == pytest.approx(0.1)
    assert plan.configuration.batch_size == 32


def test_the_gpu_that_the_command_trains_on_has_its_usual_name() -> None:
    on_gpu = parse(["--workers", "1", "--accelerator", "Tesla T4", "--", "x"]).configuration
    assert (on_gpu.accelerator, on_gpu.accelerators) == ("T4", 1)
    without = parse(["--", "x"]).configuration
    assert (without.accelerator, without.accelerators) == ("", 0)


@pytest.mark.parametrize("wrap", [lambda plain: plain, lambda plain: {"event": "result", "features": plain}])
def test_features_from_a_file_and_options_over_them(tmp_path: Path, wrap) -> None:
    file = tmp_path / "f.json"
    file.write_text(json.dumps(wrap(FEATURES)))
    plan = parse(["--features", str(file), "--epochs", "9", "--", "python", "train.py"])
    assert plan.task.task == "mnist"
    assert (plan.task.parameter_count, plan.task.layers, plan.task.epochs) == (42, ("Linear",), 9)


def test_the_features_tools_whole_output_will_do(tmp_path: Path) -> None:
    file = tmp_path / "f.jsonl"
    file.write_text('{"event": "progress"}\n' + json.dumps({"event": "result", "features": FEATURES}) + "\n")
    assert parse(["--features", str(file), "--task", "mine", "--", "x"]).task.task == "mine"


@pytest.mark.parametrize("text", ["", "no json", "[1]", '{"event": "error"}'])
def test_a_file_without_features_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "f.json"
    file.write_text(text)
    with pytest.raises(BadDataError, match="holds no features"):
        parse(["--features", str(file), "--", "x"])


def test_features_that_make_no_sense_are_named(tmp_path: Path) -> None:
    file = tmp_path / "f.json"
    file.write_text(json.dumps(FEATURES | {"parameter_count": -1}))
    with pytest.raises(BadDataError, match="parameter_count"):
        parse(["--features", str(file), "--", "x"])
    with pytest.raises(BadDataError, match="cannot be read"):
        parse(["--features", str(tmp_path / "missing"), "--", "x"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--workers", "0", "--", "x"], "within 1 and 64"),
        (["--minutes", "nan", "--", "x"], "within"),
        (["--minutes", "600", "--", "x"], "within"),
        (["--memory", "much", "--", "x"], "no size"),
        (["--memory", "12", "--", "x"], "1 MiB"),
        (["--network-bps", "1", "--", "x"], "within"),
        (["--run", "a b", "--", "x"], "letters"),
        (["--learning-rate", "-1", "--", "x"], "within"),
    ],
)
def test_options_that_make_no_sense(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(arguments)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_no_command() -> None:
    for arguments in ([], ["--workers", "2"], ["--"]):
        with pytest.raises(UsageError, match="no command"):
            parse(arguments)


def test_steps_and_the_counter_of_progress() -> None:
    plan = parse(["--steps", "6000", "--progress", "Epoch: [#][#/5005", "--", "python", "train.py"])
    assert plan.task.steps == 6000
    assert (plan.known_progress.steps, plan.known_progress.label) == (6000, "Epoch: [#][#/5005")
    assert plan.progress_pattern is None
    named = parse(["--progress", r"seen (\d+) of (\d+)", "--", "python", "train.py"])
    assert named.progress_pattern is not None
    assert parse(["--", "python", "train.py"]).progress_pattern is None
    for wrong in ("(a)(b)(c)", "no group", "[unfinished", ""):
        with pytest.raises(SystemExit):
            parse(["--progress", wrong, "--", "python", "train.py"])

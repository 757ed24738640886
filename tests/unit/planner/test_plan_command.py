"""`turnbuckle plan` works from files: a table, reasons, JSON, a file for the workers; and ends with a sentence."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from schemas.plans import Engine, Plan, Strategy
from services._jobs.measured_run_file import append_run, default_file
from services._runtime.exit_code import ExitCode
from services.cli.main import app
from tests.support.measured_runs import measured_run

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "planner"
PROFILES = tuple(str(EXAMPLE / f"{kind}.json") for kind in ("l4", "a6000", "p40"))


def run(
    *words: str, profiles: tuple[str, ...] = PROFILES, batch: int = 64, devices: Path = EXAMPLE / "cluster.yaml"
) -> Result:
    line = ["plan", *profiles, "--devices", str(devices), "--batch", str(batch), *words]
    return CliRunner().invoke(app, line, env={"COLUMNS": "200", "NO_COLOR": "1"})


def test_the_example_is_planned_unevenly(tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    result = run("--out", str(out), "--strategy", "uneven", "--json")

    assert result.exit_code == 0, result.output
    plan = Plan.model_validate_json(out.read_text())
    assert plan == Plan.model_validate(json.loads(result.stdout))
    assert (plan.engine, plan.strategy) == (Engine.LAYERED, Strategy.UNEVEN)
    fewest, most = (pick(plan.devices, key=lambda device: device.samples).rank for pick in (min, max))
    assert (fewest, most) == (3, 2)  # the slow p40, and the a6000, fast and with twice the memory
    assert all(device.planned_bytes <= device.allowed_bytes for device in plan.devices)


def test_the_table_has_a_row_per_device_and_the_command_to_run() -> None:
    result = run("--strategy", "uneven")

    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0].startswith("64 samples over 4 devices: uneven batches and uneven state (engine layered), step ")
    kinds = [line.split()[1] for line in lines[2:6]]
    assert kinds == ["l4", "l4", "a6000", "p40"]
    assert any(line.startswith("run: torchrun --standalone --nproc-per-node 4") for line in lines)
    assert "the even split" not in result.stdout
    why = run("--strategy", "uneven", "--why").stdout
    assert "- the even split" in why
    assert "- one more sample costs least on rank 2: by the layer profiles it would take " in why


def test_the_command_to_run_has_the_plan_s_file_and_the_model_as_far_as_they_are_known(tmp_path: Path) -> None:
    files = []
    for kind in ("l4", "a6000", "p40"):
        text = (EXAMPLE / f"{kind}.json").read_text()
        assert '"task": "gpt-2.7b"' in text
        files.append(tmp_path / f"{kind}.json")
        files[-1].write_text(text.replace('"task": "gpt-2.7b"', '"task": "models/gpt.py:build"'))
    out = tmp_path / "my plan.json"
    known = run("--out", str(out), profiles=tuple(map(str, files)))
    unknown = run()

    assert known.exit_code == 0, known.output
    assert f"trainer-worker '{out}' models/gpt.py:build --data data.py:batches" in known.stdout.replace("\n", " ")
    assert "(put your own names for data.py:batches)" in known.stdout
    assert "trainer-worker plan.json model.py:build --data data.py:batches" in unknown.stdout.replace("\n", " ")
    assert "(put your own names for plan.json, model.py:build, data.py:batches)" in unknown.stdout


def test_nothing_fits_is_65_with_what_would_do(tmp_path: Path) -> None:
    small = tmp_path / "cluster.yaml"
    text = (EXAMPLE / "cluster.yaml").read_text()
    small.write_text(text.replace("22.5GiB", "12GiB").replace("47.99GiB", "12GiB"))
    result = run(devices=small)

    assert result.exit_code == ExitCode.BAD_DATA
    assert "no plan fits" in result.output
    assert "would do: " in " ".join(result.output.split())
    shown = json.loads(run("--json", devices=small).stderr)
    assert shown["error"]["exit_code"] == ExitCode.BAD_DATA
    assert shown["error"]["kind"] == "bad_data"


def test_a_kind_without_profile_is_69() -> None:
    result = run(profiles=PROFILES[:2])

    assert result.exit_code == ExitCode.UNAVAILABLE
    assert "no layer profile of p40" in result.output


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "Invalid JSON"),
        ("{}", "profile: Field required"),
        (Path(PROFILES[0]).read_text().replace('"count": 32', '"count": 31'), "block: 31 layers, order has 32"),
    ],
)
def test_a_file_that_is_no_profile_is_78(text: str, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "l4.json"
    file.write_text(text)
    result = run(profiles=(str(file), *PROFILES[1:]))

    assert result.exit_code == ExitCode.BAD_CONFIG
    assert f"l4.json: {sentence}" in "".join(result.output.split("\n"))
    assert "this is no layer profile as turnbuckle layers --out writes it" in " ".join(result.output.split())


def test_a_profile_that_is_not_there_is_66() -> None:
    assert run(profiles=("nowhere.json",)).exit_code == ExitCode.NO_INPUT


def test_an_unknown_rate_is_78(tmp_path: Path) -> None:
    file = tmp_path / "cluster.yaml"
    file.write_text(
        (EXAMPLE / "cluster.yaml").read_text().replace("    inside: {rate: 88Gbit, latency_ms: 0.004}\n", "")
    )
    result = run(devices=file)

    assert result.exit_code == ExitCode.BAD_CONFIG
    assert "no transfer rate inside machine a is given" in " ".join(result.output.split())


@pytest.mark.parametrize(
    "words", [("--optimizer", "lion"), ("--strategy", "fast"), ("--job", "My Job"), ("--memory-share", "2")]
)
def test_wrong_options_are_2(words: tuple[str, str]) -> None:
    assert run(*words).exit_code == ExitCode.USAGE


def test_a_plan_that_cannot_be_written_is_78(tmp_path: Path) -> None:
    result = run("--out", str(tmp_path / "nowhere" / "plan.json"))

    assert result.exit_code == ExitCode.BAD_CONFIG
    assert "cannot be written" in result.output


def test_recorded_runs_correct_the_plan_and_a_line_that_is_none_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default those of the user's state directory; each took 1.5 times what its profiles had predicted."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    before = run("--strategy", "uneven")
    assert "by the layer profiles alone: no earlier run on such devices by this engine is known" in before.stdout
    [profiled] = re.findall(r"step (\S+ m?s) \(", before.stdout)
    for ended_ns in range(4):
        append_run(default_file(), measured_run(1.5, kinds=("a6000", "l4", "p40"), ended_ns=ended_ns))
    with default_file().open("a") as file:
        file.write("nonsense\n")

    after = run("--strategy", "uneven", "--why")
    assert after.exit_code == 0, after.output
    assert f"step and interval rest on 4 measured runs; by the layer profiles alone: {profiled}" in after.stdout
    assert "- 4 earlier runs of models on these kinds of devices took 1.5 times what" in after.stdout
    assert f"{default_file()}:5 is left out, it is no measured run: Invalid JSON" in after.stderr.replace("\n", " ")
    asked = json.loads(run("--strategy", "uneven", "--json", "--measured", str(default_file())).stdout)
    assert asked["step_us"] == pytest.approx(1.5 * asked["profiled_step_us"])


@pytest.mark.parametrize(
    ("words", "profiles", "told"),
    [
        (("--task", "x" * 300), (), "task: String should have at most 200 characters"),
        ((), PROFILES[:1] * 65, "profiles: Tuple should have at most 64 items"),
    ],
)
def test_what_no_request_can_have_is_2_and_no_traceback(
    words: tuple[str, ...], profiles: tuple[str, ...], told: str
) -> None:
    result = run(*words, profiles=profiles)

    assert result.exit_code == ExitCode.USAGE
    assert told in result.output


def test_a_file_of_runs_that_is_not_there_is_66() -> None:
    assert run("--measured", "nowhere.jsonl").exit_code == ExitCode.NO_INPUT

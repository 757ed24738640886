"""`turnbuckle train` before anything runs: what it would run, and what it refuses."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from schemas.plans import Engine, Plan
from services._runtime.exit_code import ExitCode
from services.cli.main import app
from services.trainer.worker.options import parse
from tests.support.trainer_plans import pipeline_plan, plan_of

TWO_MACHINES = tuple(
    f"torchrun --nnodes 2 --node-rank {rank} --nproc-per-node 1 --master-addr a --master-port 29500 --no-python "
    "turnbuckle run trainer-worker plan.json model.py:build --data data.py:batches"
    for rank in (0, 1)
)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    return write(tmp_path, plan_of([6, 2], [2, 1], [3, 1]))


def write(directory: Path, plan: Plan) -> Path:
    file = directory / "plan.json"
    file.write_text(plan.model_dump_json())
    return file


def run(plan: Path, *words: str, steps: str = "9", data: str = "data.py:batches") -> Result:
    line = ["train", str(plan), "my model.py:build", "--data", data, "--steps", steps, *words]
    return CliRunner().invoke(app, line, env={"COLUMNS": "200", "NO_COLOR": "1"})


def test_it_says_what_it_would_run_and_only_what_was_given(written: Path) -> None:
    result = run(written, "--dry-run", "--checkpoint", "saved", "--seed", "3", "--device", "auto")

    assert result.exit_code == 0, result.output
    head, _, rank = result.stdout.strip().partition(" turnbuckle run trainer-worker ")
    assert head == "torchrun --standalone --nproc-per-node 2 --no-python"
    assert shlex.split(rank) == [
        *(str(written), "my model.py:build", "--data", "data.py:batches"),
        *("--steps", "9", "--checkpoint", "saved", "--seed", "3"),
    ]


def test_a_rank_understands_all_of_its_options(written: Path) -> None:
    words = "--checkpoint saved --checkpoint-every 5 --loss a:b --optimizer c:d --seed 3 --device cpu --timeout-s 7"
    result = run(written, "--dry-run", "--json", *words.split())
    [line] = json.loads(result.stdout)["lines"]
    options = parse(shlex.split(line.partition(" trainer-worker ")[2]))

    assert (options.plan, options.model, options.data, options.steps) == (
        *(written, "my model.py:build", "data.py:batches"),
        9,
    )
    assert (options.checkpoint, options.checkpoint_every, options.loss) == (Path("saved"), 5, "a:b")
    assert (options.optimizer, options.seed, options.device, options.timeout_s) == ("c:d", 3, "cpu", 7)


def test_a_pipeline_may_keep_parts_in_the_hosts_memory(tmp_path: Path) -> None:
    plan = pipeline_plan([[0], [1]], [(0, 1), (1, 1)], [2, 2], [1, 1])
    result = run(write(tmp_path, plan), "--dry-run", "--json", "--offload")

    [line] = json.loads(result.stdout)["lines"]
    assert parse(shlex.split(line.partition(" trainer-worker ")[2])).offload


def test_parts_in_the_hosts_memory_are_refused_where_no_pipeline_is(written: Path) -> None:
    result = run(written, "--dry-run", "--offload")

    assert result.exit_code == ExitCode.USAGE
    assert "this plan's engine is layered" in " ".join(result.stderr.split())


def test_a_plan_over_several_machines_is_a_line_for_each(tmp_path: Path) -> None:
    plan = plan_of([6, 2], [2, 1], [3, 1]).model_copy(update={"launch": TWO_MACHINES})
    result = run(write(tmp_path, plan))

    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert [line.partition(" turnbuckle ")[0] for line in lines] == [
        line.partition(" turnbuckle ")[0] for line in TWO_MACHINES
    ]
    assert all("'my model.py:build' --data data.py:batches --steps 9" in line for line in lines)
    assert "run a line on each" in result.stderr


def test_a_line_that_is_none_of_torchrun_is_65(tmp_path: Path) -> None:
    plan = plan_of([6, 2], [2, 1], [3, 1]).model_copy(update={"launch": ("true", "false")})
    result = run(write(tmp_path, plan))

    assert result.exit_code == ExitCode.BAD_DATA
    assert "'true' is no line of torchrun" in result.output


def test_a_plan_that_no_engine_follows_is_65(tmp_path: Path) -> None:
    result = run(write(tmp_path, plan_of([6, 2], [1, 1], [1, 1], Engine.MINISTAGE)), "--dry-run")

    assert result.exit_code == ExitCode.BAD_DATA
    assert "micro-batches have 2, 6 samples, but all have to be alike; plan anew" in " ".join(result.output.split())


def test_a_file_that_is_no_plan_is_65_and_one_that_is_not_there_66(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    assert run(file).exit_code == ExitCode.NO_INPUT
    file.write_text("{}")
    result = run(file)

    assert result.exit_code == ExitCode.BAD_DATA
    assert "is no plan: plan: Field required" in result.output


def test_without_torch_it_is_69(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.trainer.commands.train.find_spec", lambda _: None)
    result = run(written)

    assert result.exit_code == ExitCode.UNAVAILABLE
    assert "torch is not installed" in result.output


@pytest.mark.parametrize("words", [("--steps", "0"), ("--data", "data.py"), ("--device", "tpu"), ("--loss", ":f")])
def test_wrong_options_are_2(words: tuple[str, str], written: Path) -> None:
    assert run(written, *words).exit_code == ExitCode.USAGE


def test_where_workers_run_is_of_an_elastic_training(written: Path) -> None:
    result = run(written, "--dry-run", "--workers", "sandbox")

    assert result.exit_code == ExitCode.USAGE
    assert "are of --elastic" in result.output


def test_containers_without_an_image_and_a_name_that_is_none_are_refused(written: Path) -> None:
    result = run(written, "--elastic", "1:2", "--workers", "docker")
    assert result.exit_code == ExitCode.USAGE
    assert "--workers docker needs --image" in result.output
    result = run(written, "--dry-run", "--name", "My training")
    assert result.exit_code == ExitCode.USAGE
    assert "small letters, digits and hyphens" in result.output

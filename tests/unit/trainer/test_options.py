"""The command line of a rank."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from services._runtime.exit_code import ExitCode
from services.trainer.worker import command
from services.trainer.worker.options import parse

GIVEN = ["plan.json", "model.py:build", "--data", "data.py:lines", "--steps", "10"]


def test_loss_and_optimizer_stand_beside_the_model() -> None:
    assert (parse(GIVEN).loss, parse(GIVEN).optimizer) == ("model.py:loss", "model.py:optimizer")
    assert parse([*GIVEN, "--loss", "losses:focal"]).loss == "losses:focal"


def test_without_a_plan_the_jobs_batch_is_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """`"$TURNBUCKLE_PLAN"` is an empty word where there is none."""
    monkeypatch.delenv("TURNBUCKLE_BATCH", raising=False)
    assert (parse(GIVEN).plan, parse(GIVEN).batch) == (Path("plan.json"), None)
    assert (parse(["", *GIVEN[1:], "--batch", "6"]).plan, parse(["", *GIVEN[1:], "--batch", "6"]).batch) == (None, 6)

    monkeypatch.setenv("TURNBUCKLE_BATCH", "15")
    assert parse(["", *GIVEN[1:]]).batch == 15
    assert parse(["", *GIVEN[1:], "--batch", "6"]).batch == 6


@pytest.mark.parametrize("batch", [None, "many", "0"])
def test_without_a_plan_and_a_batch_there_is_nothing_to_divide(
    batch: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if batch is None:
        monkeypatch.delenv("TURNBUCKLE_BATCH", raising=False)
    else:
        monkeypatch.setenv("TURNBUCKLE_BATCH", batch)
    with pytest.raises(SystemExit) as ended:
        parse(["", *GIVEN[1:]])

    assert ended.value.code == ExitCode.USAGE
    assert "batch" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments", [[*GIVEN[:-1], "0"], [*GIVEN, "--seed", "-1"], GIVEN[:-2], [*GIVEN, "--device", "tpu"]]
)
def test_usage_errors(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(arguments)

    assert ended.value.code == ExitCode.USAGE
    assert json.loads(capsys.readouterr().out)["kind"] == "usage"


@pytest.mark.parametrize(
    ("other", "kind"), [(["--store", "127.0.0.1:29500"], "elastic"), (["--aggregate", "socket"], "replicated")]
)
def test_offloading_where_nothing_is_offloaded(other: list[str], kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert parse([*GIVEN, "--offload"]).offload
    assert not parse([*GIVEN, *other]).offload
    with pytest.raises(SystemExit) as ended:
        parse([*GIVEN, *other, "--offload"])

    assert ended.value.code == ExitCode.USAGE
    sentence = f"--offload is of pipelines (engine ministage), and this is a rank of a training that is {kind}"
    assert sentence in json.loads(capsys.readouterr().out)["message"]


def test_it_is_started_by_torchrun(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("RANK", raising=False)

    assert command.main(GIVEN) == ExitCode.USAGE
    assert "start it by torchrun" in capsys.readouterr().err

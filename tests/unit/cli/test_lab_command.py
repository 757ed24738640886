"""`turnbuckle lab` as a person types it, without a lab."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from services._runtime.exit_code import ExitCode
from services.cli.main import app
from services.fabric.testbed import frr_daemons, state_file

runner = CliRunner()


@pytest.fixture(autouse=True)
def _no_labs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(state_file, "DIRECTORY", tmp_path / "labs")


@pytest.mark.parametrize("command", ["up", "down", "status", "fault", "meter"])
def test_every_command_has_help_with_examples(command: str) -> None:
    result = runner.invoke(app, ["lab", command, "--help"])

    assert result.exit_code == 0
    assert f"turnbuckle lab {command} dual-tor" in result.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["up", "three-tier"],
        ["up", "dual-tor", "--hosts", "1"],
        ["up", "dual-tor", "--hosts", "5"],
        ["up", "dual-tor", "--bfd", "fast"],
        ["up", "dual-tor", "--bfd", "1x3"],
        ["up", "dual-tor", "--prefix", "No Name"],
        ["up", "dumbbell", "--pairs", "0"],
        ["up", "dumbbell", "--rate", "100MB"],
        ["up", "dumbbell", "--rate", "1bit"],
        ["up", "dumbbell", "--prefix", "No Name"],
        ["down", "three-tier"],
        ["status", "dumbbell"],
        ["fault", "dual-tor"],
        ["fault", "dual-tor", "fire"],
        ["fault", "dual-tor", "link-down", "--every", "2"],
        ["fault", "dual-tor", "link-down", "--for", "2", "--every", "2"],
        ["fault", "dual-tor", "link-down", "--switch", "3"],
        ["meter", "dual-tor", "--faults", "0"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_2(arguments: list[str]) -> None:
    assert runner.invoke(app, ["lab", *arguments]).exit_code == ExitCode.USAGE


@pytest.mark.parametrize("arguments", [["status"], ["fault", "dual-tor", "isl-lost"], ["meter"]], ids=" ".join)
def test_without_a_lab_the_command_says_how_to_make_one(arguments: list[str]) -> None:
    command, *rest = arguments
    result = runner.invoke(app, ["lab", command, "dual-tor", "--prefix", "none", *rest[1:]])

    assert result.exit_code == ExitCode.UNAVAILABLE
    assert "turnbuckle lab up dual-tor --prefix none" in result.stderr


def test_a_record_that_cannot_be_read_is_named() -> None:
    directory = state_file.directory_of("broken")
    directory.mkdir(parents=True)
    (directory / "lab.json").write_text("{}", encoding="utf-8")

    result = runner.invoke(app, ["lab", "status", "dual-tor", "--prefix", "broken"])

    assert result.exit_code == ExitCode.FAILED
    assert str(directory / "lab.json") in result.stderr.replace("\n", "")


@pytest.mark.parametrize("topology", ["dual-tor", "dumbbell"])
def test_without_rights_the_command_says_so(topology: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)

    result = runner.invoke(app, ["lab", "up", topology])

    assert result.exit_code == ExitCode.UNAVAILABLE  # as `fabric` and `exec` without rights
    assert "sudo turnbuckle lab" in result.stderr


def test_without_frr_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr(frr_daemons, "BINARIES", tmp_path)

    result = runner.invoke(app, ["lab", "up", "dual-tor"])

    assert result.exit_code == ExitCode.UNAVAILABLE
    assert "apt-get install frr" in result.stderr
    assert state_file.prefixes() == []

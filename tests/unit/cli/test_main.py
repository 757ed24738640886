"""The command as a whole: help, usage, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services._runtime.exit_code import ExitCode
from services.cli.main import app
from services.cli.nats.tap import describe
from services.cli.toolkit.supervisor import free_port
from tests.support.cfs_batches import batch

COMMANDS = ("up", "apply", "delete", "exec", "apps", "top", "explain", "tap", "doctor")
runner = CliRunner()


@pytest.fixture
def _nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No server answers, and no context of the user's is used."""
    for variable in ("NATS_CONTEXT", "TURNBUCKLE_NATS_URL", "TURNBUCKLE_NATS_CONTEXT"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("NATS_URL", f"nats://127.0.0.1:{free_port()}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr("services._runtime.command.connection.CONNECT_TIMEOUT_S", 0.3)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples(command: str) -> None:
    result = runner.invoke(app, [command, "--help"])

    assert result.exit_code == 0
    assert f"turnbuckle {command}" in result.stdout


def test_no_command_shows_them_all() -> None:
    result = runner.invoke(app, [])

    assert all(command in result.output for command in COMMANDS)


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["apply"],
        ["exec", "--app", "a"],
        ["tap", "a..b"],
        ["tap", "--absolute"],
        ["up", "--for", "never"],
        ["up", "--allocators", "0"],
        ["explain", "shop", "--since", "yesterday"],
        ["delete", "x", "--json"],
    ],
)
def test_wrong_usage_is_2(arguments: list[str]) -> None:
    assert runner.invoke(app, arguments).exit_code == ExitCode.USAGE


def test_a_wrong_file_is_78_and_reaches_nobody(tmp_path: Path) -> None:
    file = tmp_path / "app.yaml"
    file.write_text("name: shop\ncpu_limit: 0\nmemory_limit: 1GiB\nreplica: 1\n")
    result = runner.invoke(app, ["apply", str(file)])

    assert result.exit_code == ExitCode.BAD_CONFIG
    assert "app.yaml:2: cpu_limit: should be greater than 0, not 0" in result.stderr
    assert "unknown field 'replica'" in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("command", [["apply"], ["advise"], ["fabric", "plan"]])
def test_a_missing_file_is_66(tmp_path: Path, command: list[str]) -> None:
    """EX_NOINPUT, as `jobs import`, `vertex`, `emulate` and `prices` end."""
    result = runner.invoke(app, [*command, str(tmp_path / "none.yaml")])

    assert result.exit_code == ExitCode.NO_INPUT
    assert "none.yaml cannot be read: No such file or directory" in result.stderr


@pytest.mark.usefixtures("_nowhere")
@pytest.mark.parametrize("arguments", [["apps"], ["top", "--once"], ["explain", "shop"], ["tap", "--count", "1"]])
def test_no_server_is_69_and_says_what_to_do(arguments: list[str]) -> None:
    result = runner.invoke(app, arguments)

    assert result.exit_code == ExitCode.UNAVAILABLE
    assert "turnbuckle up" in result.stderr
    assert "NATS_URL" in result.stderr


@pytest.mark.usefixtures("_nowhere")
def test_an_unknown_context_and_an_unknown_variable_are_78(monkeypatch: pytest.MonkeyPatch) -> None:
    result = runner.invoke(app, ["apps", "--context", "lab"])

    assert result.exit_code == ExitCode.BAD_CONFIG
    assert "lab" in result.stderr

    monkeypatch.setenv("TURNBUCKLE_NATS_ULR", "nats://x")
    result = runner.invoke(app, ["apps"])

    assert result.exit_code == ExitCode.BAD_CONFIG
    assert "TURNBUCKLE_NATS_URL" in result.stderr


@pytest.mark.usefixtures("_nowhere")
def test_a_dry_run_needs_no_server(tmp_path: Path) -> None:
    file = tmp_path / "app.yaml"
    file.write_text("name: shop\ncpu_limit: 1\nmemory_limit: 1GiB\n")
    result = runner.invoke(app, ["apply", str(file), "--dry-run", "--json"])

    assert result.exit_code == 0
    assert json.loads(result.stdout) == {
        "app": "shop",
        "dry_run": True,
        "revision": None,
        "warnings": [],
        "containers": [],
        "others": [],
    }


def test_deleting_asks_first() -> None:
    result = runner.invoke(app, ["delete", "shop"], input="n\n")

    assert result.exit_code == ExitCode.FAILED
    assert "nothing was removed" in result.stderr


def test_whatever_travels_is_one_line_of_json() -> None:
    from schemas.codec import encode  # noqa: PLC0415 - beside its use

    good = describe("tb.obs.cfs.shop.n1", encode(batch(0)), raw=False)

    assert good["rows"][0]["container"] == "web-0123456789ab"
    for payload in (b"\xff\x00", b"{}", b"\x80", b"{" * 10_000, bytes(2 << 20), b'{"type": 7}'):
        shown = describe("tb.x", payload, raw=False)
        assert shown["size_bytes"] == len(payload)
        assert shown["undecodable"]
        assert json.loads(json.dumps(shown)) == shown
    assert describe("tb.x", b"", raw=False) == {"subject": "tb.x", "size_bytes": 0}
    assert describe("tb.x", b"\x01", raw=True) == {"subject": "tb.x", "size_bytes": 1, "base64": "AQ=="}

"""With --json every command that fails ends by one JSON object on stderr; with NO_COLOR nothing is styled."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer import rich_utils
from typer.testing import CliRunner, Result

from services._runtime.command.output import errors_as_json, print_error, print_note
from services._runtime.exit_code import ExitCode, plain_error, typed_json
from services._runtime.service import entry
from services._runtime.service.interpreter import isolated_command
from services.cli.main import app
from tests.support.command_walk import ALL, LEAVES, OURS, SERVICES, TOOLS

USAGE, NO_INPUT, UNAVAILABLE = ExitCode.USAGE, ExitCode.NO_INPUT, ExitCode.UNAVAILABLE
BAD_DATA, BAD_CONFIG, FAILED = ExitCode.BAD_DATA, ExitCode.BAD_CONFIG, ExitCode.FAILED
FAILING: dict[str, tuple[str, ExitCode]] = {
    "up": ("--store {file}", FAILED),
    "apply": ("{app}", UNAVAILABLE),
    "delete": ("shop --yes", UNAVAILABLE),
    "exec": ("--app shop --name web --memory 2KB -- true", USAGE),
    "apps": ("", UNAVAILABLE),
    "top": ("--once", UNAVAILABLE),
    "explain": ("shop", UNAVAILABLE),
    "savings": ("", UNAVAILABLE),
    "console": ("--context none", BAD_CONFIG),
    "doctor": ("--context none", BAD_CONFIG),
    "tap": ("--count 1", UNAVAILABLE),
    "swap attach": ("/dev/none --size never", USAGE),
    "swap detach": ("swap other", USAGE),
    "swap status": ("swap", USAGE),
    "nats config": ("--out {file}", BAD_CONFIG),
    "nats declare": ("", UNAVAILABLE),
    "fabric plan": ("{none}", NO_INPUT),
    "fabric up": ("{none}", NO_INPUT),
    "fabric check": ("{none}", NO_INPUT),
    "fabric down": ("{none}", NO_INPUT),
    "fabric drain": ("{none} p1", NO_INPUT),
    "paths": ("", UNAVAILABLE),
    "rules": ("gpu-07", UNAVAILABLE),
    "lab up dual-tor": ("--bfd never", USAGE),
    "lab up dumbbell": ("--rate never", USAGE),
    "lab down": ("single-tor", USAGE),
    "lab status": ("dual-tor --prefix none", UNAVAILABLE),
    "lab fault": ("dual-tor --restore --prefix none", UNAVAILABLE),
    "lab meter": ("dual-tor --prefix none", UNAVAILABLE),
    "advise": ("{job}", UNAVAILABLE),
    "plan": ("{none} --devices {none} --batch 8", NO_INPUT),
    "train": ("{file} model.py:build --data data.py:batches --steps 1", BAD_DATA),
    "jobs list": ("", UNAVAILABLE),
    "jobs show": ("one", UNAVAILABLE),
    "jobs simulate": ("{none} --slots 4", NO_INPUT),
    "jobs submit": ("{none}", NO_INPUT),
    "jobs queue": ("--ended 0s", UNAVAILABLE),
    "jobs top": ("--once", UNAVAILABLE),
    "jobs explain": ("one", UNAVAILABLE),
    "jobs logs": ("one", UNAVAILABLE),
    "jobs preempt": ("one --for soon", USAGE),
    "jobs release": ("one", UNAVAILABLE),
    "jobs cancel": ("one", UNAVAILABLE),
    "jobs nodes": ("", UNAVAILABLE),
    "jobs drain": ("n1", UNAVAILABLE),
    "jobs undrain": ("n1", UNAVAILABLE),
    "profile": ("--out {file} --no-bus -- true", UNAVAILABLE),
    "features": ("{none}", BAD_DATA),
    "devices": ("--out {none}/cluster.yaml", BAD_CONFIG),
    "layers": ("m.py:build --out {none}/profile.json", BAD_CONFIG),
    "emulate": ("{none}", NO_INPUT),
    "vertex submit": ("{none}", NO_INPUT),
    "vertex ingest": ("", UNAVAILABLE),
    "jobs import": ("{none} --mapping {none}", NO_INPUT),
    "jobs export": ("{file}", UNAVAILABLE),
    "prices list": ("--spot", USAGE),
    "prices refresh": ("--file {none}", NO_INPUT),
}
"""Arguments with which each command fails, and how it ends: without a server, or because of a file."""
JOB = "name: mine\ntask: {task: a, parameter_count: 5000}\nworkers: [1, 2, 4]\nbatch_sizes: [16, 64]\n"
STYLE = re.compile(r"\x1b\[[0-9;]*m")
TERMINAL = {"FORCE_COLOR": "1", "TERM": "xterm-256color"}


REPLAY = 'cat "$0/out"; cat "$0/err" >&2; exit "$1"'


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[str]]:
    """What a tool's process is asked twice (with --json, and without) it is asked once: `REPLAY` repeats its answer."""
    directory = tmp_path_factory.mktemp("recorded")

    @cache
    def command(*arguments: str) -> list[str]:
        environment = os.environ | TERMINAL | {"NO_COLOR": "1"}
        done = subprocess.run(
            isolated_command(*arguments), env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
        answer = directory / str(len(list(directory.iterdir())))
        answer.mkdir()
        (answer / "out").write_bytes(done.stdout)
        (answer / "err").write_bytes(done.stderr)
        return ["sh", "-c", REPLAY, str(answer), str(done.returncode)]

    return command


@pytest.fixture(autouse=True)
def tools_answer_once(recorded: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services._runtime.command.tool_shell.isolated_command", recorded)


@pytest.fixture(scope="module")
def closed_port() -> Iterator[int]:
    """Bound, so that no other process can listen there."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Paths for `FAILING`."""
    directory = tmp_path_factory.mktemp("files")
    (directory / "app.yaml").write_text("name: shop\ncpu_limit: 1\nmemory_limit: 1GiB\n")
    (directory / "file").write_text("nothing of use")
    (directory / "job.yaml").write_text(JOB)
    names = {"app": "app.yaml", "file": "file", "job": "job.yaml", "none": "none.yaml"}
    return {key: str(directory / name) for key, name in names.items()}


@pytest.fixture
def files(paths: dict[str, str], closed_port: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """`paths`, where no server answers, and no context of the user's is used."""
    for variable in ("NATS_CONTEXT", "TURNBUCKLE_NATS_URL", "TURNBUCKLE_NATS_CONTEXT"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("NATS_URL", f"nats://127.0.0.1:{closed_port}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr("services._runtime.command.connection.CONNECT_TIMEOUT_S", 0.05)
    return paths


def failing(typed: str, files: dict[str, str], *more: str) -> list[str]:
    return [*typed.split(), *more, *FAILING[typed][0].format(**files).split()]


def error_of(done: Result) -> dict[str, Any]:
    """The only thing on stderr."""
    found = json.loads(done.stderr)
    assert found.keys() == {"error"}
    assert found["error"].keys() == {"message", "exit_code", "kind"}
    assert found["error"]["exit_code"] == done.exit_code
    assert found["error"]["message"].strip()
    error: dict[str, Any] = found["error"]
    return error


def test_every_command_is_made_to_fail() -> None:
    assert FAILING.keys() == set(LEAVES)


@pytest.mark.parametrize("typed", LEAVES)
def test_a_command_that_fails_says_so_in_json(typed: str, files: dict[str, str]) -> None:
    done = CliRunner().invoke(app, failing(typed, files, "--json"))
    error = error_of(done)

    assert (done.exit_code, error["kind"]) == (FAILING[typed][1], FAILING[typed][1].name.lower()), error


@pytest.mark.parametrize("typed", [typed for typed in ALL if typed not in SERVICES])
def test_a_wrong_command_line_is_told_in_json(typed: str) -> None:
    done = CliRunner().invoke(app, [*typed.split(), "--json", "--no-such-option"])
    error = error_of(done)

    assert (done.exit_code, error["kind"]) == (USAGE, "usage")


@pytest.mark.parametrize("words", [["nonsense", "--json"], ["run", "nonsense", "--json"], ["--json"]])
def test_so_is_a_command_that_does_not_exist(words: list[str]) -> None:
    assert error_of(CliRunner().invoke(app, words))["kind"] == "usage"


@pytest.mark.parametrize("typed", LEAVES)
def test_without_the_option_it_is_a_sentence(typed: str, files: dict[str, str]) -> None:
    done = CliRunner().invoke(app, failing(typed, files), env=TERMINAL | {"NO_COLOR": "1", "COLUMNS": "200"})

    assert done.exit_code == FAILING[typed][1]
    assert done.stderr.strip()
    assert not done.stderr.startswith("{")
    assert STYLE.findall(done.output) == []


@pytest.mark.parametrize("typed", ["", "nats", "apps", "features"], ids=["all", "group", "command", "tool"])
def test_help_has_no_style_with_no_color(typed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rich_utils, "FORCE_TERMINAL", True)
    monkeypatch.setattr(rich_utils, "COLOR_SYSTEM", "auto")
    styled = CliRunner().invoke(app, [*typed.split(), "--help"], env=TERMINAL)
    plain = CliRunner().invoke(app, [*typed.split(), "--help"], env=TERMINAL | {"NO_COLOR": "1"})

    assert STYLE.findall(styled.stdout)
    assert STYLE.findall(plain.stdout) == []
    assert (styled.exit_code, plain.exit_code) == (0, 0)


@pytest.mark.parametrize(("value", "is_styled"), [(None, True), ("", True), ("1", False), ("0", False)])
def test_no_color_counts_where_it_is_not_empty(
    value: str | None, is_styled: bool, files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """https://no-color.org: present and not an empty string, regardless of its value."""
    monkeypatch.setattr(rich_utils, "COLOR_SYSTEM", "auto")
    done = CliRunner().invoke(app, ["apply", files["none"]], env=TERMINAL | {"NO_COLOR": value})

    assert bool(STYLE.findall(done.stderr)) == is_styled
    assert "error:" in done.stderr


def test_notes_wait_for_the_end_and_go_where_there_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with errors_as_json(wanted=True):
        print_note("a note")
        assert capsys.readouterr().err == ""
    assert capsys.readouterr().err == "a note\n"

    with errors_as_json(wanted=True):
        print_note("a note")
        print_error("it failed", UNAVAILABLE)
    assert json.loads(capsys.readouterr().err) == {
        "error": {"message": "it failed", "exit_code": 69, "kind": "unavailable"}
    }

    with errors_as_json(wanted=False):
        print_note("a note")
        assert capsys.readouterr().err == "a note\n"


@pytest.mark.parametrize(("code", "kind"), [(1, "failed"), (2, "usage"), (69, "unavailable"), (137, "failed")])
def test_a_kind_is_the_name_of_the_exit_code(code: int, kind: str) -> None:
    assert plain_error("so", code) == {"message": "so", "exit_code": code, "kind": kind}


@pytest.mark.parametrize(
    ("words", "asks"),
    [("apps --json", True), ("apps", False), ("exec --app a -- jq --json", False), ("exec --json -- true", True)],
)
def test_the_option_of_another_program_is_not_ours(words: str, asks: bool) -> None:
    assert typed_json(words.split()) is asks


def test_a_host_without_the_command_line_says_so_in_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(entry, "_CLI", "services.none")
    monkeypatch.setattr(sys, "argv", ["turnbuckle", "apps", "--json"])
    with pytest.raises(SystemExit) as ended:
        entry.main()
    error = json.loads(capsys.readouterr().err)["error"]

    assert (ended.value.code, error["exit_code"], error["kind"]) == (69, 69, "unavailable")


def test_tools_are_among_the_commands() -> None:
    assert TOOLS.keys() | OURS.keys() >= set(LEAVES)

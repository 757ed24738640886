"""Tools as processes: lines rendered or passed on, exit codes, interrupts, help."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from schemas.jobs import TaskFeatures
from services._runtime.command.output import stderr_console
from services._runtime.command.tool_shell import Tool, ToolOutput, read_event, run_tool
from services.advisor.commands import PRICES_LIST
from services.cli.main import app
from tests.support.deadline import until

SCRIPT = """
import json, sys, time
arguments = sys.argv[1:]
print(json.dumps({"event": "progress", "done": 1, "total": 2}), flush=True)
print("not JSON", flush=True)
print("words for people", file=sys.stderr)
try:
    print(json.dumps({"event": "row", "name": "a", "cost": 1.5, "note": "n"}), flush=True)
    if "wait" in arguments:
        time.sleep(600)
except KeyboardInterrupt:
    print(json.dumps({"event": "error", "message": "interrupted"}), flush=True)
    sys.exit(130)
print(json.dumps({"event": "result", "arguments": arguments, "empty": []}), flush=True)
sys.exit(65 if "bad" in arguments else 0)
"""


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tool:
    (tmp_path / "made_up_tool.py").write_text(SCRIPT)
    monkeypatch.setattr(
        "services._runtime.command.tool_shell.isolated_command",
        lambda _start, module, *given: [sys.executable, str(tmp_path / f"{module}.py"), *given],
    )
    return Tool("made_up_tool", "made-up", examples=("made-up this",))


def test_rendered(tool: Tool, capfd: pytest.CaptureFixture[str]) -> None:
    """Rows as a table, the result line by line; its words on stderr."""
    code = run_tool(tool, ["x", "--", "--json"])

    out, err = capfd.readouterr()
    assert code == 0
    assert "words for people" in err
    assert "name" in out
    assert "1.5" in out
    assert 'arguments: ["x", "--", "--json"]' in out
    assert "empty" not in out


def test_passed_on(tool: Tool, capfd: pytest.CaptureFixture[str]) -> None:
    """With --json its lines are unchanged, and --json itself is not its business."""
    run_tool(tool, ["--json", "x"])

    lines = capfd.readouterr().out.splitlines()
    assert [json.loads(line)["event"] for line in lines if line.startswith("{")] == ["progress", "row", "result"]
    assert "not JSON" in lines
    assert json.loads(lines[-1])["arguments"] == ["x"]


def test_an_error_is_the_only_thing_on_stderr_with_json(
    tool: Tool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """And names the command as its user knows it; a tool that dies without a word is an error, too."""
    event = {"event": "error", "message": "python -m made_up_tool: no such file", "exit_code": 66, "kind": "no_input"}
    script = f"import sys; print('words', file=sys.stderr); print({json.dumps(event)!r}); sys.exit(66)"
    (tmp_path / "made_up_tool.py").write_text(script)
    assert run_tool(tool, ["--json"]) == 66

    shown = capfd.readouterr()
    assert json.loads(shown.out) == event
    told = {"message": "turnbuckle made-up: no such file", "exit_code": 66, "kind": "no_input"}
    assert json.loads(shown.err) == {"error": told}

    (tmp_path / "made_up_tool.py").write_text("import os; os._exit(3)")
    assert run_tool(tool, ["--json"]) == 3
    assert json.loads(capfd.readouterr().err)["error"]["message"] == "made-up ended with exit code 3"


def test_a_result_with_another_code_is_no_error(tool: Tool, capfd: pytest.CaptureFixture[str]) -> None:
    """Its words stand on stderr, as without --json."""
    assert run_tool(tool, ["bad", "--json"]) == 65
    assert capfd.readouterr().err == "words for people\n"


def test_exit_codes(tool: Tool) -> None:
    """Are the tool's own."""
    assert run_tool(tool, ["bad"]) == 65


async def test_interrupt(tool: Tool, tmp_path: Path) -> None:
    """Ctrl-C reaches the tool, which ends in its own way; so does its exit code."""
    script = (
        "import sys; from services._runtime.command import tool_shell; "
        f"tool_shell.isolated_command = lambda *_: {tool.command(['wait'])!r}; "
        f"sys.exit(tool_shell.run_tool(tool_shell.Tool({tool.module!r}, 'x'), ['wait', '--json']))"
    )
    out = tmp_path / "out"
    with out.open("wb") as file:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=file)
    try:
        await until(lambda: b'"row"' in out.read_bytes())
        process.send_signal(signal.SIGINT)

        assert await asyncio.wait_for(process.wait(), 60) == 130
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert b"interrupted" in out.read_bytes()


WITHOUT = """
import runpy, sys
sys.modules[{missing!r}] = None
sys.argv = ["tool_start", "services.{module}", *{arguments!r}]
runpy.run_module("services._runtime.command.tool_start", run_name="__main__")
"""


@pytest.mark.parametrize(
    ("missing", "module", "arguments", "package"),
    [
        ("duckdb", "collector.transfer.import_jobs", ["import", "x.csv"], "duckdb"),
        ("duckdb", "collector.transfer.import_jobs", ["--describe-options"], "duckdb"),
        ("yaml", "collector.emulator.commands", ["--plan"], "pyyaml"),
        ("torch", "collector.emulator.commands", ["--no-bus", "--out", "/proc/none"], "torch"),
        ("pydantic_settings", "collector.profiler.run", ["--", "true"], "pydantic_settings"),
    ],
)
def test_a_package_that_is_not_installed_is_named(
    missing: str, module: str, arguments: list[str], package: str
) -> None:
    code = WITHOUT.format(missing=missing, module=module, arguments=arguments)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 69, done.stderr
    assert done.stderr.startswith(f"error: {package} is not installed: pip install ")
    assert "Traceback" not in done.stderr
    assert json.loads(done.stdout)["event"] == "error"


def test_lines_that_are_no_events() -> None:
    """Whatever else a library prints."""
    assert [read_event(text) for text in ("", "x", "5", "[1]", '{"a": 1}', '{"event": 5}')] == [None] * 6


def test_rows_with_structure_are_no_table() -> None:
    """A whole record in a row is for --json."""
    shown = ToolOutput(None, stderr_console())

    shown.take({"event": "row", "record": {"a": 1}})

    assert shown.rows == []


@pytest.mark.parametrize("command", ["profile", "features", "emulate", "vertex", "prices"])
def test_the_tools_are_commands(command: str) -> None:
    """Listed, each with a sentence."""
    listed = CliRunner().invoke(app, ["--help"]).stdout

    assert command in listed


def test_prices_through_the_command(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A real tool: the shipped snapshots."""
    done = CliRunner().invoke(app, ["prices", "list", "--directory", str(tmp_path), "--json"])

    assert done.exit_code == 0
    sources = [json.loads(line).get("source") for line in done.stdout.splitlines()]
    assert sources[:2] == ["gcp-gce", "gcp-vertex"]


def test_pass_on_keeps_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing typed is eaten by the command's own parser: not --, not a --help after it, not an option of ours."""
    seen: list[list[str]] = []
    monkeypatch.setattr("services._runtime.command.tool_command.run_tool", lambda _tool, given: seen.append(given) or 7)

    done = CliRunner().invoke(app, ["profile", "--workers", "3", "--version", "--", "python", "--help", "--"])

    assert seen == [["--workers", "3", "--version", "--", "python", "--help", "--"]]
    assert done.exit_code == 7


def test_a_directory_with_modules_of_our_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's project may have a package ``services`` or a file ``yaml.py``: they are not taken for ours."""
    for name in ("services", "schemas"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('the user's')")
    monkeypatch.chdir(tmp_path)

    assert run_tool(PRICES_LIST, ["--directory", str(tmp_path), "--json"]) == 0


def test_a_log_gets_a_line_each_minute_of_a_run_that_samples(capfd: pytest.CaptureFixture[str]) -> None:
    shown = ToolOutput(None, stderr_console())
    for second in range(1, 130):
        shown.take({"event": "sample", "elapsed_s": second + 0.01, "limit_s": 600.0})
        shown.take({"event": "progress", "done": second, "total": 600})
    assert capfd.readouterr().err == "60 of 600 s\n120 of 600 s\n"


@pytest.mark.slow
def test_the_features_tool_speaks_json_on_standard_output_only(tmp_path: Path) -> None:
    """What the user's code prints, goes to standard error."""
    (tmp_path / "user_model.py").write_text(
        "from torch import nn\n\ndef build():\n    print('building')\n    return nn.Linear(4, 3)\n"
    )
    command = [sys.executable, "-m", "services.collector.profiler.features", "user_model:build", "--input-shape", "4"]
    environment = {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=tmp_path)
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["event"] for line in told] == ["result"]
    assert TaskFeatures.model_validate(told[0]["features"]).parameter_count == 15
    assert "building" in done.stderr

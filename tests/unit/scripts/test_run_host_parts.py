"""What ``make test-host`` and ``make soak-host`` say of parts that pass, fail, are interrupted, or have no tests."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from scripts import host_parts, run_host_parts, soak_host
from scripts.host_parts import Part
from scripts.rerun import Failure, RunReport

AGENT = Part("agent", ("agent",), ("system/agent",), ("services/agent",))
FABRIC = Part("fabric", ("fabric",), ("lab/fabric",), ("services/fabric",), spread=True)
CASE = (
    '<testcase classname="tests.system.test_agent" file="tests/system/test_agent.py" name="{name}">{inner}</testcase>'
)
FAILS = '<failure message="assert 1 == 2&#10;more">trace</failure>'


def report(**tests: str) -> str:
    """A JUnit report of these tests, with what stands within each."""
    cases = "".join(CASE.format(name=f"test_{name}", inner=inner) for name, inner in tests.items())
    return f"<testsuites><testsuite>{cases}</testsuite></testsuites>"


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str]]:
    """Exit codes and reports of the runs of pytest that come; after the last one, Ctrl-C."""
    waiting: list[tuple[int, str]] = []

    def run(command: list[str]) -> int:
        if not waiting:
            raise KeyboardInterrupt
        code, text = waiting.pop(0)
        (option,) = (each for each in command if each.startswith("--junit-xml="))
        Path(option.removeprefix("--junit-xml=")).write_text(text)
        return code

    for module in (run_host_parts, soak_host):
        monkeypatch.setattr(module, "run_pytest", run)
        monkeypatch.setattr(module, "clean", lambda: None)
        monkeypatch.setattr(module, "end_like_ctrl_c", lambda: None)
    monkeypatch.setattr(host_parts, "PARTS", (AGENT, FABRIC))
    return waiting


def test_parts_that_pass_end_with_a_line_each_and_a_table(
    runs: list[tuple[int, str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs += [(0, report(a="", b="", c="<skipped/>")), (5, report())]
    monkeypatch.setattr("sys.argv", ["test-host", "-k", "x"])

    assert run_host_parts.main() == 0
    printed = capsys.readouterr().out.splitlines()
    assert "== test-host: agent: 2 passed, 0 failed, 0 flaky, 1 skipped, 0 s" in printed
    assert "== test-host: fabric: 0 passed, 0 failed, 0 flaky, 0 s" in printed, "-k left none, which is no failure"
    assert [line.split() for line in printed[-2:]] == [
        ["agent", "2", "0", "0", "1", "0"],
        ["fabric", "0", "0", "0", "0", "0"],
    ]


def test_a_part_of_which_the_machine_can_run_nothing_has_not_failed(
    runs: list[tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.append((0, report(a="<skipped/>")))
    monkeypatch.setattr("sys.argv", ["test-host", "--room", "agent"])

    assert run_host_parts.main() == 0


@pytest.mark.parametrize(
    ("trace", "line"),
    [
        (None, "== test-host: agent: 2 passed, 0 failed, 1 flaky, 0 s"),
        ("trace", "== test-host: agent: 1 passed, 1 failed, 0 flaky, 0 s"),
    ],
)
def test_what_fails_runs_again_alone_and_twice_is_a_failure(
    runs: list[tuple[int, str]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    trace: str | None,
    line: str,
) -> None:
    runs.append((1, report(a="", b=FAILS)))
    monkeypatch.setattr(run_host_parts, "run_alone", lambda _root, _test: trace)
    monkeypatch.setattr("sys.argv", ["test-host", "--room", "agent"])

    assert run_host_parts.main() == (0 if trace is None else 1)
    printed = capsys.readouterr().out
    assert line in printed.splitlines()
    assert ("FLAKY tests/system/test_agent.py::test_b  assert 1 == 2" in printed) == (trace is None)


def test_an_interrupted_run_still_says_what_there_is(
    runs: list[tuple[int, str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.append((0, report(a="")))
    monkeypatch.setattr("sys.argv", ["test-host"])

    assert run_host_parts.main() == 130
    printed = capsys.readouterr().out.splitlines()
    assert "== test-host: fabric: interrupted" in printed
    assert [line.split() for line in printed[-1:]] == [["agent", "1", "0", "0", "0", "0"]]


def test_an_unknown_room_is_a_usage_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["test-host", "--room", "agents"])

    with pytest.raises(SystemExit, match="2"):
        run_host_parts.main()
    assert "no such room: agents. Rooms: advisor, agent," in capsys.readouterr().err


def test_a_part_is_one_pytest_of_its_files_and_marks_narrow_it(tmp_path: Path) -> None:
    command = run_host_parts.pytest_command(FABRIC, "core or slow", ["-x"], tmp_path)
    assert command[:4] == [sys.executable, "-m", "pytest", "tests/lab/test_fabric.py"]
    assert command[command.index("-m", 2) + 1] == "host and (core or slow)"
    assert "--numprocesses" in command
    assert command[-1] == "-x"
    assert "--numprocesses" not in run_host_parts.pytest_command(AGENT, None, [], tmp_path)


def test_pytest_that_is_interrupted_ends_its_fixtures_first(tmp_path: Path) -> None:
    """A process whose end takes a moment, and that interrupts the one that waits for it."""
    text = "import os, signal, sys, time\ntry:\n os.kill(os.getppid(), signal.SIGINT)\n time.sleep(60)\n"
    text += f"except KeyboardInterrupt:\n open({str(tmp_path / 'ended')!r}, 'w').close()\n"

    with pytest.raises(KeyboardInterrupt):
        run_host_parts.run_pytest([sys.executable, "-c", text])
    assert (tmp_path / "ended").exists()


def test_a_soak_counts_failures_of_each_test_until_it_is_interrupted(
    runs: list[tuple[int, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    runs += [(1, report(a=FAILS, b="")), (0, report(a="", b="")), (1, report(a=FAILS, b=FAILS)), (2, report())]
    monkeypatch.setattr("sys.argv", ["soak-host", "--room", "agent", "--json", str(tmp_path / "soak.json")])

    assert soak_host.main() == 1
    # Four runs were begun and ended; the last of them broke off by itself, in the fifth came Ctrl-C.
    assert capsys.readouterr().out.splitlines()[-4:] == [
        "failed 2 of 4: tests/system/test_agent.py::test_a  assert 1 == 2",
        "failed 1 of 4: tests/system/test_agent.py::test_b  assert 1 == 2",
        "failed 1 of 4: agent  pytest did not run to its end (exit code 2)",
        "0 s; runs: agent 4; failed tests: 3",
    ]
    written = json.loads((tmp_path / "soak.json").read_text())
    assert written["runs"] == {"agent": 4}
    assert written["failed"][0] == {
        "test": "tests/system/test_agent.py::test_a",
        "failed": 2,
        "runs": 4,
        "part": "agent",
        "error": "assert 1 == 2",
    }


def test_a_soak_begins_nothing_once_its_time_is_up(runs: list[tuple[int, str]]) -> None:
    counts = soak_host.soak([AGENT], None, [], hours=0.0)
    counts.add("agent", RunReport(1, (Failure("t", "e", "trace"),)))
    assert (counts.runs["agent"], counts.failures["t"]) == (1, 1)

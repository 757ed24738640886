"""Children with a log: ready, ended in time or killed, told apart by how they ended."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from services._runtime.child_process import AnsweringChild, Child, log_tail, read_log, spawn_logged

READY = "import signal, sys; print('ready', flush=True); "


@pytest.fixture
def log_file(tmp_path: Path) -> Path:
    path = tmp_path / "child.log"
    path.write_text("of an earlier one")
    return path


@pytest.fixture
def started(log_file: Path) -> Iterator[list[Child]]:
    children: list[Child] = []
    yield children
    for child in children:
        child.process.kill()
        child.process.wait()


def start(started: list[Child], log_file: Path, program: str, environment: dict[str, str] | None = None) -> Child:
    started.append(Child(spawn_logged([sys.executable, "-c", program], log_file, environment), log_file))
    return started[-1]


def says_ready(log_file: Path) -> bool:
    return "ready" in read_log(log_file)


async def test_it_is_ready_when_the_probe_says_so_and_ends_by_sigterm(started: list[Child], log_file: Path) -> None:
    child = start(started, log_file, READY + "signal.pause()")

    assert await child.until_ready(lambda: says_ready(log_file), 60, 0.01)
    assert child.running
    assert child.log_tail() == "ready"

    await child.end(60)

    assert child.exit_text == f"signal {signal.SIGTERM.value}"
    await child.end(60)  # nothing: it has ended


async def test_one_that_ignores_sigterm_is_killed(started: list[Child], log_file: Path) -> None:
    child = start(
        started, log_file, "import signal; signal.signal(15, signal.SIG_IGN); " + READY + "\nwhile True: signal.pause()"
    )
    assert await child.until_ready(lambda: says_ready(log_file), 60, 0.01)

    await child.end(0.05)

    assert child.exit_text == f"signal {signal.SIGKILL.value}"


async def test_the_end_before_readiness_and_too_long_a_start_are_told_apart(
    started: list[Child], log_file: Path
) -> None:
    died = start(started, log_file, "import sys; print('why', file=sys.stderr); sys.exit(7)")
    assert not await died.until_ready(lambda: False, 60, 0.01)
    assert not died.running
    assert (died.exit_text, died.log_tail()) == ("exit code 7", "why")

    silent = start(started, log_file, "import signal; signal.pause()")
    assert not await silent.until_ready(lambda: False, 0.05, 0.01)
    assert silent.running


async def test_it_has_the_given_environment_its_own_session_and_no_input(started: list[Child], log_file: Path) -> None:
    program = "import os, sys; print(os.environ.get('GIVEN'), os.getsid(0) == os.getpid(), sys.stdin.read() == '')"
    child = start(started, log_file, program, {"GIVEN": "yes"})
    assert child.process.wait(60) == 0
    assert child.log_tail() == "yes True True"


def test_only_the_end_of_a_long_log_is_shown(log_file: Path) -> None:
    log_file.write_bytes(b"\n".join(b"line %d" % number for number in range(100)) + b"\n\xff")
    lines = log_tail(log_file).splitlines()
    assert (len(lines), lines[0], lines[-1]) == (20, "line 81", "\ufffd")
    assert read_log(log_file.with_name("none.log")) == ""


def test_a_parent_that_has_died_before_the_call_is_told() -> None:
    """In a child, so that this process is not bound to its own parent."""
    program = (
        "import os; from services._runtime.child_process import die_with_parent as bind;"
        "print(bind(9, os.getppid()), bind(9, os.getppid() + 1), bind(9))"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert told.stdout.split() == ["True", "False", "True"]


def test_a_child_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    program = (
        "import signal, sys; from pathlib import Path; from services._runtime.child_process import spawn_logged;"
        "child = spawn_logged([sys.executable, '-c', 'import signal; signal.pause()'], Path(sys.argv[1]));"
        "print(child.pid, flush=True); signal.pause()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, tmp_path / "log"], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        child = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
    try:
        assert select.select([child], [], [], 60)[0], "the child has ended"
    finally:
        os.close(child)


ECHO = "import json, sys; print(json.dumps({'hello': 1}), flush=True)\nfor line in sys.stdin: "


def test_a_child_answers_each_line_and_ends_with_its_input() -> None:
    child = AnsweringChild([sys.executable, "-c", ECHO + "print(json.dumps([line.strip()]), flush=True)"])
    assert child.ask(within_s=60) == {"hello": 1}
    assert [child.ask("a", 60), child.ask("b")] == [["a"], ["b"]]
    child.close(60)
    assert child.process.returncode == 0


def test_a_child_that_is_silent_or_has_ended_says_so() -> None:
    silent = AnsweringChild([sys.executable, "-c", ECHO + "pass\nimport signal; signal.pause()"])
    assert silent.ask(within_s=60) == {"hello": 1}
    with pytest.raises(TimeoutError, match=r"does not answer within 0\.01 s"):
        silent.ask("a", 0.01)
    silent.close(0)
    assert silent.process.returncode == -signal.SIGKILL

    ended = AnsweringChild([sys.executable, "-c", "import sys; sys.exit(3)"])
    with pytest.raises(EOFError, match="has ended with 3"):
        ended.ask("a", 60)
    ended.close(60)

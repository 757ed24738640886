"""`turnbuckle exec` on real control groups."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from services._host.cgroupfs import CgroupLayout, ManagedCgroup, detect
from services._runtime.bus.embedded_server import EmbeddedNats
from services.cli.main import app as main

EXEC = [sys.executable, "-m", "services.cli", "exec"]
READY_S = 60.0


@pytest.fixture
def app() -> Iterator[str]:
    """An application of our own; its groups are gone afterwards, whatever the test did."""
    name = f"t{uuid.uuid4().hex[:8]}"
    yield name
    for directory in groups(name):
        group = ManagedCgroup(detect(), directory)
        group.kill()
        group.remove()


def groups(app: str) -> list[str]:
    layout = detect()
    return sorted(
        {
            f"turnbuckle/{app}/{found.name}"
            for mount in layout.distinct_mounts()
            for found in Path(mount.directory, "turnbuckle", app).glob("*-*")
        }
    )


def read_limits(layout: CgroupLayout, directory: str) -> tuple[int, int]:
    paths = layout.directories(directory)
    if layout.version == 1:
        quota = int(Path(paths["cpu"], "cpu.cfs_quota_us").read_text())
        return quota, int(Path(paths["memory"], "memory.limit_in_bytes").read_text())
    quota = int(Path(paths["cpu"], "cpu.max").read_text().split()[0])
    return quota, int(Path(paths["memory"], "memory.max").read_text())


def run(app: str, *command: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    arguments = [*EXEC, "--app", app, "--name", "web", *options, "--", *command]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)


def wait_for_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


@pytest.mark.root
def test_the_command_runs_inside_and_nothing_is_left(app: str) -> None:
    done = run(app, "cat", "/proc/self/cgroup")

    assert done.returncode == 0, done.stderr
    assert f"/turnbuckle/{app}/web-" in done.stdout
    for controller in detect().mounts:
        lines = [line for line in done.stdout.splitlines() if controller in line.split(":")[1].split(",")]
        assert all(f"/turnbuckle/{app}/web-" in line for line in lines)
    assert groups(app) == []


@pytest.mark.root
@pytest.mark.parametrize(("command", "code"), [("exit 7", 7), ("kill -TERM $$", 143), ("kill -KILL $$", 137)])
def test_the_exit_code_is_the_commands(app: str, command: str, code: int) -> None:
    assert run(app, "sh", "-c", command).returncode == code


@pytest.mark.root
def test_the_outcome_for_programs_is_the_last_line_of_stderr(app: str) -> None:
    """Stdout is the command's, and so is a --json after the two dashes."""
    done = run(
        app, "sh", "-c", 'echo "$1"; exit 7', "sh", "--json", options=("--json", "--server", "nats://127.0.0.1:1")
    )
    outcome = json.loads(done.stderr)

    assert (done.returncode, done.stdout) == (7, "--json\n")
    assert outcome.items() >= {"app": app, "name": "web", "exit_code": 7, "oom_kills": 0}.items()
    assert "announced is not known" in outcome["notes"][0]


@pytest.mark.root
def test_a_command_that_does_not_exist_is_an_error_for_programs(app: str) -> None:
    error = json.loads(run(app, "/no/such", options=("--json",)).stderr)["error"]

    assert error == {"message": "/no/such: no such program", "exit_code": 127, "kind": "not_found"}


@pytest.mark.root
def test_the_first_limits_are_in_force(app: str) -> None:
    arguments = [*EXEC, "--app", app, "--name", "web", "--cpus", "0.25", "--memory", "64MiB", "--"]
    with subprocess.Popen(
        [*arguments, "sh", "-c", "echo ready; exec sleep 300"], stdout=subprocess.PIPE, text=True
    ) as process:
        assert wait_for_line(process) == "ready"
        (directory,) = groups(app)

        assert read_limits(detect(), directory) == (25_000, 64 << 20)

        process.terminate()

        assert process.wait(READY_S) == 128 + signal.SIGTERM
    assert groups(app) == []


@pytest.mark.root
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_are_passed_on(app: str, number: signal.Signals) -> None:
    script = (
        "import signal, sys\n"
        f"signal.signal({int(number)}, lambda *_: sys.exit(42))\n"
        "print('ready', flush=True)\n"
        "signal.pause()\n"
    )
    arguments = [*EXEC, "--app", app, "--name", "web", "--", sys.executable, "-c", script]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        assert wait_for_line(process) == "ready"
        process.send_signal(number)

        assert process.wait(READY_S) == 42


@pytest.mark.root
def test_what_the_command_leaves_running_is_ended(app: str) -> None:
    done = run(app, "sh", "-c", "sleep 300 >/dev/null 2>&1 & echo $!")
    left = int(done.stdout)
    deadline = time.monotonic() + 60
    while Path(f"/proc/{left}/exe").exists() and time.monotonic() < deadline:
        os.sched_yield()

    assert done.returncode == 0
    assert not Path(f"/proc/{left}/exe").exists()
    assert groups(app) == []


@pytest.mark.root
def test_a_program_that_cannot_be_run_is_told_as_a_shell_does(app: str, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("no program")
    missing, unusable = run(app, "no-such-program"), run(app, str(text))

    assert (missing.returncode, unusable.returncode) == (127, 126)
    assert "no-such-program: no such program" in missing.stderr
    assert groups(app) == []


AS_NOBODY = """
import contextlib, os, sys
from services.cli.main import app
with contextlib.suppress(SystemExit):
    app(["exec", "--app", "no name", "--name", "web", "--", "true"])
os.setgroups([]); os.setgid(65534); os.setuid(65534)
app(["exec", *sys.argv[1:]])
"""
"""Below a directory that only root may enter nobody can read the checkout: a command that is refused loads it first."""


@pytest.mark.root
def test_an_ordinary_user_is_told_to_use_sudo(app: str) -> None:
    arguments = [sys.executable, "-c", AS_NOBODY, "--app", app, "--name", "web", "--", "true"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 69, done.stderr
    assert "Only root may do that: use sudo" in done.stderr
    assert "Traceback" not in done.stderr
    assert groups(app) == []


@pytest.mark.root
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--app", "a b", "--name", "web"), "a b"),
        (("--app", "a", "--name", "../web"), "../web"),
        (("--app", "a", "--name", "web", "--memory", "lots"), "no size"),
        (("--app", "a", "--name", "web", "--cpus", "0"), "0.01"),
    ],
)
def test_wrong_arguments_make_nothing(options: tuple[str, ...], said: str) -> None:
    done = CliRunner().invoke(main, ["exec", *options, "--", "true"])

    assert done.exit_code == 2
    assert said in done.stderr
    assert isinstance(done.exception, SystemExit)


@pytest.mark.root
def test_a_kill_at_the_limit_is_explained(app: str) -> None:
    grow = "data = []\nwhile True: data.append(bytearray(1 << 20))"
    done = run(app, sys.executable, "-c", grow, options=("--memory", "32MiB"))

    assert done.returncode == 137
    assert "the kernel killed it at its memory limit (1 in its group)" in done.stderr


@pytest.mark.root
async def test_an_application_that_nobody_announced_is_told_at_once(app: str) -> None:
    async with EmbeddedNats() as server:
        done = await asyncio.to_thread(run, app, "true", options=("--server", server.url))

    assert done.returncode == 0
    assert f"application '{app}' is not announced: the process runs unmanaged" in done.stderr

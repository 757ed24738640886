"""`turnbuckle up --cluster`: real scheduler and runners, jobs preempted and explained, and how all of it ends."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from services._host.cgroupfs import detect
from services.cli.toolkit.supervisor import free_port
from tests.support.jobs_command import JobsCommand
from tests.support.up_process import environment, state_directory, until, up

pytestmark = [pytest.mark.slow, pytest.mark.timeout(360)]

LEARN = Path(__file__).parents[2] / "docs" / "examples" / "jobs" / "learn.py"
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(1000)"


def cluster_environment(root: str | None = None) -> dict[str, str]:
    env = environment(root)
    if os.geteuid() == 0:  # the test's own directory is root's
        env["TURNBUCKLE_RUNNER__RUN_AS"] = "root"
    return env


def is_up(process: subprocess.Popen[str]) -> bool:
    assert process.stderr is not None
    line = process.stderr.readline()
    assert line, "it has ended"
    return "turnbuckle is up" in line


def processes_with(text: str) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has ended
            continue
        if text in command:
            found.append(int(path.parent.name))
    return found


@pytest.fixture
def managed_root() -> Iterator[str]:
    root = f"tb-test-{uuid.uuid4().hex[:8]}"
    yield root
    groups = [str(path) for mount in detect().distinct_mounts() for path in Path(mount.directory, root).rglob("*-*")]
    assert groups == [], f"control groups were left behind: {groups}"
    shutil.rmtree(state_directory(root), ignore_errors=True)


def test_a_job_is_preempted_for_another_and_goes_on_where_it_was(tmp_path: Path) -> None:
    port, env = free_port(), cluster_environment()
    learn = ["--", sys.executable, str(LEARN), "--steps"]
    with up(tmp_path, "--simulate", "--cluster", "2x1", "--no-live", "--port", str(port), env=env) as process:
        jobs = JobsCommand(tmp_path, f"nats://127.0.0.1:{port}", env)
        until(lambda: is_up(process), "everything runs")
        jobs("submit", "--name", "first", "--workers", "2", "--preemption", "checkpoint", *learn, "100000")
        until(lambda: "step 20:" in jobs.log("first", "--worker", "0"), "it makes progress")
        jobs("submit", "--name", "second", "--preemption", "restart", *learn, "20")

        assert jobs.phase("second") == "waiting"
        assert "needs 1 slot" in jobs("explain", "second")

        jobs("preempt", "first", "--for", "20s")  # longer than the second takes to be given the slots
        until(lambda: jobs.phase("second") == "ended", "the second has had the slots", within_s=120)
        until(lambda: jobs.changes("first").count("started") == 2, "the first is started again", within_s=120)
        attempt = ("first", "--attempt", "2", "--worker", "0")
        began = until(lambda: re.search(r"begins at step (\d+) of", jobs.log(*attempt)), "it goes on")

        assert int(began[1]) >= 20
        happened = jobs.changes("first")
        assert happened[0] == "submitted"
        assert happened.count("started") == 2
        assert happened.index("asked to preempt") < happened.index("stopped")
        text = jobs("explain", "first")
        assert "1 preemption" in text
        assert "asked to preempt: by " in text
        assert "saved at step" in jobs.log("first", "--attempt", "1")

        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)

    assert process.returncode == 0, err
    assert processes_with(f"{LEARN} --steps 100000") == []


@pytest.mark.root
def test_workers_get_control_groups_and_end_with_it_although_they_are_deaf(tmp_path: Path, managed_root: str) -> None:
    port, env = free_port(), cluster_environment(managed_root)
    mark = f"deaf-{uuid.uuid4().hex}"
    with up(tmp_path, "--cluster", "1x2", "--no-live", "--port", str(port), env=env) as process:
        jobs = JobsCommand(tmp_path, f"nats://127.0.0.1:{port}", env)
        until(lambda: is_up(process), "everything runs")
        jobs("submit", "--name", "deaf", "--cpu", "0.2", "--", sys.executable, "-c", DEAF, mark)
        until(lambda: "deaf" in jobs.log("deaf"), "it runs")
        cpu = Path(detect().mounts["cpu"].directory, managed_root, "job-deaf")
        (group,) = list(cpu.glob("worker-0-*"))
        (pid,) = processes_with(mark)[-1:]

        assert str(pid) in (group / "cgroup.procs").read_text().split()

        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)

    assert process.returncode == 0, err
    until(lambda: processes_with(mark) == [], "the worker was killed")


def test_of_a_runner_that_dies_the_log_is_shown_and_its_workers_end(tmp_path: Path) -> None:
    port, env = free_port(), cluster_environment()
    mark = f"deaf-{uuid.uuid4().hex}"
    with up(tmp_path, "--simulate", "--cluster", "1x1", "--no-live", "--port", str(port), env=env) as process:
        jobs = JobsCommand(tmp_path, f"nats://127.0.0.1:{port}", env)
        until(lambda: is_up(process), "everything runs")
        jobs("submit", "--name", "deaf", "--", sys.executable, "-c", DEAF, mark)
        until(lambda: "deaf" in jobs.log("deaf"), "it runs")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        (runner,) = [pid for pid in children if b"services.runner" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        os.kill(int(runner), signal.SIGKILL)
        _, err = process.communicate(timeout=120)

    assert process.returncode == 70
    assert "runner-n1 has ended (signal 9)" in err
    until(lambda: processes_with(mark) == [], "the worker was killed")


def test_jobs_of_a_store_go_on_at_the_next_start(tmp_path: Path) -> None:
    port, env = free_port(), cluster_environment()
    options = ("--simulate", "--cluster", "1x1", "--no-live", "--port", str(port), "--store", str(tmp_path / "store"))
    jobs = JobsCommand(tmp_path, f"nats://127.0.0.1:{port}", env)
    with up(tmp_path, *options, env=env) as process:
        until(lambda: is_up(process), "everything runs")
        command = [sys.executable, str(LEARN), "--steps", "100000"]
        jobs("submit", "--name", "first", "--preemption", "checkpoint", "--", *command)
        until(lambda: "step 20:" in jobs.log("first"), "it makes progress")
        asked_ns = time.time_ns()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
        ended_ns = time.time_ns()
    with up(tmp_path, *options, env=env) as process:
        until(lambda: is_up(process), "everything runs again")
        until(lambda: jobs.changes("first").count("started") == 2, "it is started again")

        assert "unsaved" not in jobs.changes("first")
        explained = jobs.explained("first")
        (stopped,) = [line for line in explained["history"] if line["what"] == "stopped"]
        assert asked_ns <= stopped["happened_ns"] <= ended_ns < stopped["time_ns"]
        assert "stopped because its runner ended" in stopped["why"]
        # Spans are kept in seconds, as floating point numbers: exact to 0.3 us.
        assert abs(explained["job"]["spans"][0]["end_ns"] - stopped["happened_ns"]) < 1_000
        assert "by its node's clock; in the log since" in jobs("explain", "first")


@pytest.mark.root
@pytest.mark.netns
def test_workers_of_two_racks_meet_over_an_uplink_and_all_is_gone_after_a_kill(tmp_path: Path) -> None:
    """Each sends 2.5 MB to the other: 20 Mbit at 40 Mbit/s take half a second."""
    port, env = free_port(), cluster_environment()
    options = ("--simulate", "--cluster", "2x1", "--racks", "2", "--uplink", "40Mbit", "--no-live", "--port", str(port))
    traffic = ["--", sys.executable, str(LEARN.with_name("traffic.py")), "--bytes", "2500000", "--compute", "0"]
    with up(tmp_path, *options, env=env) as process:
        jobs = JobsCommand(tmp_path, f"nats://127.0.0.1:{port}", env)
        until(lambda: is_up(process), "everything runs")
        jobs("submit", "--name", "short", "--workers", "2", *traffic, "--iterations", "2")
        until(lambda: jobs.phase("short") == "ended", "it ends")
        lines = [json.loads(line) for line in jobs.log("short", "--worker", "0").splitlines()]

        assert [line["bytes"] for line in lines] == [2_500_000] * 2
        assert all(line["end_s"] - line["sending_s"] > 0.45 for line in lines)

        jobs("submit", "--name", "long", "--workers", "2", *traffic, "--iterations", "100000")
        until(lambda: jobs.log("long", "--worker", "1"), "it sends")
        mark = "traffic.py --bytes 2500000 --compute 0 --iterations 100000"
        networks = {str(Path(f"/proc/{pid}/ns/net").readlink()) for pid in processes_with(mark)}
        assert len(networks) == 2
        process.kill()
        process.communicate(timeout=120)

        until(lambda: processes_with(mark) == [], "its workers end")
        until(lambda: not networks & {network_of(path) for path in Path("/proc").glob("[0-9]*")}, "nobody is in there")


def network_of(process: Path) -> str:
    """Its network namespace; empty where it has ended."""
    try:
        return str((process / "ns" / "net").readlink())
    except OSError:
        return ""

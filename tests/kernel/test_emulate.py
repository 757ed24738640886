"""The emulated cloud on the real kernel: sandboxes with limits, real distributed training in them, violent ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from schemas.jobs import JobRecord, JobState
from services._host.cgroupfs import detect
from services._jobs.record_files import read_job_file
from services._jobs.sandbox.records import RECORDS, SANDBOXES_ROOT, RunRecord
from services.collector.emulator.fork_client import ForkServer
from services.collector.emulator.instance_types import InstanceType
from services.collector.emulator.run_request import RunRequest
from services.collector.write_ahead_log import read_journal
from tests.support.cgroup_lab import wait_until

pytestmark = [pytest.mark.root, pytest.mark.netns, pytest.mark.slow, pytest.mark.timeout(540)]
MACHINE = InstanceType("machine", 0.5, 512, 400, 1.0)
GRID = """
dataset: tested
tasks: [image-digits]
instance_types:
  - {name: half, cpu_cores: 0.5, memory_mb: 512, network_mbps: 400, usd_per_hour: 1.0}
workers: [1, 2]
batch_sizes: [128, 256]
share: 0.75
timeout_s: 120
local_run: {instance_type: {name: here, cpu_cores: 0.3, memory_mb: 512, network_mbps: 400}, interval_s: 0.1}
"""


@pytest.fixture(scope="module")
def parent() -> Iterator[ForkServer]:
    with ForkServer() as parent:
        yield parent


def token_of(pid: int) -> str:
    """Names the sandboxes of a fork server; others may have sandboxes, too."""
    records = [RunRecord.read(path) for path in RECORDS.glob("*.json")]
    (token,) = (record.token for record in records if record and record.owner.pid == pid)
    return token


def sandboxes_left(token: str) -> list[str]:
    """Control groups of a fork server's sandboxes."""
    return [
        str(path)
        for mount in detect().distinct_mounts()
        for path in Path(f"{mount.directory}/{SANDBOXES_ROOT}/{token}").glob("*")
        if path.is_dir()
    ]


def child_of(process: subprocess.Popen[str]) -> int:
    """The tool's fork server."""
    (pid,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(pid)


def order(**changes) -> RunRequest:
    return replace(RunRequest("image-digits", MACHINE, 1, 256, 1, 120.0), **changes)


@pytest.mark.machine
def test_two_machines_train_and_are_measured(parent):
    outcome = parent.run(order(workers=2, interval_s=0.1))
    assert outcome.state is JobState.SUCCEEDED, outcome.reason
    assert outcome.exit_codes == (0, 0)
    assert outcome.loss is not None
    assert outcome.loss < 2.0  # ln 10 = 2.3 before the first step
    assert [worker.worker for worker in outcome.series] == ["master", "worker-1"]
    assert outcome.duration_s is not None
    for worker in outcome.series:
        assert worker.samples == pytest.approx(outcome.duration_s / 0.1, abs=2)
        assert worker.column("cpu_cores").mean() < 1.3 * MACHINE.cpu_cores
        # 6 epochs x 4 steps of 130 kB of gradients each way; the last intervals, not full, have no sample
        least_bytes = 0.8 * 24 * 130_000 * worker.samples / (worker.samples + 2)
        assert worker.column("network_in_bytes_per_s").sum() * 0.1 > least_bytes
        assert worker.column("network_out_bytes_per_s").sum() * 0.1 > least_bytes


def test_a_slow_network_is_slow(parent):
    slow = replace(MACHINE, network_mbps=5)
    outcome = parent.run(order(workers=2, instance=slow))
    assert outcome.state is JobState.SUCCEEDED, outcome.reason
    # 24 steps of about 130 kB each way at 0.625 MB/s
    assert outcome.duration_s is not None
    assert outcome.duration_s > 3.0


def test_too_little_memory_is_seen_by_the_kernels_counter(parent):
    small = replace(MACHINE, memory_mb=64)
    outcome = parent.run(order(task="text-transformer", workers=2, batch_size=192, instance=small))
    assert outcome.state is JobState.OUT_OF_MEMORY
    assert outcome.duration_s is None
    assert "64 MB" in outcome.reason
    assert -signal.SIGKILL in outcome.exit_codes


def test_a_run_that_takes_too_long_is_stopped_and_leaves_nothing(parent):
    slow = replace(MACHINE, cpu_cores=0.05)
    outcome = parent.run(order(task="text-transformer", instance=slow, timeout_s=0.7, workers=2))
    assert outcome.state is JobState.TIMED_OUT
    assert outcome.duration_s == 0.7
    token = token_of(parent._child.process.pid)
    assert sandboxes_left(token) == []


# -- the tool -----------------------------------------------------------------------------------------------------


class Tool:
    """Starts the tool with one directory, and leaves none running."""

    def __init__(self, directory: Path) -> None:
        self.grid = directory / "grid.yaml"
        self.grid.write_text(GRID)
        self.out = directory / "out"
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "services.collector.emulator.commands", str(self.grid), "--out", str(self.out)]
        process = subprocess.Popen(
            [*command, "--no-bus", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self._started.append(process)
        return process

    def events(self, *arguments: str, code: int = 0) -> list[dict]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=300)
        assert process.returncode == code, err
        return [json.loads(line) for line in out.splitlines()]

    def close(self) -> None:
        for process in self._started:
            process.kill()
            process.communicate()


@pytest.fixture
def tool(tmp_path) -> Iterator[Tool]:
    tool = Tool(tmp_path)
    try:
        yield tool
    finally:
        tool.close()


def next_row(process: subprocess.Popen[str]) -> dict:
    for line in process.stdout:
        event = json.loads(line)
        if event["event"] == "row":
            return event["record"]
    raise AssertionError(process.communicate()[1])


def is_gone(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


def test_kill_9_and_again_makes_each_run_once(tool):
    first = tool.start()
    local_run = next_row(first)
    measured = next_row(first)
    parent = child_of(first)
    token = token_of(parent)
    wait_until(lambda: sandboxes_left(token), within_s=60, what="the next run")
    first.kill()
    first.communicate()
    wait_until(lambda: is_gone(parent), within_s=60, what="the end of the fork server")
    wait_until(lambda: sandboxes_left(token) == [], within_s=60, what="the end of its cells")
    finished = [record.job for record in read_journal(tool.out) if isinstance(record, JobRecord)]
    told = tool.events()
    rows = [event["record"]["job"] for event in told if event["event"] == "row"]
    assert measured["job"] in finished
    assert len({*finished, *rows}) == len(finished) + len(rows) == 3  # configurations
    assert rows, "killed before the last one"
    assert told[-1]["event"] == "result"
    assert told[-1]["runs"] == 3
    kept = read_job_file(Path(told[-1]["parquet"]))
    assert sorted(record.job for record in kept.records) == sorted([*finished, *rows])
    whole, *cut = [profile.run for profile in kept.profiles]
    assert whole == local_run["run"]
    assert all(run.startswith(f"{whole}-cut-") for run in cut), "and what its series shows when it is cut"
    assert all(record.state is JobState.SUCCEEDED for record in kept.records)


def test_an_interrupt_keeps_what_is_finished(tool):
    process = tool.start()
    next_row(process)
    token = token_of(child_of(process))
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    assert json.loads(out.splitlines()[-1])["event"] == "error"
    assert sandboxes_left(token) == []
    assert list(read_journal(tool.out))


def test_a_grid_that_is_none_is_refused_before_anything_starts(tool):
    tool.grid.write_text("workers: [0]\nbatch_sizes: [16]\n")
    (refused,) = tool.events(code=65)
    assert "grid.yaml: workers.0" in refused["message"]
    assert not tool.out.exists()

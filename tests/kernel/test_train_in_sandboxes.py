"""`turnbuckle train --elastic --workers sandbox`: each worker has what was planned, and nothing of them is left."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from services._host.cgroupfs import detect
from services._jobs.sandbox.records import RECORDS, SANDBOXES_ROOT, RunRecord
from tests.support.cgroup_lab import wait_until
from tests.support.elastic_command import HASTE, ElasticCommand, elastic_command
from tests.support.local_runs import sandbox_directories, wait_gone

pytestmark = [pytest.mark.root, pytest.mark.netns, pytest.mark.slow]
SANDBOXES = ("--workers", "sandbox", "--worker-cpus", "0.5", "--worker-memory", "1GiB")
CORES, MEMORY_BYTES = 0.5, 1 << 30


def run_of(command: ElasticCommand) -> str:
    """Token of the run that the command owns, once it has one."""
    found: list[str] = []

    def is_recorded() -> bool:
        records = [RunRecord.read(path) for path in RECORDS.glob("*.json")]
        found[:] = [one.token for one in records if one is not None and one.owner.pid == command.process.pid]
        return bool(found)

    wait_until(is_recorded, what="the record of its sandboxes")
    return found[0]


def limits_of(token: str, name: str) -> tuple[float | None, int | None]:
    """Cores and bytes that a sandbox may use, as the kernel says; None: all."""
    layout = detect()
    paths = layout.directories(f"{SANDBOXES_ROOT}/{token}/{name}")

    def read(controller: str, file: str) -> str:
        return Path(f"{paths[controller]}/{file}").read_text(encoding="ascii").strip()

    if layout.version == 1:
        quota_us, period_us = int(read("cpu", "cpu.cfs_quota_us")), int(read("cpu", "cpu.cfs_period_us"))
        limit_bytes = int(read("memory", "memory.limit_in_bytes"))
        return (None if quota_us < 0 else quota_us / period_us), (None if limit_bytes > 1 << 60 else limit_bytes)
    quota, period = read("cpu", "cpu.max").split()
    limit = read("memory", "memory.max")
    return (None if quota == "max" else int(quota) / int(period)), (None if limit == "max" else int(limit))


def test_each_worker_has_a_sandbox_with_the_planned_limits_and_none_is_left(tmp_path: Path) -> None:
    with elastic_command(tmp_path, *HASTE, *SANDBOXES, "--usd-per-hour", "3600") as command:
        progress = command.until_workers(2)
        token = run_of(command)
        assert {path.name for path in sandbox_directories(token)} == {"store", "worker-1", "worker-2"}
        assert limits_of(token, "worker-1") == limits_of(token, "worker-2") == (CORES, MEMORY_BYTES)
        assert limits_of(token, "store") == (None, None)
        assert progress["usd"] >= 2
        command.process.send_signal(signal.SIGTERM)
        assert command.end() == (0, "")

    assert next(event for event in command.seen if event["event"] == "result")["stopped"] is True
    assert next(event for event in command.seen if event["event"] == "pauses")["changes"]["count"] >= 1
    wait_gone(token, [])


def test_where_the_command_is_killed_its_sandboxes_end(tmp_path: Path) -> None:
    with elastic_command(tmp_path, *HASTE, *SANDBOXES) as command:
        command.until_workers(1)
        token = run_of(command)
        command.process.kill()
        command.process.wait(60)
        wait_gone(token, [])


def test_a_signal_while_the_first_worker_starts_leaves_nothing(tmp_path: Path) -> None:
    with elastic_command(tmp_path, *HASTE, *SANDBOXES) as command:
        token = run_of(command)
        command.process.send_signal(signal.SIGTERM)
        code, said = command.end()

    assert code in {0, 130}, said
    wait_gone(token, [])

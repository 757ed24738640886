"""The local run's tool as a process, and what it leaves behind."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import Any

from services._host.cgroupfs import detect
from services._jobs.sandbox.records import RECORDS, SANDBOXES_ROOT
from tests.support.cgroup_lab import wait_until

ROOT = Path(__file__).parents[2]
WITHIN_S = 120.0
SLEEP = "sleep 1000"
STUBBORN = "trap '' TERM; echo ready; while :; do sleep 0.05; done"


def arguments(out: Path, *options: str) -> list[str]:
    """The tool's command line, up to the user's command. Quick: ten samples in half a second."""
    tool = [sys.executable, "-m", "services.collector.profiler.run", "--no-bus", "--interval", "0.05", "--grace", "2"]
    tool.append("--no-calibration")
    return [*tool, "--out", str(out), *options, "--"]


@dataclass(frozen=True)
class Ended:
    """What the tool said."""

    code: int
    events: list[dict[str, Any]]
    stderr: str

    def event(self, name: str) -> dict[str, Any]:
        """The one event of this name."""
        found = [event for event in self.events if event["event"] == name]
        assert len(found) == 1, (name, self.events[-3:], self.stderr[-2000:])
        return found[0]

    def names(self) -> set[str]:
        """Of all events."""
        return {event["event"] for event in self.events}


def ended(process: subprocess.Popen[str]) -> Ended:
    """Wait for the tool's end; events that have not been read yet."""
    assert process.stdout is not None
    assert process.stderr is not None
    killer = Timer(WITHIN_S, process.kill)
    killer.start()
    # Not `communicate`: that passes over what lies in the buffer of a line that was read, perhaps half a line.
    with process, ThreadPoolExecutor(1) as pool:
        said = pool.submit(process.stderr.read)
        lines = process.stdout.read().splitlines()
    killer.cancel()
    return Ended(process.returncode, [json.loads(line) for line in lines], said.result())


def start(command: list[str], **keywords: Any) -> subprocess.Popen[str]:
    """Start the tool."""
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, **keywords)


def run(command: list[str]) -> Ended:
    """The tool to its end."""
    return ended(start(command))


@contextmanager
def running(command: list[str]) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """The tool, with its ``started`` event; killed at the end if it still runs."""
    process = start(command)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        first = json.loads(line)
        assert first["event"] == "started", first
        yield process, first
    finally:
        process.kill()
        process.communicate()


def lives(pid: int) -> bool:
    """Whether a process runs; its remains do not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def sandbox_directories(token: str = "") -> list[Path]:
    """Control groups of sandboxes, of one run or of all."""
    mounts = {mount.directory for mount in detect().distinct_mounts()}
    tops = [Path(mount) / SANDBOXES_ROOT / token for mount in mounts]
    return [path for top in tops if top.is_dir() for path in top.iterdir() if path.is_dir()]


def token_of(pid: int) -> str:
    """The run that a worker's process belongs to, out of its control group."""
    text = Path(f"/proc/{pid}/cgroup").read_text(encoding="utf-8")
    line = next(line for line in text.splitlines() if f"/{SANDBOXES_ROOT}/" in line)
    return line.partition(f"/{SANDBOXES_ROOT}/")[2].split("/")[0]


def record_of(token: str) -> Path:
    """The run's record."""
    return RECORDS / f"{token}.json"


def child_of(pid: int) -> Callable[[], int | None]:
    """The first child of a process, once there is one."""

    def look() -> int | None:
        words = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
        return int(words[0]) if words else None

    return look


def wait_gone(token: str, pids: list[int]) -> None:
    """Return once neither these processes nor the run's control groups and record are there."""
    wait_until(lambda: not any(lives(pid) for pid in pids), within_s=60, what="the end of the workers")
    wait_until(lambda: not sandbox_directories(token), within_s=60, what="removal of the control groups")
    wait_until(lambda: not record_of(token).exists(), within_s=60, what="removal of the record")


def environment_of(pid: int) -> dict[str, str]:
    """A process' variables."""
    text = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
    return dict(line.split("=", 1) for line in text.split("\0") if "=" in line)


def network_of(pid: int) -> int:
    """Which network namespace a process is in."""
    return Path(f"/proc/{pid}/ns/net").stat().st_ino

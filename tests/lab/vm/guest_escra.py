"""The whole loop inside the machine: run by tests/lab/test_cgroup_v2.py, and there only.

Emulation makes every timing meaningless; that limits follow demand, and are put back, is not a matter of time.
"""

from __future__ import annotations

import asyncio
import glob
import json
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from schemas.apps import AppSpec
from schemas.streams import APPS
from services._host.cgroupfs import CgroupLayout, ManagedCgroup, detect, managed_directory
from services._host.kernel_programs import BUILT_HERE
from services._runtime.bus.options import BusOptions
from services._runtime.command.connection import connected
from services._runtime.command.errors import UnavailableError
from tests.support.cgroup_lab import BURN

pytestmark = pytest.mark.timeout(1_400)

MIB = 1 << 20
PORT = 4222
READY_TIMEOUT_S = 180.0
"""Imports alone take 20 s here on a quiet machine."""
ANNOUNCED_WITHIN_S, SEEN_WITHIN_S, ENDED_WITHIN_S = 300.0, 300.0, 180.0
SEEN_FOR_S = 10.0
"""From the moment when every container is there."""
UP = [sys.executable, "-m", "services.cli", "up", "--demo", "--containers", "processes", "--json"]
UP += ["--port", str(PORT), "--ready-timeout", f"{READY_TIMEOUT_S:g}"]
CONTAINERS = 5
"""Of the demo, and of its twin."""
BYSTANDER = "bystander/burn-000000000000"
BURNER_QUOTA_US, BURNER_BYTES = 5_000, 64 * MIB


class Bystander:
    """A container that was there before, with limits of its own, and stays when everything has gone."""

    def __init__(self, layout: CgroupLayout) -> None:
        directory = managed_directory("bystander", "burn", "0" * 12)
        self.group = ManagedCgroup.create(layout, directory, BURNER_QUOTA_US, BURNER_BYTES)
        self.path = Path(layout.directories(directory)["cpu"])
        self.process = subprocess.Popen([sys.executable, "-S", "-c", BURN])
        assert self.group.add_process(self.process.pid)

    def limits(self) -> tuple[str, str, str]:
        quota, maximum, high = ("cpu.max", "memory.max", "memory.high")
        return tuple((self.path / name).read_text().strip() for name in (quota, maximum, high))

    async def announce(self, up: subprocess.Popen[str], within_s: float = ANNOUNCED_WITHIN_S) -> None:
        """As `turnbuckle apply` does, once NATS answers; nothing if `up` has ended."""
        spec = AppSpec(name="bystander", cpu_limit=0.2, memory_limit=128 * MIB)
        async with asyncio.timeout(within_s):
            while up.poll() is None:
                try:
                    async with connected(BusOptions(servers=(f"nats://127.0.0.1:{PORT}",))) as bus:
                        await bus.bucket(APPS).put(spec.name, spec)
                except UnavailableError:
                    continue  # it has waited for its own while
                else:
                    return


@pytest.fixture
def layout() -> CgroupLayout:
    layout = detect()
    assert layout.version == 2
    return layout


@pytest.fixture
def bystander(layout: CgroupLayout) -> Iterator[Bystander]:
    bystander = Bystander(layout)
    yield bystander
    bystander.process.kill()
    bystander.process.wait()


class Deduplicator:
    """Every value that cpu.max and memory.high have had, by "application/container"."""

    def __init__(self, layout: CgroupLayout) -> None:
        self.top = Path(layout.mounts["cpu"].directory, "turnbuckle")
        self.cpu_max: dict[str, set[str]] = defaultdict(set)
        self.memory_high: dict[str, set[str]] = defaultdict(set)

    def look(self) -> None:
        """Read all of them once."""
        for name, seen in (("cpu.max", self.cpu_max), ("memory.high", self.memory_high)):
            # Not pathlib's: that raises where a directory goes away while it looks.
            for file in map(Path, glob.glob(f"{self.top}/*/*/{name}")):  # noqa: PTH207 - see above
                with suppress(OSError):  # gone meanwhile
                    seen[f"{file.parts[-3]}/{file.parts[-2]}"].add(file.read_text().strip())

    def until_limits_follow(self, process: subprocess.Popen[str]) -> None:
        """Look until everything that the test asserts was there, for `SEEN_FOR_S` at least, or the process ends."""
        deadline_s, complete_s = time.monotonic() + SEEN_WITHIN_S, None
        while process.poll() is None and (now_s := time.monotonic()) < deadline_s:
            self.look()
            if complete_s is None and len(self.values("demo")) == len(self.values("demo-static")) == CONTAINERS:
                complete_s = now_s
            if complete_s is not None and now_s > complete_s + SEEN_FOR_S and self.follow():
                return
            time.sleep(0.25)

    def follow(self) -> bool:
        """Whether limits were changed as they have to be."""
        managed = any(len(values) > 2 for values in self.values("demo"))
        return managed and self.guarded("demo") > 0 and len(self.cpu_max[BYSTANDER]) > 1

    def values(self, app: str) -> list[set[str]]:
        """cpu.max of each of an application's containers."""
        return [values for name, values in self.cpu_max.items() if name.startswith(f"{app}/")]

    def guarded(self, app: str) -> int:
        """How many of an application's containers had a memory.high."""
        return sum(values != {"max"} for name, values in self.memory_high.items() if name.startswith(f"{app}/"))


def check(report: dict[str, Any]) -> None:
    source = "bpf-periods" if BUILT_HERE.is_dir() else "cgroup-v2"
    assert (report["machine"]["cgroup_version"], report["machine"]["telemetry_source"]) == (2, source)
    assert (report["containers"], report["static"]["containers"]) == (CONTAINERS, CONTAINERS)
    assert report["decisions"] > 0
    assert report["quota_writes"] > 0
    assert report["static"]["quota_writes"] == 0
    assert (report["no_op_writes"], report["static"]["no_op_writes"]) == (0, 0)
    assert report["oom_kills"] == 0


def test_limits_follow_demand_and_are_put_back(
    layout: CgroupLayout, bystander: Bystander, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = bystander.limits()
    with (tmp_path / "report").open("w+") as out, (tmp_path / "errors").open("w+") as err:
        process = subprocess.Popen(UP, cwd=tmp_path, stdout=out, stderr=err)
        seen = Deduplicator(layout)
        try:
            asyncio.run(bystander.announce(process))
            seen.until_limits_follow(process)
            process.send_signal(signal.SIGINT)
            process.wait(ENDED_WITHIN_S)
        finally:
            process.kill()
            process.wait()
    errors = (tmp_path / "errors").read_text()
    assert process.returncode == 0, errors
    report = json.loads((tmp_path / "report").read_text())
    with capsys.disabled():
        figures = {name: report[name] for name in ("decisions", "quota_writes", "memory_writes", "oom_kills")}
        print(f"\n  {figures}; values of cpu.max: { {name: len(values) for name, values in seen.cpu_max.items()} }")  # noqa: T201
    check(report)

    managed, static = seen.values("demo"), seen.values("demo-static")
    assert (len(managed), len(static)) == (CONTAINERS, CONTAINERS)
    assert any(len(values) > 2 for values in managed)
    assert all(len(values) == 1 for values in static)

    assert found == ("5000 100000", str(BURNER_BYTES), "max")
    assert seen.guarded("demo") > 0, "memory.high stays below memory.max"
    assert seen.guarded("demo-static") == 0, "who is only observed is left alone"
    assert len(seen.cpu_max[BYSTANDER]) > 1, "it wanted more, and nobody gave it"
    assert bystander.process.poll() is None
    assert bystander.limits() == found

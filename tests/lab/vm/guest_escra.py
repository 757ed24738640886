"""The whole loop inside the machine: run by tests/lab/test_cgroup_v2.py, and there only.

Emulation makes every timing meaningless; that limits follow demand, and are put back, is not a matter of time.
"""

from __future__ import annotations

import asyncio
import glob
import json
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

pytestmark = pytest.mark.timeout(360)

MIB = 1 << 20
PORT = 4222
UP = """
import services.cli.toolkit.supervisor as supervisor
supervisor.READY_WITHIN_S = 120.0  # imports alone take 20 s here
from services.cli.main import main
main()
"""
ARGUMENTS = ["up", "--demo", "--containers", "processes", "--for", "15", "--json", "--port", str(PORT)]
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

    async def announce(self, within_s: float = 120.0) -> None:
        """As `turnbuckle apply` does, once NATS answers."""
        spec = AppSpec(name="bystander", cpu_limit=0.2, memory_limit=128 * MIB)
        async with asyncio.timeout(within_s):
            while True:
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
    """Every value of cpu.max and memory.high until a process ends, by "application/container"."""

    def __init__(self, process: subprocess.Popen[str], layout: CgroupLayout) -> None:
        top = Path(layout.mounts["cpu"].directory, "turnbuckle")
        self.cpu_max: dict[str, set[str]] = defaultdict(set)
        self.memory_high: dict[str, set[str]] = defaultdict(set)
        while process.poll() is None:
            for name, seen in (("cpu.max", self.cpu_max), ("memory.high", self.memory_high)):
                # Not pathlib's: that raises where a directory goes away while it looks.
                for file in map(Path, glob.glob(f"{top}/*/*/{name}")):  # noqa: PTH207 - see above
                    with suppress(OSError):  # gone meanwhile
                        seen[f"{file.parts[-3]}/{file.parts[-2]}"].add(file.read_text().strip())
            time.sleep(0.25)

    def values(self, app: str) -> list[set[str]]:
        """cpu.max of each of an application's containers."""
        return [values for name, values in self.cpu_max.items() if name.startswith(f"{app}/")]

    def guarded(self, app: str) -> int:
        """How many of an application's containers had a memory.high."""
        return sum(values != {"max"} for name, values in self.memory_high.items() if name.startswith(f"{app}/"))


def check(report: dict[str, Any]) -> None:
    source = "bpf-periods" if BUILT_HERE.is_dir() else "cgroup-v2"
    assert (report["machine"]["cgroup_version"], report["machine"]["telemetry_source"]) == (2, source)
    assert (report["containers"], report["static"]["containers"]) == (5, 5)
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
        process = subprocess.Popen([sys.executable, "-c", UP, *ARGUMENTS], cwd=tmp_path, stdout=out, stderr=err)
        try:
            asyncio.run(bystander.announce())
            seen = Deduplicator(process, layout)
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
    assert (len(managed), len(static)) == (5, 5)
    assert any(len(values) > 2 for values in managed)
    assert all(len(values) == 1 for values in static)

    assert found == ("5000 100000", str(BURNER_BYTES), "max")
    assert seen.guarded("demo") > 0, "memory.high stays below memory.max"
    assert seen.guarded("demo-static") == 0, "who is only observed is left alone"
    assert len(seen.cpu_max["bystander/burn-000000000000"]) > 1, "it wanted more, and nobody gave it"
    assert bystander.process.poll() is None
    assert bystander.limits() == found

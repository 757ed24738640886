"""The whole loop inside the machine: run by tests/lab/test_cgroup_v2.py, and there only.

Emulation makes every timing meaningless; that limits follow demand, and are put back, is not a matter of time. One
container burns CPU, within a quota of half of the only processor: so the services get the other half.
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
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from schemas.apps import AppSpec
from schemas.streams import APPS
from services._host.cgroupfs import CgroupLayout, ManagedCgroup, detect, managed_directory
from services._host.kernel_programs import BUILT_HERE
from services._runtime.bus.options import BusOptions
from services._runtime.command.connection import connected
from services._runtime.command.errors import UnavailableError
from tests.support.cgroup_lab import BURN, SLEEP

pytestmark = pytest.mark.timeout(1_900)

MIB = 1 << 20
PORT = 4222
READY_TIMEOUT_S = 400.0
"""Imports alone take 20 s here on a quiet machine."""
IS_TRACED = BUILT_HERE.is_dir() and Path("/sys/kernel/btf/vmlinux").exists()
"""User-Mode Linux has no type information of itself, which tracing programs need."""
ANNOUNCED_WITHIN_S, SEEN_WITHIN_S, ENDED_WITHIN_S = 600.0, 900.0, 180.0
UP = [sys.executable, "-m", "services.cli", "up", "--json", "--port", str(PORT)]
UP += ["--ready-timeout", f"{READY_TIMEOUT_S:g}"]
FOUND_QUOTA_US, FOUND_BYTES = 5_000, 64 * MIB
FOUND: Final = ("5000 100000", str(FOUND_BYTES), "max")
"""cpu.max, memory.max and memory.high before and after."""
MANAGED, OBSERVED = "shop", "watched"
SPECS = (
    AppSpec(name=MANAGED, cpu_limit=0.5, memory_limit=256 * MIB, announced_containers=2),
    AppSpec(name=OBSERVED, cpu_limit=0.5, memory_limit=256 * MIB, mode="observe"),
)


class Container:
    """A group with limits of its own and one process, there before the services and after them."""

    def __init__(self, layout: CgroupLayout, app: str, name: str, code: str) -> None:
        directory = managed_directory(app, name, f"{app}{name}".encode().hex()[:12])
        self.group = ManagedCgroup.create(layout, directory, FOUND_QUOTA_US, FOUND_BYTES)
        self.path = Path(layout.directories(directory)["cpu"])
        self.process = subprocess.Popen([sys.executable, "-S", "-c", code])
        assert self.group.add_process(self.process.pid)

    def limits(self) -> tuple[str, ...]:
        """cpu.max, memory.max and memory.high as they are."""
        return tuple((self.path / name).read_text().strip() for name in ("cpu.max", "memory.max", "memory.high"))

    def end(self) -> None:
        """Its process at once; the group goes with the machine."""
        self.process.kill()
        self.process.wait()


@pytest.fixture
def layout() -> CgroupLayout:
    """Of version 2: whatever else is mounted, this file is about that."""
    layout = detect()
    assert layout.version == 2
    return layout


@pytest.fixture
def containers(layout: CgroupLayout) -> Iterator[list[Container]]:
    """One that burns and one that sleeps, of the managed application; one that burns, of the observed one."""
    made = [Container(layout, MANAGED, "web", BURN), Container(layout, MANAGED, "worker", SLEEP)]
    made.append(Container(layout, OBSERVED, "batch", BURN))
    yield made
    for container in made:
        container.end()


async def announce(up: subprocess.Popen[str], specs: Sequence[AppSpec]) -> None:
    """As `turnbuckle apply` does, once NATS answers; nothing if `up` has ended."""
    async with asyncio.timeout(ANNOUNCED_WITHIN_S):
        while up.poll() is None:
            try:
                async with connected(BusOptions(servers=(f"nats://127.0.0.1:{PORT}",))) as bus:
                    for spec in specs:
                        await bus.bucket(APPS).put(spec.name, spec)
            except UnavailableError:
                continue  # it has waited for its own while
            else:
                return


class LimitHistory:
    """Every value that cpu.max and memory.high have had, by application and container."""

    def __init__(self, layout: CgroupLayout) -> None:
        self._top = Path(layout.mounts["cpu"].directory, "turnbuckle")
        self.cpu_max: dict[tuple[str, str], set[str]] = defaultdict(set)
        self.memory_high: dict[tuple[str, str], set[str]] = defaultdict(set)

    def read(self) -> None:
        """All of them once."""
        for name, seen in (("cpu.max", self.cpu_max), ("memory.high", self.memory_high)):
            # Not pathlib's: that raises where a directory goes away meanwhile.
            for file in map(Path, glob.glob(f"{self._top}/*/*/{name}")):  # noqa: PTH207 - see above
                with suppress(OSError):  # gone meanwhile
                    seen[file.parts[-3], file.parts[-2].rpartition("-")[0]].add(file.read_text().strip())

    def until_limits_follow(self, up: subprocess.Popen[str]) -> None:
        """Read until everything that the test asserts was there, or `up` ends."""
        deadline_s = time.monotonic() + SEEN_WITHIN_S
        while up.poll() is None and time.monotonic() < deadline_s and not self.follow():
            self.read()
            time.sleep(0.25)

    def follow(self) -> bool:
        """Whether limits were changed as they have to be."""
        quotas = self.follows_demand("web") and len(self.cpu_max[MANAGED, "worker"]) > 1
        return quotas and self.guarded(MANAGED) == {"web", "worker"}

    def follows_demand(self, name: str) -> bool:
        """Whether a container that burns CPU was given more than it came with.

        Emulated, beside other work, it gets less of the processor than its quota and is never raised: any change. Which
        values there were between is not asked: they may be shorter than what passes from one reading to the next.
        """
        quotas_us = {int(value.split()[0]) for value in self.cpu_max[MANAGED, name] if not value.startswith("max")}
        return len(quotas_us) > 1 if IS_TRACED else max(quotas_us, default=0) > FOUND_QUOTA_US

    def guarded(self, app: str) -> set[str]:
        """Which of an application's containers had a memory.high."""
        return {name for (owner, name), values in self.memory_high.items() if owner == app and values != {"max"}}


def test_limits_follow_demand_and_are_put_back(
    layout: CgroupLayout, containers: list[Container], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [container.limits() for container in containers] == [FOUND] * 3
    with (tmp_path / "report").open("w+") as out, (tmp_path / "errors").open("w+") as err:
        process = subprocess.Popen(UP, cwd=tmp_path, stdout=out, stderr=err)
        history = LimitHistory(layout)
        try:
            asyncio.run(announce(process, SPECS))
            history.until_limits_follow(process)
            process.send_signal(signal.SIGINT)
            process.wait(ENDED_WITHIN_S)
        finally:
            process.kill()
            process.wait()
    errors = (tmp_path / "errors").read_text()
    assert process.returncode == 0, errors
    machine = json.loads((tmp_path / "report").read_text())["machine"]
    with capsys.disabled():
        values = {"/".join(key): len(values) for key, values in history.cpu_max.items()}
        print(f"\n  figure: values of cpu.max {values}, telemetry {machine['telemetry_source']}")  # noqa: T201

    source = "bpf-periods" if IS_TRACED else "cgroup-v2"
    assert (machine["cgroup_version"], machine["telemetry_source"]) == (2, source)
    assert history.follows_demand("web"), (history.cpu_max, errors)
    assert len(history.cpu_max[MANAGED, "worker"]) > 1
    assert history.guarded(MANAGED) == {"web", "worker"}, "memory.high stays below memory.max"
    assert history.cpu_max[OBSERVED, "batch"] == {FOUND[0]}, "what is only observed keeps its limits"
    assert history.guarded(OBSERVED) == set()
    assert [container.process.poll() for container in containers] == [None] * 3
    assert [container.limits() for container in containers] == [FOUND] * 3

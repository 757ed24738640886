"""Containers that outgrow their memory limit while no agent lives: ``make bench-memory ARGS=--agent-killed``.

Each growth begins up to `LONGEST_DELAY_S` after the agent was killed; only its watchdog is left, and the reserve that
the allocator has given to the node. A growth that was slower than `LEAST_RATE` does not count and is repeated: there
the machine was busy, and nobody was tested.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from schemas.apps import AppSpec
from schemas.subjects import CFS, OOM_EVENTS
from services._host.cgroupfs import ManagedCgroup, detect, managed_directory
from tests.bench.cluster import Cluster, open_cluster
from tests.bench.figures import Spread
from tests.bench.machine import Machine
from tests.bench.memory_growth import (
    APP,
    MANAGED_ROOT,
    QUICK_RECLAIM,
    ContainerRecord,
    KernelPrograms,
    Kind,
    agent_environment,
    load_argument,
)
from tests.support.cgroup_lab import wait_until
from tests.support.memory_load import MemoryLoad

KINDS: Final[tuple[Kind, ...]] = ("touch", "read", "tmpfs", "fork")
GROW_BYTES: Final = 1 << 30
LIMIT_BYTES: Final = 12 << 30
LEAST_RATE: Final = 0.8e9
"""Bytes per second."""
LONGEST_DELAY_S: Final = 0.4
ATTEMPTS: Final = 3
"""For each growth that is to count, at most so many are tried."""
_SEED: Final = 19
_WAIT_S: Final = 30.0


@dataclass(slots=True)
class KilledRun:
    """One growth by `GROW_BYTES` while no agent lived."""

    kind: str
    delay_s: float
    """From the agent's end to the beginning of the growth."""
    room_bytes: int
    """Limit minus usage when the agent was killed."""
    rate: float = 0.0
    """Bytes per second; 0: the load was killed."""
    kills: int = 0
    failures: list[str] = field(default_factory=list)
    longest_step_s: float = 0.0
    limit_hits: int = 0
    """By how much the kernel's counter has risen."""
    kernel_programs: str = "auto"
    """Of the agent that was killed."""

    @property
    def counts(self) -> bool:
        """Whether it was fast enough to say anything; what failed counts at any speed."""
        return self.rate >= LEAST_RATE or bool(self.kills or self.failures)


class _Group:
    """One container, and a load in it."""

    _serial = itertools.count(time.monotonic_ns() % (1 << 40))

    def __init__(self, kind: Kind, source: Path) -> None:
        serial = next(self._serial)
        self._layout = detect()
        self.group = ManagedCgroup.create(self._layout, managed_directory(APP, kind, f"{serial:012x}", MANAGED_ROOT))
        self.load = MemoryLoad(kind, load_argument(kind, source, serial))
        self.group.add_process(self.load.pid)

    def counters(self) -> tuple[int, int]:
        """(kills, hits of the limit) by the kernel since the group was made."""
        memory = Path(self._layout.directories(self.group.directory)["memory"])
        if self._layout.version == 1:
            words = (memory / "memory.oom_control").read_text().split()
            return int(words[words.index("oom_kill") + 1]), int((memory / "memory.failcnt").read_text())
        words = (memory / "memory.events").read_text().split()
        return int(words[words.index("oom_kill") + 1]), int(words[words.index("max") + 1])

    async def close(self) -> None:
        """End everything in it."""
        with suppress(BrokenPipeError):
            self.load.close()
        self.group.kill()
        await asyncio.to_thread(wait_until, self.group.remove, what="removal of the group")


class KilledLab:
    """One allocator for all growths, and one agent for each."""

    def __init__(self, cluster: Cluster, directory: str, kernel_programs: KernelPrograms = "auto") -> None:
        self._cluster = cluster
        self._kernel_programs = kernel_programs
        self._directory = directory
        self._random = random.Random(_SEED)
        self._seen = ContainerRecord()

    async def run(self, kind: Kind, count: int, deadline_s: float) -> AsyncIterator[KilledRun]:
        """Growths until so many have counted, all attempts are used, or the time (monotonic) is over."""
        bus, counted, source = self._cluster.bus, 0, Path(self._directory) / "source"
        subscriptions = [
            await bus.subscribe(CFS.pattern(bus.root, app=APP), self._seen.observe),
            await bus.subscribe(OOM_EVENTS.pattern(bus.root, app=APP), self._seen.note),
        ]
        group = _Group(kind, source)
        try:
            group.load.grow(GROW_BYTES)  # the hypervisor backs memory when it is touched for the first time
            group.load.drop()
            for _ in range(ATTEMPTS * count):
                if counted == count or time.monotonic() > deadline_s:
                    return
                run = await self._grow(group)
                counted += run.counts
                yield run
                if not group.load.alive:
                    await group.close()
                    group = _Group(kind, source)
        finally:
            for subscription in subscriptions:
                await subscription.stop()
            await group.close()

    async def _grow(self, group: _Group) -> KilledRun:
        self._seen.row = {}
        environment = agent_environment(self._directory, "default", self._kernel_programs)
        async with self._cluster.run("services.agent", environment) as agent:
            await self._seen.until_rest(agent)
            await self._until_reserved(LIMIT_BYTES // 10)
            room_bytes, before = self._seen.room_bytes, group.counters()
            agent.kill()
        run = KilledRun(group.load.kind, self._random.uniform(0, LONGEST_DELAY_S), room_bytes)
        run.kernel_programs = self._kernel_programs
        await asyncio.sleep(run.delay_s)
        growth = await asyncio.to_thread(group.load.grow, GROW_BYTES)
        if growth is None:
            run.failures = ["the load ended: it was killed, or a call failed that it cannot do without"]
        else:
            run.rate, run.failures, run.longest_step_s = growth.rate, growth.failures, growth.longest_step_s
            await asyncio.to_thread(group.load.drop)
        run.kills, run.limit_hits = (now - then for now, then in zip(group.counters(), before, strict=True))
        return run

    async def _until_reserved(self, least_bytes: int) -> None:
        """Wait until the node's reserve holds so much: the run before has spent some of it."""
        deadline_s = time.monotonic() + _WAIT_S
        while self._seen.reserve_bytes < least_bytes:
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"the node's reserve is {self._seen.reserve_bytes >> 20} MiB for {_WAIT_S:g} s")
            await asyncio.sleep(0.02)


async def measure(
    kinds: list[Kind], count: int, most_s: float, kernel_programs: KernelPrograms = "auto"
) -> list[KilledRun]:
    """So many growths of each kind that count, each kind for at most its share of the time."""
    runs: list[KilledRun] = []
    async with open_cluster() as cluster:
        await cluster.announce(AppSpec(name=APP, cpu_limit=2, container_min_cpu=2, memory_limit=LIMIT_BYTES, sigma=0.2))
        with tempfile.TemporaryDirectory(prefix="turnbuckle-bench-") as directory:
            async with cluster.run("services.allocator", QUICK_RECLAIM):
                lab = KilledLab(cluster, directory, kernel_programs)
                for number, kind in enumerate(kinds):
                    left_s = most_s / len(kinds)
                    async for run in lab.run(kind, count, time.monotonic() + left_s):
                        runs.append(run)
                        print(f"... {kind}, {number + 1} of {len(kinds)}: {_line(run)}", file=sys.stderr, flush=True)
    return runs


def _line(run: KilledRun) -> str:
    ignored = "" if run.counts else ", does not count"
    return (
        f"{run.delay_s * 1e3:.0f} ms after the kill, {run.rate / 1e9:.2f} GB/s, {run.kills} kills, "
        f"{len(run.failures)} failed calls, {run.limit_hits} hits{ignored}"
    )


def grouped(runs: list[KilledRun]) -> dict[str, list[KilledRun]]:
    """By kind."""
    groups: defaultdict[str, list[KilledRun]] = defaultdict(list)
    for run in runs:
        groups[run.kind].append(run)
    return dict(groups)


def summary(runs: list[KilledRun]) -> dict[str, Any]:
    """Figures of one kind, of the runs that count."""
    counted = [run for run in runs if run.counts]
    rates = [run.rate / 1e9 for run in counted if run.rate]
    return {
        "counted": len(counted),
        "too_slow": len(runs) - len(counted),
        "gb_per_s": asdict(Spread.of(rates)) if rates else None,
        "kills": sum(run.kills for run in counted),
        "runs_with_failed_calls": sum(bool(run.failures) for run in counted),
        "failed_calls": sum(len(run.failures) for run in counted),
        "runs_that_hit_the_limit": sum(run.limit_hits > 0 for run in counted),
        "longest_step_ms": max((run.longest_step_s * 1e3 for run in counted), default=0.0),
    }


def table(machine: Machine, runs: list[KilledRun]) -> str:
    """For people."""
    lines = [machine.line, "", f"the agent killed 0 to {LONGEST_DELAY_S * 1e3:.0f} ms before each growth by 1 GiB", ""]
    lines.append(
        f"{'growth':<8}{'counted':>9}{'too slow':>10}{'GB/s':>18}{'kills':>7}{'failed runs':>13}{'failed calls':>14}"
        f"{'at the limit':>14}{'longest step, ms':>18}"
    )
    for kind, group in grouped(runs).items():
        row = summary(group)
        rate = Spread(**row["gb_per_s"]).text(2) if row["gb_per_s"] else "-"
        lines.append(
            f"{kind:<8}{row['counted']:>9}{row['too_slow']:>10}{rate:>18}{row['kills']:>7}"
            f"{row['runs_with_failed_calls']:>13}{row['failed_calls']:>14}{row['runs_that_hit_the_limit']:>14}"
            f"{row['longest_step_ms']:>18.0f}"
        )
    return "\n".join(lines)


def as_json(machine: Machine, runs: list[KilledRun]) -> dict[str, Any]:
    """Everything, each run included."""
    return {
        "machine": machine.as_dict(),
        "summary": [{"kind": kind} | summary(group) for kind, group in grouped(runs).items()],
        "runs": [asdict(run) for run in runs],
    }

"""Containers that idled before they grow: ``make bench-memory ARGS="--idle SECONDS"``.

The processor quota of an idle container has fallen to little, so that it is throttled when it begins to work, until the
agent has seen that and the allocator has raised it. Each growth is done once in the container and once without any
limit, by another process that idled as long; which of both comes first alternates.
"""

from __future__ import annotations

import asyncio
import itertools
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
from tests.bench.cluster import Cluster, Process, open_cluster
from tests.bench.figures import Spread
from tests.bench.machine import Machine
from tests.bench.memory_growth import (
    APP,
    GROW_BYTES,
    LIMIT_BYTES,
    MANAGED_ROOT,
    QUICK_RECLAIM,
    ContainerRecord,
    KernelPrograms,
    Kind,
    Scheduling,
    agent_environment,
    load_argument,
)
from tests.bench.outcome import say
from tests.support.cgroup_lab import wait_until
from tests.support.memory_load import Growth, MemoryLoad

KINDS: Final[tuple[Kind, ...]] = ("touch", "read", "fork", "tmpfs")
CPU_LIMIT: Final = 2.0
_US_PER: Final = {"throttled_usec": 1.0, "throttled_time": 1e-3}
"""Microseconds in one of its units: version 2 counts these, version 1 nanoseconds."""


@dataclass(frozen=True, slots=True)
class IdlePlan:
    """What is run."""

    idle_s: float
    kinds: tuple[Kind, ...]
    runs: int
    """Of each kind."""
    schedulings: tuple[Scheduling, ...]
    kernel_programs: KernelPrograms
    sigma: float


@dataclass(slots=True)
class IdleRun:
    """One growth by `GROW_BYTES`."""

    kind: str
    scheduling: str
    kernel_programs: str
    idle_s: float
    quota_us: int = 0
    """Per period of 100 ms when it began; negative: none."""
    seconds: float = 0.0
    """0: the load was killed."""
    free_seconds: float = 0.0
    """Of the same growth without any limit."""
    throttled_us: float = 0.0
    """Summed over processors, by the kernel's counter."""
    throttled_periods: int = 0
    longest_step_s: float = 0.0
    """Of one step of 4 MiB (fork: of one child's fork)."""
    free_longest_step_s: float = 0.0
    kills: int = 0
    failures: list[str] = field(default_factory=list)


def throttling(cpu_stat: str) -> tuple[int, float]:
    """(throttled periods, throttled time in us) since the group was made, from the text of its cpu.stat."""
    counts = dict(line.split() for line in cpu_stat.splitlines())
    name = next(name for name in _US_PER if name in counts)
    return int(counts["nr_throttled"]), int(counts[name]) * _US_PER[name]


class _Pair:
    """A container with a load, and the same load without any limit."""

    _serial = itertools.count(time.monotonic_ns() % (1 << 40))

    def __init__(self, kind: Kind, source: Path) -> None:
        serial, layout = next(self._serial), detect()
        argument = load_argument(kind, source, serial)
        self.group = ManagedCgroup.create(layout, managed_directory(APP, kind, f"{serial:012x}", MANAGED_ROOT))
        self._cpu_stat = Path(layout.directories(self.group.directory)["cpu"], "cpu.stat")
        self.load = MemoryLoad(kind, argument)
        self.free = MemoryLoad(kind, f"{argument}-free" if kind == "tmpfs" else argument)
        self.group.add_process(self.load.pid)

    def throttling(self) -> tuple[int, float]:
        """Of the container, now."""
        return throttling(self._cpu_stat.read_text(encoding="ascii"))

    async def close(self) -> None:
        """End everything."""
        for each in (self.free, self.load):
            with suppress(BrokenPipeError):
                each.close()
        self.group.kill()
        await asyncio.to_thread(wait_until, self.group.remove, what="removal of the group")


class IdleLab:
    """Agent and allocator, and one container at a time."""

    def __init__(self, cluster: Cluster, agent: Process, scheduling: Scheduling, plan: IdlePlan, source: Path) -> None:
        self._cluster = cluster
        self._agent = agent
        self._scheduling = scheduling
        self._plan = plan
        self._source = source

    async def run(self, kind: Kind) -> AsyncIterator[IdleRun]:
        """Growths of one kind in one container, after one that is not counted; a kill of the load ends them."""
        seen, bus = ContainerRecord(), self._cluster.bus
        subscriptions = [
            await bus.subscribe(CFS.pattern(bus.root, app=APP), seen.observe),
            await bus.subscribe(OOM_EVENTS.pattern(bus.root, app=APP), seen.note),
        ]
        pair = _Pair(kind, self._source)
        try:
            await _grow(pair.free)  # the hypervisor backs memory when it is touched for the first time
            await seen.until_rest(self._agent)
            if await _grow(pair.load) is None:
                raise RuntimeError(f"the load was killed: {[event.reason for event in seen.events]}")
            for number in range(self._plan.runs):
                run = await self._compare(pair, seen, free_first=not number % 2)
                yield run
                if not run.seconds:
                    return
        finally:
            for subscription in subscriptions:
                await subscription.stop()
            await pair.close()

    async def _compare(self, pair: _Pair, seen: ContainerRecord, *, free_first: bool) -> IdleRun:
        run = IdleRun(pair.load.kind, self._scheduling, self._plan.kernel_programs, self._plan.idle_s)
        await seen.until_rest(self._agent)
        await asyncio.sleep(run.idle_s)
        self._agent.check()
        free = await _grow(pair.free) if free_first else None
        run.quota_us, kills = seen.row["quota_us"], seen.row["oom_kills"]
        periods, throttled_us = pair.throttling()
        growth = await _grow(pair.load)
        after = pair.throttling()
        run.throttled_periods, run.throttled_us = after[0] - periods, after[1] - throttled_us
        await seen.until_told()
        run.kills = seen.row["oom_kills"] - kills
        free = free or await _grow(pair.free)
        if free is None:
            raise RuntimeError("the load without a limit was killed: the machine has too little memory")
        run.free_seconds, run.free_longest_step_s = free.seconds, free.longest_step_s
        if growth is None:
            run.failures = [f"the load was killed: {[event.reason for event in seen.events]}"]
        else:
            run.seconds, run.longest_step_s, run.failures = growth.seconds, growth.longest_step_s, growth.failures
        return run


async def _grow(load: MemoryLoad) -> Growth | None:
    """And give everything back. None: it was killed."""
    growth = await asyncio.to_thread(load.grow, GROW_BYTES)
    if growth is not None:
        await asyncio.to_thread(load.drop)
    return growth


async def measure(plan: IdlePlan) -> list[IdleRun]:
    """Run everything that is planned, with fresh services for each scheduling."""
    runs: list[IdleRun] = []
    spec = AppSpec(name=APP, cpu_limit=CPU_LIMIT, memory_limit=LIMIT_BYTES, sigma=plan.sigma)
    async with open_cluster() as cluster:
        await cluster.announce(spec)
        for scheduling in plan.schedulings:
            with tempfile.TemporaryDirectory(prefix="turnbuckle-bench-") as directory:
                environment = agent_environment(directory, scheduling, plan.kernel_programs)
                async with (
                    cluster.run("services.allocator", QUICK_RECLAIM),
                    cluster.run("services.agent", environment) as agent,
                ):
                    lab = IdleLab(cluster, agent, scheduling, plan, Path(directory, "source"))
                    for kind in plan.kinds:
                        async for run in lab.run(kind):
                            runs.append(run)
                            say(f"{scheduling}, {kind}, idle for {run.idle_s:g} s: {_line(run)}")
    return runs


def _line(run: IdleRun) -> str:
    return (
        f"{run.seconds * 1e3:.0f} ms, {run.free_seconds * 1e3:.0f} without limits, throttled for "
        f"{run.throttled_us / 1e3:.0f}, longest step {run.longest_step_s * 1e3:.0f}"
    )


def grouped(runs: list[IdleRun]) -> dict[tuple[str, str], list[IdleRun]]:
    """By scheduling and kind."""
    groups: defaultdict[tuple[str, str], list[IdleRun]] = defaultdict(list)
    for run in runs:
        groups[run.scheduling, run.kind].append(run)
    return dict(groups)


def summary(runs: list[IdleRun]) -> dict[str, Any]:
    """Figures of one line; times only of growths that ended. None: none did."""
    ended = [run for run in runs if run.seconds]
    values = {
        "quota_us": [run.quota_us for run in ended],
        "duration_ms": [run.seconds * 1e3 for run in ended],
        "free_duration_ms": [run.free_seconds * 1e3 for run in ended],
        "of_free_duration": [run.seconds / run.free_seconds for run in ended],
        "throttled_ms": [run.throttled_us / 1e3 for run in ended],
        "throttled_periods": [run.throttled_periods for run in ended],
        "longest_step_ms": [run.longest_step_s * 1e3 for run in ended],
        "free_longest_step_ms": [run.free_longest_step_s * 1e3 for run in ended],
    }
    return {
        "runs": len(runs),
        "ended": len(ended),
        **{name: asdict(Spread.of(each)) if each else None for name, each in values.items()},
        "kills": sum(run.kills for run in runs),
        "failed_calls": sum(len(run.failures) for run in runs),
    }


_COLUMNS: Final = {
    "ms": ("duration_ms", 0, 22),
    "ms without limits": ("free_duration_ms", 0, 22),
    "of that": ("of_free_duration", 2, 20),
    "throttled ms": ("throttled_ms", 0, 20),
    "throttled periods": ("throttled_periods", 0, 19),
    "longest step ms": ("longest_step_ms", 0, 18),
    "without limits": ("free_longest_step_ms", 0, 16),
    "quota us": ("quota_us", 0, 22),
}


def table(machine: Machine, runs: list[IdleRun]) -> str:
    """For people."""
    lines = [machine.line, ""]
    for idle_s, programs in dict.fromkeys((run.idle_s, run.kernel_programs) for run in runs):
        grown = f"growth by {GROW_BYTES >> 20} MiB after {idle_s:g} s without work"
        lines.append(f"{grown}, kernel programs {programs}: median (range)")
    heads = "".join(f"{name:>{width}}" for name, (_, _, width) in _COLUMNS.items())
    lines += ["", f"{'agent':<9}{'growth':<8}{'runs':>5}{heads}{'kills':>7}{'failed':>8}"]
    widths = [width for _, _, width in _COLUMNS.values()]
    for scheduling, kind, count, *cells, kills, failed in _rows(runs):
        texts = "".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
        lines.append(f"{scheduling:<9}{kind:<8}{count:>5}{texts}{kills:>7}{failed:>8}")
    return "\n".join(lines)


def as_json(machine: Machine, runs: list[IdleRun]) -> dict[str, Any]:
    """Everything, each run included."""
    return {
        "machine": machine.as_dict(),
        "summary": [
            {"scheduling": scheduling, "kind": kind} | summary(group)
            for (scheduling, kind), group in grouped(runs).items()
        ],
        "runs": [asdict(run) for run in runs],
        "tables": {
            programs: {
                "machine": machine.line,
                "columns": ["agent", "growth", "runs", *_COLUMNS, "kills", "failed"],
                "rows": _rows([run for run in runs if run.kernel_programs == programs]),
            }
            for programs in dict.fromkeys(run.kernel_programs for run in runs)
        },
    }


def _rows(runs: list[IdleRun]) -> list[list[str]]:
    rows = []
    for (scheduling, kind), group in grouped(runs).items():
        row = summary(group)
        cells = [Spread(**row[name]).text(digits) if row[name] else "-" for name, digits, _ in _COLUMNS.values()]
        rows.append([scheduling, kind, str(row["runs"]), *cells, str(row["kills"]), str(row["failed_calls"])])
    return rows

"""One container that grows by more than its limit, again and again, guarded by a real agent and a real allocator."""

from __future__ import annotations

import asyncio
import itertools
import os
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from schemas.apps import AppSpec
from schemas.cfs import CfsBatch
from schemas.oom import OomEvent, OomKind
from schemas.subjects import CFS, OOM_EVENTS
from services._host.cgroupfs import ManagedCgroup, detect, managed_directory
from services._runtime.bus.api import Delivery
from tests.bench.cluster import Cluster, Process
from tests.support.cgroup_lab import wait_until
from tests.support.memory_load import MemoryLoad

Scheduling = Literal["default", "FIFO"]
KernelPrograms = Literal["auto", "off"]
"""``TURNBUCKLE_AGENT__KERNEL_PROGRAMS``; off: the agent reads files only."""
Kind = Literal["touch", "read", "fork", "tmpfs", "huge"]
APP = "growth"
MANAGED_ROOT = f"turnbuckle-bench-memory-{os.getpid()}"
"""Not that of another run at the same time."""
FIFO_PRIORITY = 20
MIB = 1 << 20
GROW_BYTES = 1536 * MIB
LIMIT_BYTES = 6 << 30
SOURCE_BYTES = 256 * MIB
"""Of the file that is read: in the page cache before, so that nothing but memory is waited for."""
REST_BYTES = 64 * MIB
"""At rest the limit is this close to usage (delta is 50 MiB)."""
FREE_EVERY = 5
"""Every so many growths the same is done without any limit, to compare."""
QUICK_RECLAIM = {"TURNBUCKLE_ALLOCATOR__RECLAIM_EVERY_S": "0.5"}
"""For the allocator: the limit follows usage down soon, so that the next growth need not wait for it."""
_WAIT_S = 30.0


@dataclass(slots=True)
class GrowthRun:
    """One growth by `GROW_BYTES`."""

    kind: str
    scheduling: str
    rate: float = 0.0
    """Bytes per second; 0: it was killed."""
    free_rate: float = 0.0
    """The same load without any limit, just before; 0: not measured."""
    room_bytes: int = 0
    """Limit minus usage when it began."""
    kills: int = 0
    failures: list[str] = field(default_factory=list)
    longest_step_s: float = 0.0
    events: dict[str, int] = field(default_factory=dict)
    latency_us: list[int] = field(default_factory=list)
    """Of each grant: from what the agent could know to the limit written."""
    paused_us: list[int] = field(default_factory=list)
    """Of each grant that ended a pause."""
    kernel_programs: str = "auto"
    """Of the agent."""

    @property
    def trapped(self) -> bool:
        """Whether tasks waited at the limit."""
        return self.events.get(OomKind.OOM_WAIT, 0) > 0


class ContainerRecord:
    """What batches and events say of the one container."""

    def __init__(self) -> None:
        self.row: dict[str, Any] = {}
        self.seen = 0
        self.reserve_bytes = 0
        """What its node may still grant."""
        self.events: list[OomEvent] = []

    def observe(self, delivery: Delivery) -> None:
        """A batch."""
        if isinstance(delivery.message, CfsBatch) and delivery.message.row_count:
            self.row = delivery.message.rows()[0]
            self.reserve_bytes = delivery.message.reserve_given_bytes - delivery.message.reserve_used_bytes
            self.seen += 1

    def note(self, delivery: Delivery) -> None:
        """A memory event."""
        if isinstance(delivery.message, OomEvent):
            self.events.append(delivery.message)

    @property
    def room_bytes(self) -> int:
        """Limit minus usage; huge where nothing is limited yet."""
        if not self.row or self.row["memory_limit_bytes"] < 0:
            return 1 << 62
        return int(self.row["memory_limit_bytes"] - self.row["memory_usage_bytes"])

    async def until_rest(self, process: Process) -> None:
        """Wait until the limit has followed usage down."""
        deadline_s, seen = time.monotonic() + _WAIT_S, self.seen
        while self.seen < seen + 3 or self.room_bytes > REST_BYTES:
            process.check()
            if time.monotonic() > deadline_s:
                raise RuntimeError(
                    f"the container's limit is {self.room_bytes >> 20} MiB above its usage for {_WAIT_S:g} s"
                )
            await asyncio.sleep(0.02)

    async def until_told(self) -> None:
        """Wait for two more batches: what has happened is told."""
        seen = self.seen
        async with asyncio.timeout(_WAIT_S):
            while self.seen < seen + 2:  # noqa: ASYNC110 - batches come every 100 ms
                await asyncio.sleep(0.01)


def load_argument(kind: Kind, source: Path, serial: int) -> str:
    """The file that a load reads (made here, in the page cache), or writes on a tmpfs; empty: it needs none."""
    if kind == "read":
        if not source.exists():
            source.write_bytes(bytes(SOURCE_BYTES))
        return str(source)
    return f"/dev/shm/turnbuckle-growth-{serial:x}" if kind == "tmpfs" else ""


class GrowthLab:
    """Agent, allocator, and one container at a time."""

    _serial = itertools.count(time.monotonic_ns() % (1 << 40))

    def __init__(
        self,
        cluster: Cluster,
        agent: Process,
        scheduling: Scheduling,
        directory: Path,
        kernel_programs: KernelPrograms = "auto",
    ) -> None:
        self._cluster = cluster
        self._agent = agent
        self._scheduling = scheduling
        self._source = directory / "source"
        self._kernel_programs = kernel_programs

    async def run(self, kind: Kind, count: int) -> AsyncIterator[GrowthRun]:
        """So many growths of one kind in one container, after one that is not counted."""
        argument = load_argument(kind, self._source, next(self._serial))
        free = MemoryLoad(kind, f"{argument}-free" if kind == "tmpfs" else argument)
        load, seen = MemoryLoad(kind, argument), ContainerRecord()
        layout = detect()
        name = managed_directory(APP, kind, f"{next(self._serial):012x}", MANAGED_ROOT)
        group = ManagedCgroup.create(layout, name)
        bus = self._cluster.bus
        subscriptions = [
            await bus.subscribe(CFS.pattern(bus.root, app=APP), seen.observe),
            await bus.subscribe(OOM_EVENTS.pattern(bus.root, app=APP), seen.note),
        ]
        try:
            group.add_process(load.pid)
            await self._grow(free, load, seen)  # the hypervisor backs memory when it is touched for the first time
            for number in range(count):
                yield await self._grow(None if number % FREE_EVERY else free, load, seen)
        finally:
            for subscription in subscriptions:
                await subscription.stop()
            for each in (free, load):
                each.close()
            group.kill()
            await asyncio.to_thread(wait_until, group.remove, what="removal of the group")

    async def _grow(self, free: MemoryLoad | None, load: MemoryLoad, seen: ContainerRecord) -> GrowthRun:
        unlimited = None
        if free is not None:
            unlimited = await asyncio.to_thread(free.grow, GROW_BYTES)
            await asyncio.to_thread(free.drop)
        await seen.until_rest(self._agent)
        kind = load.kind
        run = GrowthRun(
            kind, self._scheduling, room_bytes=seen.room_bytes, free_rate=unlimited.rate if unlimited else 0.0
        )
        run.kernel_programs = self._kernel_programs
        kills_before, seen.events = seen.row["oom_kills"], []
        growth = await asyncio.to_thread(load.grow, GROW_BYTES)
        await seen.until_told()
        run.kills = seen.row["oom_kills"] - kills_before
        if growth is not None:
            run.rate, run.failures, run.longest_step_s = growth.rate, growth.failures, growth.longest_step_s
        for event in seen.events:
            run.events[event.kind] = run.events.get(event.kind, 0) + 1
            if event.kind is OomKind.GRANT:
                run.latency_us.append(event.latency_us)
                if event.blocked_us:
                    run.paused_us.append(event.blocked_us)
        if growth is None:
            raise RuntimeError(f"the load was killed: {[event.reason for event in seen.events]}")
        await asyncio.to_thread(load.drop)
        return run


def agent_environment(
    directory: str, scheduling: Scheduling, kernel_programs: KernelPrograms = "auto"
) -> dict[str, str]:
    """Settings of an agent that looks after `MANAGED_ROOT` only and keeps its state in this directory."""
    return {
        "TURNBUCKLE_AGENT__NODE": "bench-node",
        "TURNBUCKLE_AGENT__MANAGED_ROOT": MANAGED_ROOT,
        "TURNBUCKLE_AGENT__DOCKER": "off",
        "TURNBUCKLE_AGENT__KERNEL_PROGRAMS": kernel_programs,
        "TURNBUCKLE_AGENT__STATE_DIRECTORY": f"{directory}/state",
        "TURNBUCKLE_AGENT__REALTIME_PRIORITY": str(0 if scheduling == "default" else FIFO_PRIORITY),
    }


@asynccontextmanager
async def open_lab(
    cluster: Cluster, scheduling: Scheduling, sigma: float = 0.2, kernel_programs: KernelPrograms = "auto"
) -> AsyncIterator[GrowthLab]:
    """Fresh services."""
    spec = AppSpec(name=APP, cpu_limit=2, container_min_cpu=2, memory_limit=LIMIT_BYTES, sigma=sigma)
    await cluster.announce(spec)
    with tempfile.TemporaryDirectory(prefix="turnbuckle-bench-") as directory:
        async with (
            cluster.run("services.allocator", QUICK_RECLAIM),
            cluster.run("services.agent", agent_environment(directory, scheduling, kernel_programs)) as agent,
        ):
            yield GrowthLab(cluster, agent, scheduling, Path(directory), kernel_programs)

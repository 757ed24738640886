"""A nats-server and services as real processes, what they cost in a window of time, and what they traced."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schemas.apps import AppSpec
from schemas.cfs import CfsBatch
from schemas.streams import APPS
from schemas.subjects import CFS
from services._runtime.bus.api import Delivery
from services._runtime.bus.embedded_server import EmbeddedNats
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.options import BusOptions
from tests.bench.machine import (
    descendants,
    process_cpu_ns,
    process_stat_cpu_s,
    resident_bytes,
    transferred_bytes,
)

_STOP_S = 10.0
_READY_S = 30.0
ORDERED_SHARE = 0.5
"""Containers that hold already what they would be given get no order: under policy escra many at first."""


class Process:
    """One of our own modules as a process; SIGTERM ends it and it then leaves its trace."""

    def __init__(self, module: str, url: str, environment: dict[str, str] | None = None, name: str = "") -> None:
        descriptor, path = tempfile.mkstemp(prefix="turnbuckle-bench-", suffix=".json")
        os.close(descriptor)
        self._trace = Path(path)
        env = {key: value for key, value in os.environ.items() if not key.startswith("TURNBUCKLE_")}
        env |= {"NATS_URL": url, "TURNBUCKLE_LOG_LEVEL": "error", "BENCH_TRACE": path, **(environment or {})}
        self.name = name or module.rpartition(".")[2]
        self._process = subprocess.Popen([sys.executable, "-m", module], env=env)

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it lives."""
        return self._process.poll() is None

    def check(self) -> None:
        """Raise RuntimeError if it has ended by itself."""
        if self._process.poll() is not None:
            raise RuntimeError(f"{self.name} ended with exit code {self._process.returncode}")

    def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        self._process.kill()
        self._process.wait()

    async def stop(self) -> dict[str, Any]:
        """End it and return its trace; a process that died before has none."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            await asyncio.to_thread(self._process.wait, _STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        text = self._trace.read_text(encoding="utf-8")
        self._trace.unlink()
        trace: dict[str, Any] = json.loads(text) if text else {}
        return trace

    async def stop_traced(self) -> dict[str, Any]:
        """As `stop`, where a trace is needed. Raises RuntimeError if it left none: it did not stop in time."""
        if not (trace := await self.stop()):
            raise RuntimeError(f"{self.name} did not stop in time, and left no trace")
        return trace


@dataclass(frozen=True, slots=True)
class Window:
    """What processes used between two moments."""

    begin_ns: int
    """Wall clock."""
    end_ns: int
    cpu_us: dict[str, float]
    stat_us: dict[str, float]
    """The same from /proc/<pid>/stat, in steps of 10 ms."""
    companions_us: dict[str, float]
    """CPU time of the processes that each has started (an agent: its watchdog)."""
    resident_bytes: dict[str, int]
    """In RAM at the end."""
    server_bytes: int
    """What the server read and wrote: `tests.bench.machine.transferred_bytes`."""

    @property
    def periods(self) -> float:
        """Periods of 100 ms in the window."""
        return (self.end_ns - self.begin_ns) / 1e8

    def holds(self, wall_ns: int) -> bool:
        """Whether a moment lies in the window."""
        return self.begin_ns <= wall_ns < self.end_ns


class Cluster:
    """The server, a connection of our own, and the processes that were started."""

    def __init__(self, server: EmbeddedNats, bus: NatsBus) -> None:
        self.server = server
        self.bus = bus

    @asynccontextmanager
    async def run(
        self, module: str, environment: dict[str, str] | None = None, name: str = ""
    ) -> AsyncIterator[Process]:
        """A process for as long as the block lasts. Call its `stop` inside to get the trace."""
        process = Process(module, self.server.url, environment, name)
        try:
            yield process
        finally:
            if process.running:
                await process.stop()

    async def announce(self, *specs: AppSpec) -> None:
        """Put application specifications where the allocator finds them."""
        bucket = self.bus.bucket(APPS)
        for spec in specs:
            await bucket.put(spec.name, spec)

    async def withdraw_all(self) -> None:
        """Remove every application."""
        bucket = self.bus.bucket(APPS)
        for app in await bucket.entries():
            await bucket.delete(app)

    async def until_ordered(self, containers: int, *processes: Process) -> None:
        """Wait until half of the containers have been given a limit; then nothing of ours listens any more."""
        ordered: dict[tuple[str, str], int] = {}
        done = asyncio.Event()

        def count(delivery: Delivery) -> None:
            batch = delivery.message
            if isinstance(batch, CfsBatch):
                ordered[batch.app, batch.node] = int((batch.column("limit_update_seq") > 0).sum())
                if sum(ordered.values()) >= containers * ORDERED_SHARE:
                    done.set()

        subscription = await self.bus.subscribe(CFS.pattern(self.bus.root), count)
        deadline_s = time.monotonic() + _READY_S
        try:
            while not done.is_set():
                for process in processes:
                    process.check()
                if time.monotonic() > deadline_s:
                    raise RuntimeError(f"only {sum(ordered.values())} of {containers} containers were given a limit")
                with suppress(TimeoutError):
                    await asyncio.wait_for(done.wait(), 0.2)
        finally:
            await subscription.stop()

    async def measure(self, seconds: float, *processes: Process) -> Window:
        """Let everything run for a while. Processes are told apart by their names."""
        server_pid = self.server.pid or 0
        pids = {process.name: process.pid for process in processes} | {"nats-server": server_pid}
        companions = {name: descendants(pid) for name, pid in pids.items()}
        everyone = [*pids.values(), *(pid for others in companions.values() for pid in others)]
        server_bytes = transferred_bytes(server_pid)
        before = {pid: (process_cpu_ns(pid), process_stat_cpu_s(pid)) for pid in everyone}
        begin_ns = time.time_ns()
        await asyncio.sleep(seconds)
        end_ns = time.time_ns()
        for process in processes:
            process.check()
        used = {}
        for pid, (cpu_ns, stat_s) in before.items():
            with suppress(OSError):  # a companion may have ended
                used[pid] = process_cpu_ns(pid) - cpu_ns, process_stat_cpu_s(pid) - stat_s
        return Window(
            begin_ns,
            end_ns,
            {name: used[pid][0] / 1e3 for name, pid in pids.items()},
            {name: used[pid][1] * 1e6 for name, pid in pids.items()},
            {name: sum(used[pid][0] for pid in others if pid in used) / 1e3 for name, others in companions.items()},
            {name: resident_bytes(pid) for name, pid in pids.items()},
            transferred_bytes(server_pid) - server_bytes,
        )


@asynccontextmanager
async def open_cluster() -> AsyncIterator[Cluster]:
    """A fresh server on a free port."""
    async with EmbeddedNats() as server:
        bus = await NatsBus.connect(BusOptions(servers=(server.url,)))
        try:
            yield Cluster(server, bus)
        finally:
            await bus.close(2.0)

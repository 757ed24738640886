"""Ends, freezes and restarts agents, allocators and the server at random moments. Repeatable by its seed."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.soak.timeline import Timeline
from tests.support.cluster_lab import ClusterLab, ServiceProcess
from tests.support.frozen_server import freeze, thaw

MEAN_GAP_S = 1.5
MOST_DOWN_S = 2.0
MOST_FROZEN_S = 4.0
UNAVAILABLE = 69
"""Exit code of a service that cannot start because the bus does not answer."""
_LOOK_S = 0.25
_LOG_CHARACTERS = 1_500
_GRAIN_S = 0.05


TAKEOVER_S = 5.0
"""An allocator that runs undisturbed for so long owns what has no other owner: the promise of design 4.5."""


class Outage(NamedTuple):
    """Somebody could not work."""

    whom: str
    begin_s: float
    end_s: float

    def at(self, time_s: float, after_s: float = 0.0) -> bool:
        """Whether it was out then, or had been less than `after_s` before."""
        return self.begin_s <= time_s < self.end_s + after_s


@dataclass
class Slot:
    """One service that is meant to run."""

    name: str
    launch: Callable[[], ServiceProcess]
    process: ServiceProcess
    busy: bool = False
    """Under a fault: it need not run."""


def _steps(seconds: float) -> int:
    return int(seconds / _GRAIN_S) + 1


@dataclass
class Faults:
    """What was done, and what was not our doing."""

    cluster: ClusterLab
    chance: random.Random
    kinds: tuple[str, ...] = ("agent", "agent", "allocator", "allocator", "server")
    """What is hit, each as often as it is named: services by the beginning of their names, and the server."""
    slots: list[Slot] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    timeline: Timeline = field(default_factory=Timeline)
    log: list[str] = field(default_factory=list)
    """What was done when, on the clock of the observer's samples."""
    outages: list[Outage] = field(default_factory=list)
    ended_by_themselves: list[str] = field(default_factory=list)
    _server_busy: bool = False
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def add(self, name: str, launch: Callable[[], ServiceProcess]) -> None:
        """Start a service that is to be kept running between faults."""
        self.slots.append(Slot(name, launch, launch()))

    async def ready(self) -> None:
        """Wait until everything runs and says that it is ready."""
        for slot in self.slots:
            await slot.process.ready(30)

    async def run(self) -> None:
        """One fault after another, also at the same time; cancel to stop, then `heal`."""
        looking = asyncio.create_task(self._look())
        try:
            while True:
                await asyncio.sleep(self.chance.expovariate(1 / MEAN_GAP_S))
                self._begin(self.chance.choice(self.kinds))
        finally:
            looking.cancel()
            with suppress(asyncio.CancelledError):
                await looking

    def _begin(self, kind: str) -> None:
        freezes, frozen_s = self.chance.random() < 0.35, self.chance.uniform(0.2, MOST_FROZEN_S)
        down_s = self.chance.uniform(0, MOST_DOWN_S)
        if kind == "server":
            if not self._server_busy:
                self._start(self._freeze_server(frozen_s) if freezes else self._kill_server(down_s))
            return
        idle = [slot for slot in self.slots if slot.name.startswith(kind) and not slot.busy]
        if idle:
            slot = self.chance.choice(idle)
            self._start(self._freeze(slot, frozen_s) if freezes else self._kill(slot, down_s))

    def _note(self, what: str, whom: str, seconds: float) -> None:
        self.counts[f"{what} {whom.partition(' ')[0]}"] += 1
        now_s = time.monotonic()
        self.outages.append(Outage(whom, now_s, now_s + seconds))
        self.log.append(f"{now_s:.2f} s: {what} {whom} for {seconds:.2f} s")
        self.timeline.note(now_s, f"FAULT {what} {whom} for {seconds:.2f} s")

    def _ended(self, whom: str) -> None:
        self.timeline.note(time.monotonic(), f"FAULT of {whom} is over")

    def somebody_could_answer(self, begin_s: float, end_s: float) -> bool:
        """Whether, at any moment in between, the server ran and an allocator had been undisturbed for `TAKEOVER_S`."""
        allocators = {slot.name for slot in self.slots if slot.name.startswith("allocator")}
        return any(self._could_answer(begin_s + step * _GRAIN_S, allocators) for step in range(_steps(end_s - begin_s)))

    def _could_answer(self, time_s: float, allocators: set[str]) -> bool:
        out = {outage.whom for outage in self.outages if outage.at(time_s, TAKEOVER_S)}
        served = not any(outage.at(time_s) for outage in self.outages if outage.whom == "nats-server")
        return served and bool(allocators - out)

    def _start(self, fault: object) -> None:
        task = asyncio.ensure_future(fault)  # type: ignore[arg-type]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _kill(self, slot: Slot, down_s: float) -> None:
        slot.busy = True
        self._note("kill -9", slot.name, down_s)
        await slot.process.signal(signal.SIGKILL)
        await asyncio.sleep(down_s)
        slot.process = slot.launch()
        slot.busy = False
        self._ended(slot.name)

    async def _freeze(self, slot: Slot, frozen_s: float) -> None:
        slot.busy = True
        self._note("SIGSTOP", slot.name, frozen_s)
        slot.process.send(signal.SIGSTOP)
        await asyncio.sleep(frozen_s)
        slot.process.send(signal.SIGCONT)
        slot.busy = False
        self._ended(slot.name)

    async def _kill_server(self, down_s: float) -> None:
        self._server_busy = True
        self._note("kill -9", "nats-server", down_s)
        self.cluster.nats.kill()
        await asyncio.sleep(down_s)
        await self.cluster.nats.start()
        self._server_busy = False
        self._ended("nats-server")

    async def _freeze_server(self, frozen_s: float) -> None:
        self._server_busy = True
        self._note("SIGSTOP", "nats-server", frozen_s)
        freeze(self.cluster.nats)
        await asyncio.sleep(frozen_s)
        thaw(self.cluster.nats)
        self._server_busy = False
        self._ended("nats-server")

    async def _look(self) -> None:
        """A service that ends without a fault is a finding; it is started again."""
        while True:
            await asyncio.sleep(_LOOK_S)
            for slot in self.slots:
                if not slot.busy and not slot.process.running:
                    code = await slot.process.exit_code()
                    if code == UNAVAILABLE:  # the server died while it was starting: whoever runs it starts it again
                        self.counts["(start given up without a server)"] += 1
                        slot.process = slot.launch()
                        continue
                    log = slot.process.log_path.read_text(encoding="utf-8")[-_LOG_CHARACTERS:]
                    self.ended_by_themselves.append(f"{slot.name} ended with {code}: {log}")
                    slot.process = slot.launch()

    async def heal(self) -> None:
        """Wait for the faults under way to be over, and for everything to be ready."""
        if self._tasks:
            await asyncio.gather(*self._tasks)
        for slot in self.slots:
            if not slot.process.running:
                slot.process = slot.launch()
        await self.ready()

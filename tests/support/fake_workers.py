"""Workers of a local run in memory: two that use one core and send 1,000 bytes per second."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace

from services.collector.profiler.contention import ContentionCounters, MachineTime, ThreadTime
from services.collector.profiler.series import Counters


@dataclass
class FakeWorkers:
    """Two workers that use one core and send 1,000 bytes per second, until told otherwise."""

    ends: list[tuple[int, int]] = field(default_factory=list)
    """Tick at which a worker ends, and its exit code."""
    stubborn: bool = False
    hold_up_s: float = 0.0
    """At the fifth sample."""
    elapsed: list[float] = field(default_factory=list)
    signals: list[str] = field(default_factory=list)
    workers: list[SimpleNamespace] = field(default_factory=list)
    names: tuple[str, ...] = ("master", "worker-1")
    told: Callable[[], None] = lambda: None

    def prepare(self) -> None:
        """Nothing to make."""

    def start(self) -> None:
        for name in self.names:
            sandbox = SimpleNamespace(address="10.77.0.1")
            self.workers.append(
                SimpleNamespace(name=name, exit_code=None, sandbox=sandbox, process=SimpleNamespace(pid=1), order=None)
            )

    def watch(self, _loop: asyncio.AbstractEventLoop, ended: Callable[[], None]) -> None:
        self.told = ended

    def counters(self, elapsed_s: float) -> list[Counters]:
        tick = len(self.elapsed)
        self.elapsed.append(elapsed_s)
        if tick == 5 and self.hold_up_s:
            threading.Event().wait(self.hold_up_s)  # the whole thread, as a machine that is suspended
        for number, (when, code) in enumerate(self.ends):
            if when == tick:
                self._end(number, code)
        return [Counters(elapsed_s, elapsed_s, 1 << 20, 0, int(1000 * elapsed_s)) for _ in self.names]

    def contention(self, elapsed_s: float) -> ContentionCounters:
        """Other work uses a quarter of a core; the workers use half a one, and wait for a third of the time."""
        return ContentionCounters(
            elapsed_s, MachineTime(0.75 * elapsed_s, 0.0), 0.5 * elapsed_s, ThreadTime(2.0 * elapsed_s, elapsed_s), 0.0
        )

    def _end(self, number: int, code: int) -> None:
        self.workers[number].exit_code = code
        self.workers[number].order = len([worker for worker in self.workers if worker.order is not None])
        self.told()

    @property
    def all_ended(self) -> bool:
        return all(worker.exit_code is not None for worker in self.workers)

    @property
    def failed(self) -> SimpleNamespace | None:
        failed = [worker for worker in self.workers if worker.exit_code]
        return min(failed, key=lambda worker: worker.order, default=None)

    def out_of_memory(self, worker: SimpleNamespace) -> bool:
        return worker.exit_code == -9 and not self.stubborn

    def terminate(self) -> None:
        self.signals.append("TERM")
        if not self.stubborn:
            self._end_all(-15)

    def kill(self) -> None:
        self.signals.append("KILL")
        self._end_all(-9)

    def _end_all(self, code: int) -> None:
        for number, worker in enumerate(self.workers):
            if worker.exit_code is None:
                self._end(number, code)

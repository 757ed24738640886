"""Jobs under one way of aggregation: aggregators, their processor time, and the jobs' steps, over one window.

The service's own control starts real aggregator processes; its bus is one in memory, as no gradient goes by the bus.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from schemas.aggregations import AggregationReply, AggregationRequest
from services._jobs.aggregation_frames import RangePlace
from services._runtime.clock import SystemClock
from services._runtime.service.app import Runtime
from services._runtime.telemetry.logging import get_logger
from services._runtime.telemetry.telemetry import Counter, Telemetry
from services.aggregator.aggregator_process import AggregatorProcess
from services.aggregator.assignments import Assignments
from services.aggregator.control import Control, Counters
from services.aggregator.settings import AggregatorSettings
from tests.bench.aggregation.cases import OPTIMIZER, RANKS, REBALANCE_S, Shape, Way
from tests.bench.aggregation.job import JobProcess, Order
from tests.bench.machine import descendants, process_cpu_ns
from tests.support.bus.bus_memory import MemoryBus
from tests.support.bus.memory_broker import MemoryBroker

WARM_S: Final = 5.0
STEADY_S: Final = 3 * REBALANCE_S
"""As long as no aggregator has ended, jobs have come together."""
_SETTLED_WITHIN_S: Final = 90.0
_SAMPLE_S: Final = 0.1
_CLAIM: Final = "b0" * 32


@dataclass(frozen=True, slots=True)
class Measured:
    """One way, with so many jobs."""

    way: str
    shapes: Sequence[Shape]
    cores: Sequence[tuple[float, int]]
    """Seconds of the monotonic clock, and aggregators that ran from then on: each holds a core."""
    began_s: float
    """When the jobs began."""
    window_s: tuple[float, float]
    """In which the figures are taken: jobs have come together before it."""
    cpu_s: float
    """Of all aggregators in the window."""
    control_cpu_s: float
    """Of the service's control in the window, with this benchmark's sampling."""
    step_ends_s: dict[str, list[float]] = field(default_factory=dict)

    def in_window(self, job: str) -> list[float]:
        """Ends of its steps."""
        first, last = self.window_s
        return [end for end in self.step_ends_s[job] if first <= end <= last]

    @property
    def steps(self) -> int:
        """Of all jobs in the window."""
        return sum(len(self.in_window(shape.name)) for shape in self.shapes)

    @property
    def cpu_ms_per_step(self) -> float:
        """Processor time of all aggregators and their control, mean over all jobs' steps."""
        return 1e3 * (self.cpu_s + self.control_cpu_s) / self.steps

    @property
    def pushed_values(self) -> int:
        """In the window, by all ranks."""
        return sum(len(self.in_window(shape.name)) * shape.values * RANKS for shape in self.shapes)

    def iteration_s(self, job: str) -> float:
        """Mean in the window."""
        ends = self.in_window(job)
        return (ends[-1] - ends[0]) / (len(ends) - 1)

    def held_cores(self, first_s: float, last_s: float) -> float:
        """Mean over this time."""
        times = [*(at for at, _ in self.cores), last_s]
        spent = [
            count * max(0.0, min(until, last_s) - max(since, first_s))
            for (_, count), (since, until) in zip(self.cores, pairwise(times), strict=True)
        ]
        return sum(spent) / (last_s - first_s)

    @property
    def settled_cores(self) -> float:
        """Held in the window."""
        return self.held_cores(*self.window_s)

    @property
    def longest_while_moving(self) -> float:
        """The longest step before the window by the job's mean one in it: of the job where that is most."""
        return max(
            max((later - earlier for earlier, later in pairwise(self._before(shape.name))), default=0.0)
            / self.iteration_s(shape.name)
            for shape in self.shapes
        )

    def _before(self, job: str) -> list[float]:
        return [end for end in self.step_ends_s[job] if end <= self.window_s[0]]


class _Lab:
    """The service's control, and what is seen of it from outside."""

    def __init__(self, way: Way, jobs: Sequence[JobProcess]) -> None:
        self._way = way
        self._jobs = {job.pid for job in jobs}
        self._bus = MemoryBus(MemoryBroker())
        settings = AggregatorSettings.load({}, processes=len(jobs), **way.settings)
        runtime = Runtime(settings, self._bus, SystemClock(), Telemetry(), get_logger("aggregator"))
        assignments = Assignments(self._bus, runtime.clock, 1, _leads)
        self.control = Control(runtime, assignments, AggregatorProcess.start, Counters(Counter(), Counter()))
        self.cores: list[tuple[float, int]] = []

    async def place(self, shape: Shape) -> AggregationReply:
        """Of one job."""
        request = AggregationRequest(
            job=shape.name, attempt=1, claim=_CLAIM, ranks=RANKS, values=shape.values, optimizer=OPTIMIZER
        )
        return await self.control.place(request)

    async def sample(self) -> None:
        """Note how many aggregators run, until cancelled."""
        while True:
            count = self.control.aggregators
            if not self.cores or self.cores[-1][1] != count:
                self.cores.append((time.monotonic(), count))
            await asyncio.sleep(_SAMPLE_S)

    async def settle(self, began_s: float) -> None:
        """Until steps are usual, and no job moves any more."""
        await asyncio.sleep(WARM_S)
        while self._way.is_settled_by_moves and time.monotonic() - began_s < _SETTLED_WITHIN_S:
            moved = len(self.cores) > 1
            if moved and time.monotonic() - self.cores[-1][0] >= STEADY_S:
                return
            await asyncio.sleep(_SAMPLE_S)

    def cpu_s(self) -> tuple[float, float]:
        """Processor time so far: of the aggregators that run, and of this process."""
        total_ns = 0
        for pid in set(descendants(os.getpid())) - self._jobs:
            with suppress(OSError):  # it has ended meanwhile
                total_ns += process_cpu_ns(pid)
        return total_ns / 1e9, time.process_time()

    async def close(self) -> None:
        """End all aggregators."""
        await self.control.close()
        await self._bus.close(1)


async def _leads() -> bool:
    return True


async def measured(way: Way, shapes: Sequence[Shape], jobs: Sequence[JobProcess], window_s: float) -> Measured:
    """Aggregate these jobs in this way.

    Args:
        way: settings of the service.
        shapes: of the jobs.
        jobs: a process for each, that has nothing to do.
        window_s: how long to measure, once no job moves any more.

    Raises:
        RequestRefusedError: an aggregator cannot be started.
        JobFailedError: a job has ended by itself.
    """
    lab = _Lab(way, jobs)
    tasks = [asyncio.create_task(lab.control.watch())]
    try:
        replies = await asyncio.gather(*(lab.place(shape) for shape in shapes))
        tasks.append(asyncio.create_task(lab.sample()))
        began_s = time.monotonic()
        for shape, job, reply in zip(shapes, jobs, replies, strict=True):
            places = tuple(RangePlace(each.first, each.last, each.version, each.address) for each in reply.ranges)
            job.begin(Order(shape, bytes.fromhex(reply.key), places))
        await lab.settle(began_s)
        first_s, before_s = time.monotonic(), lab.cpu_s()
        await asyncio.sleep(window_s)
        after_s, last_s = lab.cpu_s(), time.monotonic()
        for job in jobs:
            job.stop()
        ends = [await asyncio.to_thread(job.ended) for job in jobs]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        await lab.close()
    cpu_s, control_cpu_s = (after - before for after, before in zip(after_s, before_s, strict=True))
    by_job = {shape.name: each for shape, each in zip(shapes, ends, strict=True)}
    return Measured(way.name, shapes, lab.cores, began_s, (first_s, last_s), cpu_s, control_cpu_s, by_job)

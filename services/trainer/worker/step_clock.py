"""How long the parts of a step take: on a processor by the clock, on a GPU by events of its stream."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum

import torch


class Part(Enum):
    """What a rank does during a step."""

    COMPUTE = "compute"
    GATHER = "gather"
    SCATTER = "scatter"


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Of one step, in microseconds. What an engine does not separate counts in `step_us` only."""

    step_us: int
    compute_us: int
    gather_us: int
    scatter_us: int


@dataclass(slots=True)
class StepClock:
    """Measures one step from its construction to `end`."""

    device: torch.device
    _spans: list[tuple[Part, int | torch.Event, int | torch.Event]] = field(default_factory=list)
    _begin_ns: int = field(default_factory=time.perf_counter_ns)

    @contextmanager
    def during(self, part: Part) -> Iterator[None]:
        """Count what happens within."""
        begin = self._now()
        yield
        self._spans.append((part, begin, self._now()))

    def end(self) -> StepTimes:
        """Wait for the device, and add up."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        step_ns = time.perf_counter_ns() - self._begin_ns
        sums = dict.fromkeys(Part, 0.0)
        for part, begin, end in self._spans:
            sums[part] += _between_us(begin, end)
        return StepTimes(
            step_ns // 1_000, round(sums[Part.COMPUTE]), round(sums[Part.GATHER]), round(sums[Part.SCATTER])
        )

    def _now(self) -> int | torch.Event:
        if self.device.type != "cuda":
            return time.perf_counter_ns()
        event = torch.Event(device=self.device, enable_timing=True)
        event.record()
        return event


def _between_us(begin: int | torch.Event, end: int | torch.Event) -> float:
    if isinstance(begin, int) and isinstance(end, int):
        return (end - begin) / 1e3
    assert isinstance(begin, torch.Event)
    assert isinstance(end, torch.Event)
    return float(begin.elapsed_time(end)) * 1e3  # milliseconds

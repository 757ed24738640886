"""What is known of a model on a device: time of its layers and memory, by the size of the micro-batch. Pure.

Times are in milliseconds and memory in GiB, as in the published profiles of Cephalo and Zorse: sums in other units
would round differently, and could not be compared with their plans to the last digit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

GIB: Final = float(1 << 30)
GROWTH_FROM: Final = 5
"""Memory beyond what was measured grows as in the last so many values."""
LEAST_MEASURED: Final = 2


def total(values: Iterable[float]) -> float:
    """A sum from left to right: `sum` compensates rounding from Python 3.12 on, and plans must not depend on that."""
    result = 0.0
    for value in values:
        result += value
    return result


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds of one layer by the micro-batch's size m: as measured, beyond that ``slope * m + intercept``."""

    slope: float
    intercept: float = 0.0
    measured: tuple[float, ...] = ()

    def at(self, microbatch: int) -> float:
        """Milliseconds."""
        if len(self.measured) >= microbatch:
            return self.measured[microbatch - 1]
        return microbatch * self.slope + self.intercept


def fitted(measured_ms: Sequence[float]) -> Latency:
    """With the line of least squares through the values for 1, 2, 3 ... samples; one value: in proportion to it.

    A line that falls below the last value measured is raised to begin there: a larger micro-batch takes no less time.
    """
    count = len(measured_ms)
    if count == 1:
        return Latency(measured_ms[0], 0.0, tuple(measured_ms))
    mean_size, mean_ms = (count + 1) / 2, total(measured_ms) / count
    deviations = [size - mean_size for size in range(1, count + 1)]
    slope = total(d * ms for d, ms in zip(deviations, measured_ms, strict=True)) / total(d * d for d in deviations)
    slope = max(slope, 0.0)
    intercept = max(mean_ms - slope * mean_size, measured_ms[-1] - slope * count)
    return Latency(slope, intercept, tuple(measured_ms))


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """Forward and backward pass of one layer on one kind of device."""

    forward: Latency
    backward: Latency
    """Without the forward pass that is done again ahead of it."""


@dataclass(frozen=True, slots=True)
class MemoryProfile:
    """GiB that a device needs beside its part of the state."""

    measured_gib: tuple[float, ...]
    """For micro-batches of 1, 2, 3 ... samples; at least `LEAST_MEASURED`."""
    overhead_gib: float = 2.0
    """Beside those: buffers of collectives (as the authors of Cephalo assume), or what an idle worker uses."""
    kept_gib_per_sample: float = 0.0
    """Outputs of layers that are kept for the backward pass, of each sample of the step."""

    def __post_init__(self) -> None:
        if len(self.measured_gib) < LEAST_MEASURED:
            raise ValueError(f"memory of {len(self.measured_gib)} micro-batches, {LEAST_MEASURED} are needed")

    def at(self, microbatch: int) -> float:
        """GiB for one micro-batch, without what is kept; beyond what was measured it grows on as in its last values."""
        known = self.measured_gib
        if microbatch <= len(known):
            return known[microbatch - 1] + self.overhead_gib
        span = min(GROWTH_FROM, len(known))
        growth = (known[-1] - known[-span]) / (span - 1)
        return known[-1] + growth * (microbatch - len(known)) + self.overhead_gib

    def held(self, microbatch: int, samples: int) -> float:
        """GiB of a step of so many samples in micro-batches of that size."""
        return self.at(microbatch) + self.kept_gib_per_sample * samples

    def largest(self, room_gib: float, limit: int) -> int:
        """The largest micro-batch up to ``limit`` that fits, counted from 1 up to the first that does not."""
        return next((size - 1 for size in range(1, limit + 1) if self.held(size, size) > room_gib), limit)


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU, or one control group that stands for one."""

    rank: int
    kind: str
    memory_gib: float
    machine: int = 0
    """Its row in `Network`."""


@dataclass(frozen=True, slots=True)
class Network:
    """GiB/s, and milliseconds of a message of 10 MB, between machines; the diagonal is inside one."""

    gib_per_s: tuple[tuple[float, ...], ...]
    latency_ms: tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Infeasible:
    """There is no plan: a value, not an exception."""

    reason: str
    missing_gib: float = 0.0
    """0: memory is not what is missing, or it is not known how much."""

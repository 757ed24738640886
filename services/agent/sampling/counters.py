"""Counters of all containers of a node at one moment, in columns over containers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from services.agent.sampling.usage import COUNTER_COLUMNS, MEMORY_COLUMN

IntArray = np.ndarray[Any, np.dtype[np.int64]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]
MOVED_BYTES = 8 << 20
"""Usage that has moved by so much since the thresholds last followed it: they are this far apart."""


class Counters(NamedTuple):
    """One reading of a container's cumulative counters, and its memory usage now."""

    nr_periods: int
    nr_throttled: int
    throttled_us: int
    """Time throttled, summed over CPUs."""
    usage_us: int
    memory_bytes: int


class Readable(Protocol):
    """One container's counters."""

    def read(self) -> Counters | None:
        """Counters now; None: vanished."""


@dataclass(frozen=True, slots=True)
class KernelState:
    """The kernel's limits and state, where one read shows them as well."""

    limits: IntArray
    """Shape (N, 3): quota in us per `schemas.apps.PERIOD_US`, limit in bytes (-1: unlimited both), kills for memory."""
    guarded: BoolArray
    """Shape (N,): tasks wait, or are slowed, at the limit."""
    boundary_ns: IntArray
    """Shape (N,): end of the CFS period under way, monotonic; 0: none is under way."""
    throttled: BoolArray
    """Shape (N,): a CPU of it is throttled now."""

    def without(self, rows: Sequence[int]) -> KernelState:
        """The others."""
        return KernelState(*(np.delete(getattr(self, name), rows, axis=0) for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class ExactPeriods:
    """Periods that ended since the last read, shape (N,) each; rows without any are 0."""

    periods: IntArray
    used_us: IntArray
    """Per period, on average."""
    unused_us: IntArray
    """Per period, on average."""
    throttled: IntArray
    """Periods with a throttled CPU."""
    throttled_us: IntArray
    """Per period, summed over CPUs."""

    def without(self, rows: Sequence[int]) -> ExactPeriods:
        """The others."""
        return ExactPeriods(*(np.delete(getattr(self, name), rows) for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class CounterSnapshot:
    """All containers at one moment."""

    counters: IntArray
    """Shape (N, 5): `Counters`. Rows of those that have vanished mean nothing."""
    vanished: tuple[int, ...] = ()
    """Rows that have vanished."""
    kernel: KernelState | None = None
    """None: to be read one by one."""
    exact: ExactPeriods | None = None
    """Of those whose periods the kernel records one by one."""
    oom_rows: tuple[int, ...] = ()
    """Where the kernel has killed for want of memory, or was about to, since the last read."""

    def without_vanished(self) -> CounterSnapshot:
        """The others."""
        kernel = None if self.kernel is None else self.kernel.without(self.vanished)
        exact = None if self.exact is None else self.exact.without(self.vanished)
        left = {row: number for number, row in enumerate(sorted(set(range(len(self.counters))) - set(self.vanished)))}
        oom_rows = tuple(left[row] for row in self.oom_rows if row in left)
        return CounterSnapshot(np.delete(self.counters, self.vanished, axis=0), (), kernel, exact, oom_rows)


def read_each(handles: Sequence[Readable]) -> CounterSnapshot:
    """One container after the other."""
    rows = [handle.read() for handle in handles]
    vanished = tuple(number for number, row in enumerate(rows) if row is None)
    counters = np.array([row or (0,) * COUNTER_COLUMNS for row in rows], dtype=np.int64)
    return CounterSnapshot(counters.reshape(-1, COUNTER_COLUMNS), vanished)


@dataclass(frozen=True, slots=True)
class ExpectedState:
    """What the agent believes."""

    limits: IntArray
    """As `KernelState.limits`."""
    controlled: BoolArray
    """Shape (N,): the container is under OOM control."""
    tracked_bytes: IntArray
    """Shape (N,): usage that the thresholds last followed."""


def rows_to_check(readings: CounterSnapshot, kernel: KernelState, expected: ExpectedState) -> list[int]:
    """Rows whose state in the kernel differs from what is expected, or whose usage has moved off its thresholds."""
    moved = np.abs(readings.counters[:, MEMORY_COLUMN] - expected.tracked_bytes) >= MOVED_BYTES
    wrong = (kernel.limits != expected.limits).any(axis=1) | (expected.controlled & (moved | ~kernel.guarded))
    rows: list[int] = np.flatnonzero(wrong).tolist()
    return rows

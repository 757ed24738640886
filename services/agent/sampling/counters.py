"""What one look at all containers of a node has shown, in columns over containers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from services.agent.sampling.usage import COUNTER_COLUMNS, MEMORY_COLUMN

IntArray = np.ndarray[Any, np.dtype[np.int64]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]
MOVED_BYTES = 8 << 20
"""Usage that has moved by so much since the guard last followed it: the guard's thresholds are this far apart."""


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
class Held:
    """What the kernel holds, where one look shows that as well."""

    limits: IntArray
    """Shape (N, 3): quota in us per `schemas.apps.PERIOD_US`, limit in bytes (-1: unlimited both), kills for memory."""
    guarded: BoolArray
    """Shape (N,): tasks wait, or are slowed, at the limit."""
    boundary_ns: IntArray
    """Shape (N,): end of the CFS period under way, monotonic; 0: none is under way."""
    throttled: BoolArray
    """Shape (N,): a CPU of it is throttled now."""

    def without(self, rows: Sequence[int]) -> Held:
        """The others."""
        return Held(*(np.delete(getattr(self, name), rows, axis=0) for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class Exact:
    """Periods that ended since the look before, shape (N,) each; rows without any are 0."""

    periods: IntArray
    used_us: IntArray
    """Per period, on average."""
    unused_us: IntArray
    """Per period, on average."""
    throttled: IntArray
    """Periods with a throttled CPU."""
    throttled_us: IntArray
    """Per period, summed over CPUs."""

    def without(self, rows: Sequence[int]) -> Exact:
        """The others."""
        return Exact(*(np.delete(getattr(self, name), rows) for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class Readings:
    """All containers at one moment."""

    counters: IntArray
    """Shape (N, 5): `Counters`. Rows of those that have vanished mean nothing."""
    gone: tuple[int, ...] = ()
    """Rows that have vanished."""
    held: Held | None = None
    """None: to be read one by one."""
    exact: Exact | None = None
    """Of those whose periods the kernel records one by one."""
    oom_rows: tuple[int, ...] = ()
    """Where the kernel has killed for want of memory, or was about to, since the look before."""

    def without_gone(self) -> Readings:
        """The others."""
        held = None if self.held is None else self.held.without(self.gone)
        exact = None if self.exact is None else self.exact.without(self.gone)
        left = {row: number for number, row in enumerate(sorted(set(range(len(self.counters))) - set(self.gone)))}
        oom_rows = tuple(left[row] for row in self.oom_rows if row in left)
        return Readings(np.delete(self.counters, self.gone, axis=0), (), held, exact, oom_rows)


def read_each(handles: Sequence[Readable]) -> Readings:
    """One container after the other."""
    rows = [handle.read() for handle in handles]
    gone = tuple(number for number, row in enumerate(rows) if row is None)
    counters = np.array([row or (0,) * COUNTER_COLUMNS for row in rows], dtype=np.int64)
    return Readings(counters.reshape(-1, COUNTER_COLUMNS), gone)


@dataclass(frozen=True, slots=True)
class Known:
    """What the agent believes."""

    limits: IntArray
    """As `Held.limits`."""
    armed: BoolArray
    """Shape (N,): it guards the container."""
    followed_bytes: IntArray
    """Shape (N,): usage that the guard has last followed."""


def to_check(readings: Readings, held: Held, known: Known) -> list[int]:
    """Rows in which the kernel holds something else than is believed, or usage has moved away from its guard."""
    moved = np.abs(readings.counters[:, MEMORY_COLUMN] - known.followed_bytes) >= MOVED_BYTES
    wrong = (held.limits != known.limits).any(axis=1) | (known.armed & (moved | ~held.guarded))
    rows: list[int] = np.flatnonzero(wrong).tolist()
    return rows

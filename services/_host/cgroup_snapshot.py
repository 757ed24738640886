"""Counters and limits of many control groups, as values and in columns over containers; outcomes of writes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

IntArray = np.ndarray[Any, np.dtype[np.int64]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]
COUNTER_COLUMNS = 5
"""nr_periods, nr_throttled, throttled_us, usage_us, memory_bytes: `Counters` in order."""
MEMORY_COLUMN = 4


class Counters(NamedTuple):
    """One reading of a container's cumulative counters, and its memory usage now."""

    nr_periods: int
    nr_throttled: int
    throttled_us: int
    """Time throttled, summed over CPUs."""
    usage_us: int
    memory_bytes: int


class WriteOutcome(Enum):
    """What became of a write."""

    WRITTEN = "written"
    VANISHED = "vanished"
    REFUSED = "refused"
    """The kernel refused it (EBUSY: memory below usage; EINVAL: above the parent): the old value still holds."""


class RefusedQuota(NamedTuple):
    """Why the kernel refused a CPU quota."""

    cause: str
    """A clause for people, such as "cpu.cfs_burst_us is 100000"."""
    nearest_us: int = 0
    """The nearest quota that it accepts, us per period of `schemas.apps.PERIOD_US`; 0: not known."""
    may_accept_less: bool = False
    """A group that is not seen from here may have less (version 1)."""


UNLIMITED = -1


class Limits(NamedTuple):
    """What the kernel holds."""

    quota_us: int
    """Per period of `schemas.apps.PERIOD_US`, whatever period the kernel holds; `UNLIMITED` if none."""
    memory_bytes: int
    """`UNLIMITED` if none."""


class MemoryState(NamedTuple):
    """One reading of a container's memory."""

    usage_bytes: int
    limit_bytes: int
    """As the kernel holds it now; `UNLIMITED` if none."""
    paused: bool
    """Tasks wait at the limit (version 1: under_oom). Version 2: usage has passed memory.high, tasks are slowed."""
    oom_kills: int
    """By the kernel since the cgroup was made."""
    limit_hits: int = 0
    """How often the kernel hit the limit since then (memory.failcnt; `max` in memory.events)."""


class NotificationKind(Enum):
    """Why a container's memory needs inspection."""

    NEAR = "near"
    """A usage threshold was crossed (version 1), or memory.high was reached (version 2)."""
    PAUSED = "paused"
    """Version 1: the limit was hit, tasks wait."""


class Notification(NamedTuple):
    """One notification. It may come late or twice: it only triggers an inspection."""

    key: str
    """`FoundContainer.key`."""
    kind: NotificationKind


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


@dataclass(frozen=True, slots=True)
class ThrottleSnapshot:
    """Of each container at one moment, shape (N,) each."""

    throttled: BoolArray
    """A CPU of it waits for the period to end."""
    nr_periods: IntArray
    """Periods that have ended: names the one under way."""
    quota_us: IntArray
    """In force; -1: none."""


class QuotaWriter(NamedTuple):
    """A process that wrote a CPU quota, as the kernel saw it at that moment."""

    pid: int
    """In the host's numbering. Short-lived processes are the rule (runc): the number may be another's by now."""
    comm: str
    """Of its first thread (proc(5)), 15 bytes; a process chooses it by itself, so it proves nothing. Printable."""
    cgroup: str
    """Its control group below the root, such as ``system.slice/docker.service``; ``/``: the root. Printable."""


class Pressure(NamedTuple):
    """Share of the last 10 s in which some task waited (`some` avg10), percent; None: not available."""

    cpu_percent: float | None = None
    memory_percent: float | None = None

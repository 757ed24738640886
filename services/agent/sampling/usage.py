"""From cumulative counters to what was used per period. Vectorised over all containers of the node.

The kernel counts a period only while a cgroup runs (measured: +2 in an idle second), a sample never falls exactly on
a boundary, and without a quota nothing is counted. So usage is scaled by the time that really passed; only where the
container was throttled, its bursts belong to counted periods and the larger of both divisors holds: two periods may
end 110 ms apart around one late sample, and none in 99 ms.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from schemas.apps import PERIOD_US
from schemas.cfs import SampleFlag
from services._host.cgroup_snapshot import COUNTER_COLUMNS, MEMORY_COLUMN, BoolArray, ExactPeriods, IntArray

_NR_PERIODS, _NR_THROTTLED, _THROTTLED_US, _USAGE_US, _ = range(COUNTER_COLUMNS)


@dataclass(frozen=True, slots=True)
class PeriodSample:
    """Columns over containers, each of shape (N,), as `schemas.cfs.CfsBatch` names them."""

    periods: IntArray
    used_us: IntArray
    unused_us: IntArray
    throttled: IntArray
    throttled_us: IntArray
    memory_usage_bytes: IntArray
    flags: IntArray

    def columns(self) -> dict[str, IntArray]:
        """All of them by name."""
        return {column.name: getattr(self, column.name) for column in fields(self)}


def per_period(before: IntArray, after: IntArray, elapsed_us: IntArray, quota_us: IntArray) -> PeriodSample:
    """What happened per period between two readings.

    Args:
        before: counters of the previous reading, shape (N, 5).
        after: counters now, shape (N, 5).
        elapsed_us: time between them, shape (N,); 0 marks a container read for the first time.
        quota_us: quota in force, shape (N,); negative: unlimited.

    Returns:
        Columns of shape (N,). ``periods`` is 0 where this is the first reading.
    """
    delta = np.maximum(after - before, 0)  # a counter that went back belongs to a recreated cgroup
    first = elapsed_us <= 0
    counted = delta[:, _NR_PERIODS]
    wall_periods = np.where(first, 1.0, elapsed_us / PERIOD_US)
    throttled = np.where(first, 0, delta[:, _NR_THROTTLED])
    divisor = np.where(throttled > 0, np.maximum(counted, wall_periods), wall_periods)
    used_us = np.where(first, 0, np.rint(delta[:, _USAGE_US] / divisor)).astype(np.int64)
    throttled_us = np.where(first, 0, np.rint(delta[:, _THROTTLED_US] / divisor)).astype(np.int64)
    limited = quota_us >= 0
    whole_periods = np.maximum(np.where(counted > 0, counted, np.rint(wall_periods)), 1).astype(np.int64)
    idle = ~first & (counted == 0) & (delta[:, _USAGE_US] == 0)
    return PeriodSample(
        periods=np.where(first, 0, whole_periods),
        used_us=used_us,
        unused_us=np.where(limited & ~first, np.maximum(quota_us - used_us, 0), 0),
        throttled=throttled,
        throttled_us=throttled_us,
        memory_usage_bytes=after[:, MEMORY_COLUMN],
        flags=idle * int(SampleFlag.IDLE) + (~limited & ~first) * int(SampleFlag.WALL_CLOCK),
    )


def with_exact_periods(sample: PeriodSample, exact: ExactPeriods, rows: BoolArray) -> PeriodSample:
    """The kernel's own account of the periods that ended, in place of an estimate from two readings.

    Args:
        sample: from two readings, shape (N,).
        exact: from the kernel, shape (N,).
        rows: where its periods are of `PERIOD_US`, shape (N,).
    """
    recorded = rows & (exact.periods > 0) & (sample.periods > 0)
    return PeriodSample(
        periods=np.where(recorded, exact.periods, sample.periods),
        used_us=np.where(recorded, exact.used_us, sample.used_us),
        unused_us=np.where(recorded, exact.unused_us, sample.unused_us),
        throttled=np.where(recorded, exact.throttled, sample.throttled),
        throttled_us=np.where(recorded, exact.throttled_us, sample.throttled_us),
        memory_usage_bytes=sample.memory_usage_bytes,
        flags=np.where(recorded, 0, sample.flags),
    )

"""From cumulative counters to what was used per period. Vectorised over all containers of the node.

The kernel counts a period only while a cgroup runs (measured: +2 in an idle second), a sample never falls exactly on
a boundary, and without a quota nothing is counted. So usage is scaled by the time that really passed; only where the
container was throttled, its bursts belong to counted periods and the larger of both divisors holds: two periods may
end 110 ms apart around one late sample, and none in 99 ms.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from schemas.apps import PERIOD_US
from schemas.cfs import SampleFlag

IntArray = np.ndarray[Any, np.dtype[np.int64]]

COUNTER_COLUMNS = 5
"""nr_periods, nr_throttled, throttled_us, usage_us, memory_bytes: `services.agent.ports.Counters` in order."""
_NR_PERIODS, _NR_THROTTLED, _THROTTLED_US, _USAGE_US, MEMORY_COLUMN = range(COUNTER_COLUMNS)


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

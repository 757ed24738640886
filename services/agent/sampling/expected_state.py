"""Which containers differ in the kernel from what the agent expects, by one read of all of them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from services._host.cgroup_snapshot import MEMORY_COLUMN, BoolArray, CounterSnapshot, IntArray, KernelState

MOVED_BYTES = 8 << 20
"""Usage that has moved by so much since the thresholds last followed it: they are this far apart."""


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

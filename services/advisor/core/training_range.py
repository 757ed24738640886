"""Range of the training data: configurations far outside of it are answered "not known", whatever a model predicts.

Intervals are calibrated on left-out tasks, never on machines of another size, so they do not hold there. Catalogues
offer machines in doublings: one doubling beyond the smallest or largest measured one is still answered (and marked),
more is not (decision 0037).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from services.advisor.core.arrays import FloatArray
from services.advisor.core.table import Table

BEYOND: Final = 2.0
"""A quantity above this factor times the largest, or below the smallest over this factor, is outside."""
BEYOND_TASKS: Final = 10.0
"""The same for quantities of the task: the local run has its scale, so only how it spreads over machines may differ."""
_ROUNDING: Final = 1.0 + 1e-9
_QUANTITIES: Final = {
    "vCPU": ("config.vcpu",),
    "memory in GB": ("config.memory_gb",),
    "network in Gbit/s": ("config.network_gbps",),
    "workers": ("config.workers",),
    "cores of all workers": ("config.vcpu", "config.workers"),
    "batch size": ("config.batch_size",),
    "parameters": ("task.parameter_count",),
}
"""Features whose product each quantity is, by name."""


def is_within(value: float, measured: Iterable[float]) -> bool:
    """Whether a quantity is not far outside of the measured ones; also where it, or all of those, are not known (0)."""
    known = [one for one in measured if one]
    return not (known and value) or min(known) / BEYOND <= value <= max(known) * BEYOND


@dataclass(frozen=True, slots=True)
class TrainingRange:
    """Smallest and largest value of each quantity; quantities without a value are absent."""

    ends: Mapping[str, tuple[float, float]]

    @staticmethod
    def of(table: Table) -> TrainingRange:
        """Take the ranges of the rows."""
        ends = {}
        for name in _QUANTITIES:
            values = _values(table, name)
            if (known := values[np.isfinite(values) & (values > 0)]).size:
                ends[name] = (float(known.min()), float(known.max()))
        return TrainingRange(ends)

    def outside(self, table: Table) -> tuple[str, ...]:
        """Return, per row, a quantity far outside, such as ``vCPU 32 (measured: 0.125 to 1)``; empty if none."""
        found = [""] * len(table)
        for name, (least, most) in self.ends.items():
            values = _values(table, name)
            beyond = BEYOND_TASKS if _QUANTITIES[name][0].startswith("task.") else BEYOND
            far = (values > most * beyond * _ROUNDING) | (values < least / beyond / _ROUNDING)
            for row in np.flatnonzero(far).tolist():
                found[row] = found[row] or f"{name} {values[row]:g} (measured: {least:g} to {most:g})"
        return tuple(f"far outside of what was measured: {one}" if one else "" for one in found)


def _values(table: Table, name: str) -> FloatArray:
    return np.asarray(np.prod([table.feature(feature) for feature in _QUANTITIES[name]], axis=0))

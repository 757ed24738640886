"""Known means inside of what was measured: configurations far outside of it are not known, whatever a model says.

A model's interval is calibrated on tasks that were left out, never on machines of another size, so it says nothing of
those. Catalogues offer machines in doublings: one doubling beyond the smallest or largest that was measured is still
answered (and marked), more is not (decision 0037).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from services.advisor.core.arrays import FloatArray
from services.advisor.core.table import Table

BEYOND: Final = 2.0
"""A quantity that is more than so many times the largest, or less than that part of the smallest, is outside."""
_ROUNDING: Final = 1.0 + 1e-9
_QUANTITIES: Final = {
    "vCPU": ("config.vcpu",),
    "memory in GB": ("config.memory_gb",),
    "network in Gbit/s": ("config.network_gbps",),
    "workers": ("config.workers",),
    "cores of all workers": ("config.vcpu", "config.workers"),
    "batch size": ("config.batch_size",),
}
"""By name: the features whose product it is."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Smallest and largest of each quantity that was measured; one that no record tells is absent."""

    ends: Mapping[str, tuple[float, float]]

    @staticmethod
    def of(table: Table) -> Extent:
        """Take the ranges of the rows."""
        found = {}
        for name in _QUANTITIES:
            values = _values(table, name)
            if (known := values[np.isfinite(values) & (values > 0)]).size:
                found[name] = (float(known.min()), float(known.max()))
        return Extent(found)

    def outside(self, table: Table) -> tuple[str, ...]:
        """Return, per row, what lies far outside, such as ``vCPU 32 (measured: 0.125 to 1)``; empty where nothing."""
        told = [""] * len(table)
        for name, (least, most) in self.ends.items():
            values = _values(table, name)
            far = (values > most * BEYOND * _ROUNDING) | (values < least / BEYOND / _ROUNDING)
            for row in np.flatnonzero(far).tolist():
                told[row] = told[row] or f"{name} {values[row]:g} (measured: {least:g} to {most:g})"
        return tuple(f"far outside of what was measured: {one}" if one else "" for one in told)


def _values(table: Table, name: str) -> FloatArray:
    return np.asarray(np.prod([table.feature(feature) for feature in _QUANTITIES[name]], axis=0))

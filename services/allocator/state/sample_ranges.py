"""Which values a kernel can report; all others are invalid. Pure."""

from __future__ import annotations

from functools import cache

import numpy as np

from services.allocator.arrays.array_types import BoolArray, IntArray

RANGES = {
    "quota_us": (-1, 1 << 40),
    "memory_limit_bytes": (-1, 1 << 60),
    "memory_usage_bytes": (0, 1 << 60),
    "memory_reclaimable_bytes": (0, 1 << 60),
    "used_us": (0, 1 << 31),
    "unused_us": (0, 1 << 31),
    "throttled_us": (0, 1 << 31),
    "limit_update_seq": (0, 1 << 62),
}
"""Values a kernel can report. Anything else is a fault and would overflow sums."""


def valid_rows(names: tuple[str, ...], table: IntArray) -> BoolArray:
    """Rows whose values are all within `RANGES`, shape (rows,); ``table`` holds the named columns, (columns, rows)."""
    least, most = _bounds(names)
    inside: BoolArray = (table >= least) & (table <= most)
    return np.asarray(inside.all(axis=0))


@cache
def _bounds(names: tuple[str, ...]) -> tuple[IntArray, IntArray]:
    least, most = np.array([RANGES[name] for name in names], dtype=np.int64).T[:, :, None]
    return least, most

"""Which configurations of a task are among its best (thesis 4.5.1)."""

from __future__ import annotations

from typing import Final

import numpy as np

from services.advisor.core.arrays import BoolArray, FloatArray, IntArray, TextArray

TOP_COUNT: Final = 5
TOP_FACTOR: Final = 1.5


def ranks(values: FloatArray) -> IntArray:
    """Return 1 for the smallest; equal values share the smaller rank. NaN values come last, all with one rank."""
    order = np.sort(np.where(np.isnan(values), np.inf, values))
    return np.asarray(np.searchsorted(order, np.where(np.isnan(values), np.inf, values), side="left") + 1)


def top_labels(task: TextArray, values: FloatArray) -> BoolArray:
    """Return per row whether it is among its task's five smallest *and* within 1.5 times the smallest.

    Args:
        task: Shape ``(rows,)``.
        values: Seconds or dollars; NaN (failed, or unknown) is never a top configuration.
    """
    labels = np.zeros(len(values), dtype=bool)
    for one in np.unique(task):
        rows = np.flatnonzero(task == one)
        mine = values[rows]
        if np.isfinite(mine).any():
            labels[rows] = (ranks(mine) <= TOP_COUNT) & (mine <= TOP_FACTOR * np.nanmin(mine))
    return labels

"""Container columns: one row per container, one array per quantity."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

IntArray = np.ndarray[Any, np.dtype[np.int64]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]

UNLIMITED = -1
NO_BOUND = 1 << 62
"""No bound; safe beside one value in a sum."""


class Rows:
    """Columns of equal length; rows are appended at the end and removed by mask. Quotas in us per period."""

    app: IntArray
    node: IntArray
    slot: IntArray
    """Stable index into the policies' estimator arrays; kept for the container's life."""
    reserve: IntArray
    """Row of the container's application and node in `reserves.Reserves`."""
    host_cpus: IntArray
    report_seq: IntArray
    """Newest applied report of the agent."""
    report_ns: IntArray
    """When it arrived, monotonic."""
    order_seq: IntArray
    """Newest limit update sent for this row and not acknowledged before; 0: none."""
    acked: BoolArray
    """Whether the agent has acknowledged that update."""
    admitted: BoolArray
    """Whether the container counts against the limits and receives updates."""
    fenced: BoolArray
    """Whether the agent has acknowledged this allocator's epoch for the row's application."""
    unreported: BoolArray
    """Not reported since its agent restarted: counts with its last limits, receives no updates."""
    refusals: IntArray
    """Consecutive steps in which admission was refused."""
    mismatches: IntArray
    """Consecutive reports whose kernel values differ from the ordered ones."""
    fresh: BoolArray
    """A new sample arrived since the last step."""

    quota_us: IntArray
    """In the kernel by the newest report; -1: unlimited."""
    quota_ordered_us: IntArray
    quota_inflight_us: IntArray
    """Largest quota among unacknowledged updates; 0: none."""
    quota_deferred_us: IntArray
    """Part of a target that waits for free capacity; 0: none."""

    limit_bytes: IntArray
    limit_ordered_bytes: IntArray
    limit_inflight_bytes: IntArray
    limit_deferred_bytes: IntArray

    used_us: IntArray
    unused_us: IntArray
    throttled: IntArray
    throttled_us: IntArray
    memory_usage_bytes: IntArray
    memory_reclaimable_bytes: IntArray
    """Page cache that the kernel could drop; outdated by up to 5 s."""
    previous_memory_usage_bytes: IntArray
    """Usage in the previous report."""
    oom_kills: IntArray

    _BOOLEAN = ("acked", "admitted", "fenced", "unreported", "fresh")

    def __init__(self) -> None:
        self.count = 0
        self.columns = [name for name in Rows.__annotations__ if not name.startswith("_")]
        for name in self.columns:
            setattr(self, name, np.zeros(0, dtype=np.bool_ if name in self._BOOLEAN else np.int64))

    def append(self, count: int) -> IntArray:
        """Add zeroed rows; returns their indices."""
        for name in self.columns:
            column = getattr(self, name)
            setattr(self, name, np.concatenate([column, np.zeros(count, dtype=column.dtype)]))
        self.count += count
        return np.arange(self.count - count, self.count)

    def keep(self, mask: BoolArray) -> IntArray:
        """Drop rows where ``mask`` is False; returns the new index of each old row (meaningless where dropped)."""
        for name in self.columns:
            setattr(self, name, getattr(self, name)[mask])
        self.count = int(mask.sum())
        renumbered: IntArray = np.cumsum(mask, dtype=np.int64) - 1
        return renumbered


def grouped(index: IntArray, owner: IntArray) -> list[tuple[int, IntArray]]:
    """Row indices by their application or node: (owner, rows in their order), owners ascending. One sort, no search."""
    if not len(index):
        return []
    owners = owner[index]
    by_owner = np.argsort(owners, kind="stable")
    index, owners = index[by_owner], owners[by_owner]
    return [(int(owners[part.start]), index[part]) for part in runs(owners)]


def runs(*columns: IntArray) -> list[slice]:
    """Runs of equal values in adjacent rows; columns of shape (N,), N > 0."""
    differs = np.zeros(len(columns[0]) - 1, dtype=np.bool_)
    for column in columns:
        differs |= column[1:] != column[:-1]
    edges = [0, *(np.flatnonzero(differs) + 1).tolist(), len(columns[0])]
    return [slice(start, end) for start, end in pairwise(edges)]

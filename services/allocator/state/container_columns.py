"""The state of all containers as a structure of arrays: one row per container, one array per quantity."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np

IntArray = np.ndarray[Any, np.dtype[np.int64]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]

UNLIMITED = -1
NO_BOUND = 1 << 62
"""More than there is anywhere; safe beside one value in a sum."""


class Rows:
    """Columns of equal length; rows are appended at the end and removed by mask. Quotas in us per period."""

    app: IntArray
    node: IntArray
    slot: IntArray
    """Where policies keep this container's estimates; stays the same for its life."""
    reserve: IntArray
    """Row of the container's application and node in `reserves.Reserves`."""
    host_cpus: IntArray
    report_seq: IntArray
    """Newest report of the agent that this row has taken in."""
    report_ns: IntArray
    """When it arrived, monotonic."""
    order_seq: IntArray
    """Newest order sent for this row and not known to be settled before; 0: none."""
    settled: BoolArray
    """Whether the agent has seen that order."""
    admitted: BoolArray
    """Whether the row counts against the limits and takes orders."""
    fenced: BoolArray
    """Whether the agent has acknowledged this allocator's epoch for the row's application."""
    absent: BoolArray
    """The agent was restarted and has not named it since: it counts with what it held, and takes no orders."""
    refusals: IntArray
    """Steps in a row in which there was no room to admit the row."""
    mismatches: IntArray
    """Reports in a row in which the kernel held something else than ordered."""
    fresh: BoolArray
    """New usage arrived since the last step."""

    quota_us: IntArray
    """In the kernel by the newest report; -1: unlimited."""
    quota_ordered_us: IntArray
    quota_inflight_us: IntArray
    """Largest quota among orders that are not settled; 0: none."""
    quota_wanted_us: IntArray
    """Target that could not be funded yet; 0: none."""

    limit_bytes: IntArray
    limit_ordered_bytes: IntArray
    limit_inflight_bytes: IntArray
    limit_wanted_bytes: IntArray

    used_us: IntArray
    unused_us: IntArray
    throttled: IntArray
    throttled_us: IntArray
    memory_usage_bytes: IntArray
    memory_reclaimable_bytes: IntArray
    """Page cache that the kernel could drop; outdated by up to 5 s."""
    memory_before_bytes: IntArray
    """Usage in the report before."""
    oom_kills: IntArray

    _BOOLEAN = ("settled", "admitted", "fenced", "absent", "fresh")

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
    """Where rows that stand together have the same values; columns of shape (N,), N > 0."""
    differs = np.zeros(len(columns[0]) - 1, dtype=np.bool_)
    for column in columns:
        differs |= column[1:] != column[:-1]
    edges = [0, *(np.flatnonzero(differs) + 1).tolist(), len(columns[0])]
    return [slice(start, end) for start, end in pairwise(edges)]

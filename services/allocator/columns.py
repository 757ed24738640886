"""Structures of arrays: one row per container, one array per quantity, and sums over them per application.

A policy's estimates stand in `SlotArrays`, by a slot that a container keeps for its life; everything else in `Rows`.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Final, Protocol, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

IntArray = np.ndarray[Any, np.dtype[np.int64]]
BoolArray = np.ndarray[Any, np.dtype[np.bool_]]
Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]
AppIndex: TypeAlias = NDArray[np.integer[Any]]

UNLIMITED = -1
NO_BOUND = 1 << 62
"""No bound; safe beside one value in a sum."""
PAGE_BYTES: Final = 4096
MARGIN_BYTES: Final = 4 << 20
"""No memory limit is closer to usage than this: v2 memory.max below usage kills (measured/escra.md section 3a)."""
RECLAIM_BYTES: Final = 1 << 20
"""Smaller changes of a memory limit are not worth a write."""


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
    limit_update_seq: IntArray
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


def at(index: NDArray[np.int64]) -> NDArray[np.int64] | slice:
    """Rows as a slice where they are contiguous, which copies nothing."""
    if len(index) and index[-1] - index[0] == len(index) - 1 and (index[1:] > index[:-1]).all():
        return slice(int(index[0]), int(index[-1]) + 1)
    return index


class SlotArrays:
    """Arrays indexed by a container's slot; zeros: no sample yet.

    The cluster state assigns each container a slot for its life, so that adding or removing one moves no other. A
    policy receives `rows`, the slot of every row of its view.
    """

    _columns: ClassVar[dict[str, tuple[type[np.generic], int]]]
    """Array name to element type and width; a width of 0 is a one-dimensional array."""

    def __init__(self, capacity: int) -> None:
        self.capacity = 0
        self.grow(capacity)

    def grow(self, capacity: int) -> None:
        """Grow to at least this capacity, preserving contents. Doubles, so that adding is amortised O(1)."""
        if capacity <= self.capacity and self.capacity:
            return
        capacity = max(capacity, 2 * self.capacity)
        for name, (kind, width) in self._columns.items():
            larger = np.zeros((capacity, width) if width else capacity, kind)
            if self.capacity:
                larger[: self.capacity] = getattr(self, name)
            setattr(self, name, larger)
        self.capacity = capacity

    def forget(self, rows: NDArray[np.int64]) -> None:
        """Reset slots of containers that have gone, or whose application changed its policy."""
        for name in self._columns:
            getattr(self, name)[rows] = 0

    def take(self, slots: Ints) -> Self:
        """What these slots hold, row by row: the state of a decision, which is replaced and never written to."""
        index = at(slots)
        return self._with(len(slots), {name: getattr(self, name)[index] for name in self._columns})

    def put(self, slots: Ints, state: Self) -> None:
        """Write a decision's new state back into these slots."""
        index, columns = at(slots), {name: getattr(state, name) for name in self._columns}
        # A view is of an old column, perhaps of another one, which would be overwritten before it is read.
        columns = {name: column if column.base is None else column.copy() for name, column in columns.items()}
        for name, column in columns.items():
            getattr(self, name)[index] = column

    def replace(self, **columns: NDArray[Any]) -> Self:
        """The same with other columns."""
        return self._with(self.capacity, {name: getattr(self, name) for name in self._columns} | columns)

    def _with(self, capacity: int, columns: dict[str, NDArray[Any]]) -> Self:
        other = type(self).__new__(type(self))
        other.capacity = capacity
        for name, column in columns.items():
            setattr(other, name, column)
        return other

    def copy(self) -> Self:
        """An independent copy, for "what would happen if" and for tests."""
        twin = type(self)(self.capacity)
        for name in self._columns:
            setattr(twin, name, getattr(self, name).copy())
        return twin


class Explained(Protocol):
    """Targets of a policy with their reasons, shape (N,)."""

    @property
    def reason(self) -> NDArray[np.uint8]:
        """`schemas.reasons.Reason`; NONE: unchanged."""

    @property
    def measured(self) -> Floats:
        """Measured value of each reason."""

    @property
    def threshold(self) -> Floats:
        """Threshold of each reason."""


@dataclass(slots=True)
class Reasons:
    """Reasons of one resource's targets; columns of shape (N,) as in `schemas.limits.LimitDecisions`."""

    reason: IntArray
    measured: np.ndarray[Any, np.dtype[np.float64]]
    threshold: np.ndarray[Any, np.dtype[np.float64]]

    @classmethod
    def none(cls, count: int) -> Self:
        """No reasons."""
        return cls(np.zeros(count, dtype=np.int64), np.zeros(count), np.zeros(count))

    def copy_from(self, index: IntArray, targets: Explained) -> None:
        """Copy a policy's reasons for rows ``index`` where it gives one."""
        changed = targets.reason > 0
        rows = index[changed]
        self.reason[rows] = targets.reason[changed]
        self.measured[rows] = targets.measured[changed]
        self.threshold[rows] = targets.threshold[changed]


def per_app(app: AppIndex, values: Ints | Bools, count: int) -> Ints:
    """Sum per application, shape A. Exact for sums below 2**53 (90,000 cores for 1,000,000 containers)."""
    if count == 1:  # bincount goes by way of floating point
        return np.array([values.sum()], dtype=np.int64)
    return np.bincount(app, values, count).astype(np.int64)


def any_per_app(app: AppIndex, flags: Bools, count: int) -> Bools:
    """Whether any row of each application is flagged, shape A."""
    return np.bincount(app[flags], minlength=count) > 0


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

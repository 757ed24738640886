"""Estimates of policies: arrays by a slot that a container keeps for its life, while rows move. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from services.allocator.arrays.array_types import Ints, at

T = TypeVar("T")


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

    def decide(self, slots: Ints, step: Callable[[Self], tuple[T, Self]]) -> T:
        """A policy's targets from what these slots hold, which then hold the state after that step."""
        targets, after = step(self.take(slots))
        self.put(slots, after)
        return targets

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

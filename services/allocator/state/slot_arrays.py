"""Per-container estimator arrays with stable slots."""

from __future__ import annotations

from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray


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

    def copy(self) -> Self:
        """An independent copy, for "what would happen if" and for tests."""
        twin = type(self)(self.capacity)
        for name in self._columns:
            setattr(twin, name, getattr(self, name).copy())
        return twin

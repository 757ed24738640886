"""Estimator memory per container: arrays that rows come to and leave."""

from __future__ import annotations

from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray


def at(index: NDArray[np.int64]) -> NDArray[np.int64] | slice:
    """The same rows as a slice where they follow each other, as mostly they do: that copies nothing."""
    if len(index) and index[-1] - index[0] == len(index) - 1 and (index[1:] > index[:-1]).all():
        return slice(int(index[0]), int(index[-1]) + 1)
    return index


class SlotArrays:
    """Arrays indexed by a container's slot; a slot of zeros is one that never reported.

    The roster gives each container a slot for its life, so that joining and leaving moves no other container's
    memory. A policy is handed `rows`, the slot of every row of its view.
    """

    _columns: ClassVar[dict[str, tuple[type[np.generic], int]]]
    """Array name to element type and width; a width of 0 is a one-dimensional array."""

    def __init__(self, capacity: int) -> None:
        self.capacity = 0
        self.grow(capacity)

    def grow(self, capacity: int) -> None:
        """Make room for at least this many slots; what is there stays. Doubles, so that joining stays cheap."""
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
        """Empty the slots of containers that left, or whose application changed its policy."""
        for name in self._columns:
            getattr(self, name)[rows] = 0

    def copy(self) -> Self:
        """An independent copy, for "what would happen if" and for tests."""
        twin = type(self)(self.capacity)
        for name in self._columns:
            setattr(twin, name, getattr(self, name).copy())
        return twin

"""What was read in the last hour, in arrays of a bounded size: a value a second for ten minutes, means of 10 s before.

Pure. Observations are stored nowhere else: what a console knows begins with its start.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

FINE_POINTS: Final = 600
"""One per tick, a tick per second."""
TICKS_PER_COARSE_POINT: Final = 10
COARSE_POINTS: Final = 360
POINTS: Final = FINE_POINTS + COARSE_POINTS
_VALUE_BYTES: Final = 4

Array = np.ndarray[Any, Any]


class Series(NamedTuple):
    """Values over time."""

    times_s: Array
    """Shape (points,), float64, since the epoch, ascending."""
    values: Array
    """Shape (columns, points), float32; NaN where nothing is known."""


class _Ring:
    """The newest points of every slot."""

    def __init__(self, points: int, slots: int, columns: int) -> None:
        self.times_s = np.full(points, np.nan)
        # Pages of memory that no slot uses are never touched, and take none.
        self.values = np.zeros((slots, columns, points), dtype=np.float32)
        self.at = points - 1

    def advance(self, time_s: float, used_slots: int) -> None:
        self.at = (self.at + 1) % len(self.times_s)
        self.times_s[self.at] = time_s
        self.values[:used_slots, :, self.at] = np.nan

    def in_order(self, slot: int) -> Series:
        times_s = np.roll(self.times_s, -self.at - 1)
        values = np.roll(self.values[slot], -self.at - 1, axis=1)
        known = ~np.isnan(times_s)
        return Series(times_s[known], values[:, known])


class History:
    """A slot of values for each identity. Where all are in use, the one whose identity left first is given again."""

    def __init__(self, columns: int, max_bytes: int) -> None:
        self.capacity = max_bytes // (columns * POINTS * _VALUE_BYTES)
        """Identities that have a history; others have none."""
        self._fine = _Ring(FINE_POINTS, self.capacity, columns)
        self._coarse = _Ring(COARSE_POINTS, self.capacity, columns)
        self._slots: dict[Hashable, int] = {}
        self._released: dict[Hashable, None] = {}

    def claim(self, identities: Iterable[Hashable]) -> Array:
        """The slot of each identity; -1: it has none."""
        return np.array([self._claim(identity) for identity in identities], dtype=np.int64)

    def release(self, identities: Iterable[Hashable]) -> None:
        """These are no longer observed. What is known of them can be read until their slots are needed."""
        self._released.update((identity, None) for identity in identities if identity in self._slots)

    def advance(self, time_s: float) -> None:
        """Begin a tick: of it nothing is known yet. The ten before become one coarse point."""
        ring, used = self._fine, len(self._slots)
        if ring.at % TICKS_PER_COARSE_POINT == TICKS_PER_COARSE_POINT - 1 and not np.isnan(ring.times_s[ring.at]):
            ten = slice(ring.at + 1 - TICKS_PER_COARSE_POINT, ring.at + 1)
            self._coarse.advance(float(ring.times_s[ten].mean()), used)
            self._coarse.values[:used, :, self._coarse.at] = _mean(ring.values[:used, :, ten])
        ring.advance(time_s, used)

    def write(self, slots: Array, values: Array) -> None:
        """Set this tick's values, shape (columns, identities), of slots that `claim` gave."""
        held = slots >= 0
        self._fine.values[slots[held], :, self._fine.at] = values[:, held].T

    def read(self, identity: Hashable) -> Series | None:
        """Everything about an identity, oldest first; None: it is not known."""
        slot = self._slots.get(identity)
        if slot is None:
            return None
        fine, coarse = self._fine.in_order(slot), self._coarse.in_order(slot)
        older = coarse.times_s < fine.times_s[0] if len(fine.times_s) else np.zeros(len(coarse.times_s), dtype=bool)
        times_s = np.concatenate([coarse.times_s[older], fine.times_s])
        values = np.concatenate([coarse.values[:, older], fine.values], axis=1)
        known = np.flatnonzero(~np.isnan(values).all(axis=0))
        begin = known[0] if len(known) else len(times_s)
        return Series(times_s[begin:], values[:, begin:])

    def newest(self, slots: Array, columns: Sequence[int], ticks: int) -> Array:
        """The newest ticks, oldest first, shape (columns, ticks, identities); NaN where nothing is known."""
        at = (self._fine.at + 1 - ticks + np.arange(ticks)) % FINE_POINTS
        values = self._fine.values[np.ix_(np.maximum(slots, 0), np.array(columns), at)]
        values[np.broadcast_to((slots < 0)[:, None, None], values.shape)] = np.nan
        values[:, :, np.isnan(self._fine.times_s[at])] = np.nan
        newest: Array = values.transpose(1, 2, 0)
        return newest

    def _claim(self, identity: Hashable) -> int:
        self._released.pop(identity, None)
        slot = self._slots.get(identity)
        if slot is not None:
            return slot
        if len(self._slots) < self.capacity:
            slot = len(self._slots)
        elif self._released:
            gone = next(iter(self._released))
            del self._released[gone]
            slot = self._slots.pop(gone)
        else:
            return -1
        self._slots[identity] = slot
        for ring in (self._fine, self._coarse):
            ring.values[slot] = np.nan
        return slot


def _mean(values: Array) -> Array:
    """Over the last axis, of what is known; NaN where nothing is."""
    known = ~np.isnan(values)
    count = known.sum(axis=-1)
    total = np.where(known, values, 0.0).sum(axis=-1)
    mean: Array = np.divide(total, count, out=np.full(count.shape, np.nan), where=count > 0)
    return mean

"""One application's containers on one node: batches of 100 ms, folded to a row per container and second. Pure."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from schemas.cfs import CfsBatch, SampleFlag
from schemas.message import ROW_SEPARATOR

COLUMNS: Final = ("used_us", "quota_us", "throttled_share", "memory_bytes", "memory_limit_bytes", "oom_kills")
"""Of a row, all float32. CPU per period; -1: unlimited. Throttled: share of the periods of `THROTTLE_WINDOW_S`."""
THROTTLE_WINDOW_S: Final = 10
_COUNTED: Final = SampleFlag.IDLE | SampleFlag.WALL_CLOCK
"""Rows without a kernel's period that say something about usage all the same."""
_SUMMED: Final = ("periods", "flags", "used_us", "throttled")
MOST_UNSUMMED: Final = 32
"""Batches, of which an agent sends ten a second: one that sends more does not fill the console's memory."""
_USED_SUM, _SAMPLES, _USED = range(3)
_PERIODS: Final = slice(3, 3 + THROTTLE_WINDOW_S)
_THROTTLED: Final = slice(3 + THROTTLE_WINDOW_S, 3 + 2 * THROTTLE_WINDOW_S)

Array = np.ndarray[Any, Any]


class ContainerGroup:
    """Rows in the order of the newest batch."""

    def __init__(self, first: CfsBatch, now_s: float) -> None:
        self.app = first.app
        self.node = first.node
        self.containers = ""
        """Keys, as a batch has them."""
        self.received_s = now_s
        self._newest = first
        self._seconds = 0
        self._sums = np.zeros((_THROTTLED.stop, 0))
        self._unsummed: list[CfsBatch] = []
        """Of the same containers, in the same order."""
        self._take_rows(first)

    @property
    def period_us(self) -> int:
        """The period that CPU time is counted in."""
        return self._newest.period_us

    @property
    def keys(self) -> list[str]:
        """Containers, in the order of the rows."""
        return self._newest.keys

    def add(self, batch: CfsBatch, now_s: float) -> bool:
        """Add a batch of this application and node; returns whether the containers are other ones now."""
        newest = self._newest
        if (batch.incarnation, batch.report_seq) <= (newest.incarnation, newest.report_seq):
            return False
        self.received_s = now_s
        if batch.is_early:
            if batch.containers == self.containers and batch.incarnation == newest.incarnation:
                self._sums[_THROTTLED.start + self._at] += batch.column("throttled")
            return False
        return self._take_rows(batch)

    def next_second(self) -> Array:
        """The rows of the second that ends, shape (columns, containers), float32."""
        self._add_up()
        sums, newest = self._sums, self._newest
        np.divide(sums[_USED_SUM], sums[_SAMPLES], out=sums[_USED], where=sums[_SAMPLES] > 0)
        periods, throttled = sums[_PERIODS].sum(axis=0), sums[_THROTTLED].sum(axis=0)
        share = np.divide(throttled, periods, out=np.zeros(len(periods)), where=periods > 0)
        sums[[_USED_SUM, _SAMPLES]] = 0
        self._seconds += 1
        sums[[_PERIODS.start + self._at, _THROTTLED.start + self._at]] = 0
        measured = (newest.column(name) for name in ("memory_usage_bytes", "memory_limit_bytes", "oom_kills"))
        rows = [sums[_USED], newest.column("quota_us"), np.minimum(share, 1.0), *measured]
        return np.array(rows, dtype=np.float32)

    @property
    def _at(self) -> int:
        return self._seconds % THROTTLE_WINDOW_S

    def _take_rows(self, batch: CfsBatch) -> bool:
        changed = batch.containers != self.containers
        if changed:
            self._add_up()
            self._reorder(batch.keys)
        self._newest, self.containers = batch, batch.containers
        self._unsummed.append(batch)
        if len(self._unsummed) >= MOST_UNSUMMED:
            self._add_up()
        return changed

    def _add_up(self) -> None:
        """A second's batches at once: as arrays of shape (batches, containers)."""
        if not self._unsummed:
            return
        periods, flags, used_us, throttled = (self._stacked(name) for name in _SUMMED)
        counted = (periods > 0) | ((flags & int(_COUNTED)) > 0)
        sums = self._sums
        sums[_USED_SUM] += (used_us * counted).sum(axis=0)
        sums[_SAMPLES] += counted.sum(axis=0)
        sums[_PERIODS.start + self._at] += (np.maximum(periods, 1) * counted).sum(axis=0)
        sums[_THROTTLED.start + self._at] += (throttled * counted).sum(axis=0)
        self._unsummed.clear()

    def _stacked(self, name: str) -> Array:
        data = b"".join([getattr(batch, name) for batch in self._unsummed])
        return np.frombuffer(data, dtype=CfsBatch.column_types[name]).reshape(len(self._unsummed), -1)

    def _reorder(self, keys: list[str]) -> None:
        before = {key: row for row, key in enumerate(self.containers.split(ROW_SEPARATOR))}
        moved = np.array([before.get(key, -1) for key in keys], dtype=np.int64)
        sums = np.zeros((len(self._sums), len(keys)))
        if self._sums.shape[1]:
            sums[:, moved >= 0] = self._sums[:, moved[moved >= 0]]
        self._sums = sums

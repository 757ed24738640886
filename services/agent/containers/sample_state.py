"""What is remembered of each container's samples: a row for each, which follows it as others come and go. Pure."""

from __future__ import annotations

from typing import Any

import numpy as np

from services._host.cgroup_snapshot import COUNTER_COLUMNS, BoolArray, IntArray

NOTHING_REPORTED = -1
NEVER = -1
LONG_AGO_NS = -(1 << 62)
_FILLS = {
    "counters": 0,
    "memory_bytes": 0,
    "read_ns": NEVER,
    "idle": 0,
    "reclaimable_bytes": 0,
    "tracked_bytes": 0,
    "boundary_ns": 0,
    "reported": (NOTHING_REPORTED, NOTHING_REPORTED, 0),
    "used_us": 0,
    "budget_usage_us": 0,
    "budget_quota_us": -1,
    "throttled_ns": LONG_AGO_NS,
    "may_burst": 0,
}
"""Columns, and what a new container begins with."""


class SampleState:
    """Columns of shape (N,); `counters` of shape (N, 5), `reported` of shape (N, 3)."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self._row_of: dict[str, int] = {}
        self._new: set[str] = set()
        self.counters: IntArray = np.zeros((0, COUNTER_COLUMNS), dtype=np.int64)
        """As they were read last."""
        self.memory_bytes: IntArray = np.zeros(0, dtype=np.int64)
        """Memory usage as it was read last, by a sample or an inspection between two."""
        self.read_ns: IntArray = np.zeros(0, dtype=np.int64)
        """When, monotonic; `NEVER`."""
        self.idle: BoolArray = np.zeros(0, dtype=np.bool_)
        self.reclaimable_bytes: IntArray = np.zeros(0, dtype=np.int64)
        self.tracked_bytes: IntArray = np.zeros(0, dtype=np.int64)
        """Usage when the thresholds last followed it."""
        self.boundary_ns: IntArray = np.zeros(0, dtype=np.int64)
        """A boundary of its CFS periods, as read from the kernel; 0: not known."""
        self.reported: IntArray = np.zeros((0, 3), dtype=np.int64)
        """Throttled periods that were reported before they ended (`services.agent.sampling.sampler`)."""
        self.used_us: IntArray = np.zeros(0, dtype=np.int64)
        """Per period, by the last sample."""
        self.budget_usage_us: IntArray = np.zeros(0, dtype=np.int64)
        """Cumulative usage that the next usage is compared with (`services.agent.sampling.sampler`)."""
        self.budget_quota_us: IntArray = np.zeros(0, dtype=np.int64)
        """The quota at that time; negative: none."""
        self.throttled_ns: IntArray = np.zeros(0, dtype=np.int64)
        """Sample in which, or after which, it was throttled last; monotonic."""
        self.may_burst: BoolArray = np.zeros(0, dtype=np.bool_)
        """Its usage is read between two samples (`services.agent.sampling.sampler`)."""

    def reset(self, key: str) -> None:
        """A container was found: whatever is remembered under its key belongs to another one."""
        self._new.add(key)

    def reorder(self, keys: list[str]) -> None:
        """Bring the columns into this order."""
        if keys is self.keys:
            return
        known = [-1 if key in self._new else self._row_of.get(key, -1) for key in keys]
        source = np.array(known, dtype=np.int64)
        for name, fill in _FILLS.items():
            old: np.ndarray[Any, Any] = getattr(self, name)
            new = np.full((len(keys), *old.shape[1:]), fill, dtype=old.dtype)
            new[source >= 0] = old[source[source >= 0]]
            setattr(self, name, new)
        self.keys, self._row_of = keys, {key: row for row, key in enumerate(keys)}
        self._new.clear()

    def row_of(self, key: str) -> int | None:
        """Its row; None: it has not been sampled since it was found."""
        return None if key in self._new else self._row_of.get(key)

    def memory_in_use(self) -> dict[str, int]:
        """By container, bytes that the kernel cannot drop, as far as is known; not of those that were never sampled."""
        used = np.maximum(self.memory_bytes - self.reclaimable_bytes, 0).tolist()
        by_key: dict[str, int] = dict(zip(self.keys, used, strict=True))
        for key in self._new:
            by_key.pop(key, None)
        return by_key

    def note_memory(self, key: str, usage_bytes: int) -> None:
        """Its usage was read between two samples."""
        if (row := self.row_of(key)) is not None:
            self.memory_bytes[row] = usage_bytes

    def is_idle(self, key: str) -> bool:
        """Whether it did nothing in the last period."""
        row = self.row_of(key)
        return row is not None and bool(self.idle[row])

    def boundary_of(self, key: str) -> int:
        """A boundary of its periods, monotonic ns; 0: not known."""
        row = self.row_of(key)
        return 0 if row is None else int(self.boundary_ns[row])

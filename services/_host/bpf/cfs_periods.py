"""Exact CFS periods, from the kernel's own records of each one that ended (kernel/periods.bpf.c, thesis 2.4.2)."""

from __future__ import annotations

import numpy as np

from services._host.cgroup_snapshot import ExactPeriods, IntArray

PERIOD_FIELDS = 8
"""id, time_ns, quota_ns, unused_ns, usage_ns, nr_periods, nr_throttled, throttled_ns: ``struct tb_period`` in order."""
_ID, _TIME, _QUOTA, _UNUSED, _USAGE, _NR_PERIODS, _NR_THROTTLED, _THROTTLED = range(PERIOD_FIELDS)
_COUNTS = (_NR_PERIODS, _NR_THROTTLED, _THROTTLED)
_NONE = -1


class PeriodAccounts:
    """Latest counts of each container's periods."""

    def __init__(self) -> None:
        self._ids: IntArray = np.zeros(0, dtype=np.int64)
        self._by_id: IntArray = self._ids
        """Rows in the order of ids."""
        self._counts: IntArray = np.zeros((0, len(_COUNTS)), dtype=np.int64)

    def track(self, ids: IntArray) -> None:
        """The containers from now on, by their groups' ids; what is known of those that stay is kept."""
        known = dict(zip(self._ids.tolist(), self._counts.tolist(), strict=True))
        nothing = [_NONE] * len(_COUNTS)
        self._counts = np.array([known.get(one, nothing) for one in ids.tolist()], dtype=np.int64).reshape(-1, 3)
        self._ids, self._by_id = ids, np.argsort(ids)

    def fold(self, records: IntArray) -> ExactPeriods:
        """Per-container figures from records of shape (M, 8), in the order of time; other groups are left out."""
        count = len(self._ids)
        at = np.minimum(np.searchsorted(self._ids, records[:, _ID], sorter=self._by_id), max(count - 1, 0))
        rows = self._by_id[at] if count else np.zeros(0, dtype=np.int64)
        known = self._ids[rows] == records[: len(rows), _ID]
        rows, records = rows[known], records[: len(rows)][known]

        before = self._counts.copy()
        self._counts[rows] = records[:, _COUNTS]  # of several records of one group the last one stays
        seen = np.bincount(rows, minlength=count)
        since = np.where(before == _NONE, self._counts, before)
        delta = np.maximum(self._counts - since, 0)
        # The first record of a group has nothing to be compared with.
        periods = np.where(before[:, 0] == _NONE, seen, np.maximum(delta[:, 0], seen)) * (seen > 0)
        divisor = np.maximum(periods, 1) * 1000
        used_ns = np.maximum(records[:, _QUOTA] - records[:, _UNUSED], 0)
        used = np.bincount(rows, weights=used_ns, minlength=count)
        unused = np.bincount(rows, weights=np.maximum(records[:, _UNUSED], 0), minlength=count)
        return ExactPeriods(
            periods,
            np.rint(used / divisor).astype(np.int64),
            np.rint(unused / divisor).astype(np.int64),
            delta[:, 1] * (seen > 0),
            np.rint(delta[:, 2] / divisor).astype(np.int64) * (seen > 0),
        )

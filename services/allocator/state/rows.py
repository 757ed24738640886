"""Structure of arrays: one row per container, one array per quantity; estimates of policies are apart. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from services.allocator.arrays.array_types import BoolArray, IntArray


class Rows:
    """Columns of equal length; rows are appended at the end and removed by mask. Quotas in us per period."""

    app: IntArray
    node: IntArray
    slot: IntArray
    """Stable index into the policies' estimates (`arrays.slot_arrays`); kept for the container's life."""
    reserve: IntArray
    """Row of the container's application and node in `Reserves`."""
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
    observe_only: BoolArray
    """Its application is in mode `observe`: nothing is sent, so the kernel's limits never become the ordered ones."""
    fenced: BoolArray
    """Whether the agent has acknowledged this allocator's epoch for the row's application."""
    unreported: BoolArray
    """Not reported since its agent restarted: counts with its last limits, receives no updates."""
    short_of_cpu: BoolArray
    """It has its floor only, because its application had not even its minimum free (`budget.admission`)."""
    short_of_memory: BoolArray
    short_samples: IntArray
    """Samples for which it has been short of either."""
    mismatches: IntArray
    """Consecutive reports whose kernel values differ from the ordered ones."""
    defied: IntArray
    """Decreases that were not carried out, and that the kernel is not known to refuse, since the last one that was."""
    fresh: BoolArray
    """A new sample arrived since the last step."""
    own_limit: BoolArray
    """No agent had set its memory limit when it was reported: on its node it counts with what it uses."""

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

    quota_floor_us: IntArray
    """The kernel refuses less (`state.kernel_bounds`); 0: not that we know."""
    quota_ceiling_us: IntArray
    """It refuses more; 0: not that we know."""
    quota_retry_ns: IntArray
    """Until when nothing beyond these two is ordered, monotonic."""
    quota_refusals: IntArray
    """Refusals in a row; 0: none."""

    limit_floor_bytes: IntArray
    limit_ceiling_bytes: IntArray
    limit_retry_ns: IntArray
    limit_refusals: IntArray
    bounds_seq: IntArray
    """Newest limit update of which the reply says what the kernel refuses."""

    sampled_ns: IntArray
    """When the newest sample of a whole period was taken, by the agent's clock; 0: none yet."""
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
    """Since the container was found; -1: no sample yet."""

    _BOOLEAN = (
        *("acked", "admitted", "observe_only", "fenced", "unreported", "fresh", "own_limit"),
        *("short_of_cpu", "short_of_memory"),
    )

    def __init__(self) -> None:
        self.count = 0
        self.columns = [name for name in Rows.__annotations__ if not name.startswith("_")]
        for name in self.columns:
            setattr(self, name, np.zeros(0, dtype=np.bool_ if name in self._BOOLEAN else np.int64))

    @property
    def short(self) -> BoolArray:
        """Rows that have their floor only, of CPU or of memory."""
        return self.short_of_cpu | self.short_of_memory

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


@dataclass(frozen=True, slots=True)
class Ordered:
    """Ordered values per row at one moment; quotas in us per period, limits in bytes."""

    quota_us: IntArray
    limit_bytes: IntArray

    @classmethod
    def of(cls, rows: Rows) -> Self:
        """Copies; for containers that are not admitted, the reported ones."""
        return cls(
            np.where(rows.admitted, rows.quota_ordered_us, rows.quota_us),
            np.where(rows.admitted, rows.limit_ordered_bytes, rows.limit_bytes),
        )

"""How often the kernel hit a memory limit without a wait or a kill (memory.failcnt; `max` in memory.events).

The kernel counts every charge that found no room at first, also where reclaim then made some: so a hit says that calls
may have failed, not that they did. Hits are reported together, the first at once and the others every interval.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

REPORT_INTERVAL_NS: Final = 10_000_000_000


@dataclass(slots=True)
class LimitHits:
    """One container's. Times are monotonic nanoseconds."""

    counter: int | None = None
    """As last read; None: never."""
    unreported: int = 0
    reported_ns: int | None = None

    def read(self, counter: int, now_ns: int, *, expected: bool) -> int:
        """Take in the kernel's counter; returns how many hits are to be reported now, 0: none.

        Args:
            counter: since the group was made; one that has fallen was reset externally, and begins anew.
            now_ns: when it was read.
            expected: tasks wait, or the kernel may kill: that is reported by itself.
        """
        before, self.counter = self.counter, counter
        if before is None or expected:
            return 0
        self.unreported += max(counter - before, 0)
        if not self.unreported or (self.reported_ns is not None and now_ns - self.reported_ns < REPORT_INTERVAL_NS):
            return 0
        hits, self.unreported, self.reported_ns = self.unreported, 0, now_ns
        return hits

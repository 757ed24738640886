"""When a batch is stale: its delay is far above the smallest one of its node, and has not been for long. Pure.

Which batches are out of order is said by their sequence (`batch_ingestion`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

STALE_NS: Final = 2_000_000_000
GRACE_NS: Final = 3_000_000_000
"""A burst after a bus freeze lasts milliseconds; a longer uninterrupted run is a clock change."""


@dataclass(slots=True)
class ReportFreshness:
    """Stale-report filter of one node, by differences of one-way delays; needs no synchronised clocks.

    The delay of a message is measured by two clocks, so only differences mean anything: a message is stale if its delay
    is STALE_NS above the smallest one of its node. A clock that is set back looks the same but lasts longer than a
    burst of late messages; after GRACE_NS that delay becomes the new baseline. Nanoseconds, ``now_ns`` monotonic.
    """

    best_delay_ns: int | None = None
    _stale_since_ns: int | None = None

    def is_fresh(self, delay_ns: int, now_ns: int) -> bool:
        """Whether a message with this delay is fresh."""
        if self.best_delay_ns is None or delay_ns < self.best_delay_ns:
            self.best_delay_ns = delay_ns
        if delay_ns - self.best_delay_ns <= STALE_NS:
            self._stale_since_ns = None
            return True
        if self._stale_since_ns is None:
            self._stale_since_ns = now_ns
        if now_ns - self._stale_since_ns < GRACE_NS:
            return False
        self.best_delay_ns, self._stale_since_ns = delay_ns, None
        return True

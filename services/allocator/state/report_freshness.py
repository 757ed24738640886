"""Which messages of a node are too old to act upon, without trusting that two hosts' clocks agree.

The delay of a message is measured by two clocks, so only its differences mean anything: a message is stale where it was
under way for STALE_NS longer than the fastest one of its node. A clock that is set back looks the same, but goes on for
longer than a burst of late messages does: then that delay becomes the new normal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

STALE_NS: Final = 2_000_000_000
PATIENCE_NS: Final = 3_000_000_000
"""A burst after a freeze of the bus takes milliseconds: what goes on for this long without a break is the truth."""


@dataclass(slots=True)
class Punctuality:
    """What is known of one node's messages. Times in nanoseconds, ``now_ns`` monotonic."""

    best_delay_ns: int | None = None
    _stale_since_ns: int | None = None

    def is_fresh(self, delay_ns: int, now_ns: int) -> bool:
        """Whether a message with this delay may be acted upon."""
        if self.best_delay_ns is None or delay_ns < self.best_delay_ns:
            self.best_delay_ns = delay_ns
        if delay_ns - self.best_delay_ns <= STALE_NS:
            self._stale_since_ns = None
            return True
        if self._stale_since_ns is None:
            self._stale_since_ns = now_ns
        if now_ns - self._stale_since_ns < PATIENCE_NS:
            return False
        self.best_delay_ns, self._stale_since_ns = delay_ns, None
        return True

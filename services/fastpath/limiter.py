"""Rate limits of received datagrams: a token bucket per source, applied before decoding and HMAC. Pure.

A host sends at most 8 repeats of a fault and as many acknowledgements, and the damper lets it have 3 faults of an
uplink within 10 s: so a host's own bucket is never empty. A source whose bucket is empty is denied for a second, in the
kernel (`packet_filter`). A second bucket, for all sources together, bounds what a flood of many sources costs.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from services._runtime.token_bucket import TokenBucket

SOURCE_BURST: Final = 256.0
SOURCE_PER_S: Final = 64.0
DENIED_S: Final = 1.0
TOTAL_BURST: Final = 8_192.0
"""A failed switch is announced by every host at once, and each acknowledges: twice 500, and repeats."""
TOTAL_PER_S: Final = 2_000.0
PAUSE_S: Final = 0.01
MAX_DENIED: Final = 64
_MAX_SOURCES: Final = 1_024
_REPORT_INTERVAL_S: Final = 60.0


class Denied(NamedTuple):
    """A denied source, and the reason."""

    source: str
    reason: str


class SourceLimiter:
    """The buckets of all sources, and the denied ones."""

    def __init__(self, now_s: float) -> None:
        self._buckets: dict[str, TokenBucket] = {}
        """By source, the most recently used last."""
        self._total = TokenBucket(TOTAL_BURST, TOTAL_PER_S, now_s)
        self._reported_s: dict[str, float] = {}
        self.denied: dict[str, float] = {}
        """Expiry by source, in order."""
        self.changes = 0
        """Number of changes of `denied`."""
        self.paused_until_s = 0.0
        """No datagram is read until then."""
        self.newly_denied: list[Denied] = []
        """Newly denied sources, each at most once a minute; the reader clears it."""

    def allow(self, source: str, now_s: float) -> bool:
        """Whether to process a datagram of this source."""
        if source in self.denied:
            return False
        if not self._total.take(now_s):
            self.paused_until_s = now_s + PAUSE_S
            return False
        bucket = self._buckets.pop(source, None) or TokenBucket(SOURCE_BURST, SOURCE_PER_S, now_s)
        self._buckets[source] = bucket
        if len(self._buckets) > _MAX_SOURCES:
            del self._buckets[next(iter(self._buckets))]
        if bucket.take(now_s):
            return True
        self._deny(source, now_s)
        return False

    def _deny(self, source: str, now_s: float) -> None:
        self.denied[source] = now_s + DENIED_S
        self.changes += 1
        if len(self.denied) > MAX_DENIED:
            del self.denied[next(iter(self.denied))]
        if now_s >= self._reported_s.pop(source, -_REPORT_INTERVAL_S) + _REPORT_INTERVAL_S:
            rate = f"more than {SOURCE_BURST:g} datagrams at once, and {SOURCE_PER_S:g} a second"
            self.newly_denied.append(Denied(source, f"{source} sends {rate}: dropped for {DENIED_S:g} s at a time"))
            self._reported_s[source] = now_s
        if len(self._reported_s) > _MAX_SOURCES:
            del self._reported_s[next(iter(self._reported_s))]

    @property
    def due_s(self) -> float:
        """When the next `expire` is due."""
        return next(iter(self.denied.values()), float("inf"))

    def expire(self, now_s: float) -> None:
        """Accept sources again whose denial has expired."""
        for source in [source for source, until_s in self.denied.items() if now_s >= until_s]:
            del self.denied[source]
            self.changes += 1

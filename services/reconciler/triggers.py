"""Reconcile triggers: debounced kernel events, resync timers within a CPU budget, exponential backoff. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

DEBOUNCE_S: Final = 0.005
"""Reconcile once no event has arrived for this long ..."""
MAX_DEBOUNCE_S: Final = 0.050
"""... and at the latest this long after the first event."""
MIN_BACKOFF_S: Final = 0.010
MAX_BACKOFF_S: Final = 1.0
MAX_RESYNC_INTERVAL_S: Final = 120.0
"""Between full reconciles, whatever they cost."""
ROUTE_CAUSES: Final = frozenset({"route", "rule", "nexthop", "hint"})
"""No tc rule depends on these (I11): a route-only reconcile is enough."""


@dataclass(slots=True)
class EventBatch:
    """Debounced events since the last reconcile, counted by cause."""

    causes: Counter[str] = field(default_factory=Counter)
    first_s: float = 0.0
    last_s: float = 0.0

    def add(self, causes: Mapping[str, int], now_s: float) -> None:
        """Count events."""
        if not causes:
            return
        if not self.causes:
            self.first_s = now_s
        self.causes.update(causes)
        self.last_s = now_s

    def due_s(self) -> float | None:
        """When a reconcile is due; None: no events."""
        return min(self.last_s + DEBOUNCE_S, self.first_s + MAX_DEBOUNCE_S) if self.causes else None

    def take(self) -> EventBatch:
        """Return the collected events and start an empty batch."""
        taken = EventBatch(self.causes, self.first_s, self.last_s)
        self.causes = Counter()
        return taken

    @property
    def only_routes(self) -> bool:
        """Whether no event of the batch can change a tc rule."""
        return self.causes.keys() <= ROUTE_CAUSES


@dataclass(slots=True)
class ResyncTimers:
    """Resyncs without an event: intervals grow with their cost, so that they stay within the CPU share."""

    interval_s: float
    cpu_share: float
    full_s: float = 0.0
    """When the next full reconcile is due."""
    probe_s: float = 0.0
    """When the next probe is due."""
    retry_s: float | None = None
    _backoff_s: float = MIN_BACKOFF_S

    def started(self, now_s: float) -> None:
        """Start both timers; the first reconcile is triggered separately."""
        self.full_s = self.probe_s = now_s + self.interval_s

    def reconciled(self, now_s: float, cpu_s: float, *, failed: bool) -> None:
        """A full reconcile ended, at this processor time; after a failure a retry is scheduled."""
        self.full_s = now_s + self._wait_s(cpu_s)
        self.probe_s = max(self.probe_s, now_s + self.interval_s)
        if not failed:
            self.retry_s, self._backoff_s = None, MIN_BACKOFF_S
            return
        # Retries use at most half of a core.
        self.retry_s = now_s + max(self._backoff_s, cpu_s)
        self._backoff_s = min(2 * self._backoff_s, MAX_BACKOFF_S)

    def probed(self, now_s: float, cpu_s: float) -> None:
        """A probe ended, at this processor time."""
        self.probe_s = now_s + self._wait_s(cpu_s)

    def next_s(self) -> float:
        """The earliest deadline."""
        due_s = min(self.full_s, self.probe_s)
        return due_s if self.retry_s is None else min(due_s, self.retry_s)

    def _wait_s(self, cpu_s: float) -> float:
        # Full reconciles and probes get half of the share each.
        return min(max(self.interval_s, 2 * cpu_s / self.cpu_share), max(self.interval_s, MAX_RESYNC_INTERVAL_S))

"""When to write a lower quota: just after the container's own period boundary.

Every quota write refills the bandwidth, even one of the same value (measured: a 10 ms quota rewritten blindly every
100 ms burns 19 ms; written within 2 ms after the boundary, 10.2 ms). Boundaries are a property of each cgroup's
timer, 100 ms apart, and keep their phase while idle (kernel/sched/fair.c forwards the timer by whole periods). So a
boundary that was seen once predicts all later ones, and the next decrease needs one read instead of fifty. Waking the
process costs more than the read, so decreases that fall due close together are read together.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from schemas.apps import PERIOD_US

PERIOD_NS = PERIOD_US * 1_000
COALESCE_NS = 4_000_000
"""Reads of several containers fall on multiples of this: a write up to 4 ms late refills what 4 ms could use."""
CONFIRM_INTERVAL_NS = 1_000_000
"""Between reads once the boundary is due."""
EARLY_NS = 3_000_000
"""Before a predicted boundary: a read here proves that it has not passed yet, timers and doubt included."""
GUARD_NS = 200_000
"""After a predicted boundary, so that the timer has run."""
PHASE_VALID_NS = 30_000_000_000
"""For this long after a boundary was seen, its prediction needs no proof; then it is searched again."""
DEADLINE_NS = 130_000_000
"""A container that shows no boundary for this long has stopped running: its refill does no harm."""
LEARN_NS = 5_500_000
"""A boundary seen with at most this doubt is remembered."""
LATE_NS = 8_000_000
"""A boundary seen with more than this doubt is not written at, once: the next one is better known."""


PREDICTED = -1
"""In place of a count of periods: the boundary is known, and nothing has to be read."""


@dataclass(slots=True)
class PendingDecrease:
    """A decrease that waits for its boundary."""

    container: str
    order: tuple[int, int]
    nr_periods: int
    last_read_ns: int
    next_read_ns: int
    deadline_ns: int
    expected_ns: int | None = None
    """The boundary that is trusted to pass then."""
    late: bool = False


@dataclass(slots=True)
class BoundaryQueue:
    """Pending decreases and the phases learnt so far. Times are monotonic nanoseconds."""

    pending: dict[str, PendingDecrease] = field(default_factory=dict)
    boundaries_ns: dict[str, int] = field(default_factory=dict)
    """Latest seen boundary per container."""

    def add_predicted(self, container: str, order: tuple[int, int], boundary_ns: int, now_ns: int) -> bool:
        """Add a decrease whose boundary is known without reading: the kernel has named one (past or to come).

        False: one has just passed, so that the decrease may be written at once.
        """
        since_ns = (now_ns - boundary_ns) % PERIOD_NS
        if GUARD_NS <= since_ns <= COALESCE_NS:
            return False
        expected_ns = now_ns - since_ns + (PERIOD_NS if since_ns else 0)
        wake_ns = _coalesced(expected_ns + GUARD_NS)
        self.pending[container] = PendingDecrease(container, order, PREDICTED, now_ns, wake_ns, wake_ns, expected_ns)
        return True

    def boundary_passed(self, decrease: PendingDecrease, now_ns: int) -> bool:
        """Whether a predicted boundary has just passed; True: write now (the decrease is no longer pending)."""
        expected_ns = decrease.expected_ns or 0
        late_ns = now_ns - expected_ns
        if late_ns > LATE_NS and not decrease.late:
            decrease.late = True
            decrease.expected_ns = expected_ns + -(-late_ns // PERIOD_NS) * PERIOD_NS
            decrease.next_read_ns = _coalesced(decrease.expected_ns + GUARD_NS)
            return False
        del self.pending[decrease.container]
        return True

    def add(self, container: str, order: tuple[int, int], nr_periods: int, now_ns: int) -> bool:
        """Add a decrease; it replaces one of the same container, but keeps its place.

        Updates may come every period just after the boundary and before its reading: if each began to wait anew, none
        would be written for as long as they change.

        False: a boundary has just passed, so that the decrease may be written at once.
        """
        older = self.pending.get(container)
        if older is not None and older.nr_periods != PREDICTED:
            if nr_periods != older.nr_periods and self.read(older, nr_periods, now_ns):
                return False
            older.order = order
            return True
        decrease = PendingDecrease(container, order, nr_periods, now_ns, 0, now_ns + DEADLINE_NS)
        seen_ns = self.boundaries_ns.get(container)
        if seen_ns is not None and now_ns - seen_ns < PHASE_VALID_NS:
            decrease.expected_ns = now_ns + PERIOD_NS - (now_ns - seen_ns) % PERIOD_NS
            decrease.next_read_ns = _coalesced(decrease.expected_ns + GUARD_NS)
        else:
            decrease.next_read_ns = self._next_read(container, now_ns)
        self.pending[container] = decrease
        return True

    def discard(self, container: str, order: tuple[int, int]) -> None:
        """Forget the decrease, if it is still of this update; not the phase."""
        pending = self.pending.get(container)
        if pending is not None and pending.order == order:
            del self.pending[container]

    def forget(self, container: str) -> None:
        """The container is gone."""
        self.pending.pop(container, None)
        self.boundaries_ns.pop(container, None)

    def next_wake_ns(self) -> int | None:
        """When the next read is due, or None if nothing waits."""
        return min((decrease.next_read_ns for decrease in self.pending.values()), default=None)

    def due(self, now_ns: int) -> list[PendingDecrease]:
        """Decreases whose container must be read now."""
        return [decrease for decrease in self.pending.values() if decrease.next_read_ns <= now_ns]

    def read(self, decrease: PendingDecrease, nr_periods: int, now_ns: int) -> bool:
        """Take a reading; True: write now (the decrease is no longer pending)."""
        if nr_periods == decrease.nr_periods:
            if now_ns >= decrease.deadline_ns:
                del self.pending[decrease.container]
                self.boundaries_ns.pop(decrease.container, None)
                return True
            decrease.last_read_ns = now_ns
            decrease.next_read_ns = self._retry(decrease, now_ns)
            return False
        uncertainty_ns = now_ns - decrease.last_read_ns
        if decrease.expected_ns is not None and 0 <= now_ns - decrease.expected_ns <= LATE_NS:
            del self.pending[decrease.container]
            return True
        if uncertainty_ns > LATE_NS and not decrease.late:
            decrease.late = True
            decrease.nr_periods, decrease.last_read_ns, decrease.deadline_ns = nr_periods, now_ns, now_ns + DEADLINE_NS
            decrease.next_read_ns = self._next_read(decrease.container, now_ns)
            return False
        if uncertainty_ns <= LEARN_NS:
            self.boundaries_ns[decrease.container] = now_ns - uncertainty_ns // 2
        elif uncertainty_ns > LATE_NS:
            self.boundaries_ns.pop(decrease.container, None)
        del self.pending[decrease.container]
        return True

    def _next_read(self, container: str, now_ns: int) -> int:
        seen_ns = self.boundaries_ns.get(container)
        if seen_ns is None:
            return _coalesced(now_ns + 1)
        left_ns = PERIOD_NS - (now_ns - seen_ns) % PERIOD_NS
        return now_ns + (left_ns - EARLY_NS if left_ns > 2 * EARLY_NS else left_ns + GUARD_NS)

    def _retry(self, decrease: PendingDecrease, now_ns: int) -> int:
        """When to read again after no boundary was seen."""
        seen_ns = self.boundaries_ns.get(decrease.container)
        if seen_ns is None:
            return _coalesced(now_ns + 1)
        since_ns = (now_ns - seen_ns) % PERIOD_NS
        left_ns = PERIOD_NS - since_ns
        if left_ns <= 2 * EARLY_NS + COALESCE_NS:
            return now_ns + left_ns + GUARD_NS
        if since_ns <= LATE_NS:
            return now_ns + CONFIRM_INTERVAL_NS
        if not decrease.late:  # it may have passed just before the update came: the next one decides
            decrease.late = True
            return now_ns + left_ns - EARLY_NS
        del self.boundaries_ns[decrease.container]  # the prediction was wrong: the phase has moved, search for it
        return _coalesced(now_ns + 1)


def _coalesced(time_ns: int) -> int:
    """The next common reading time, not before ``time_ns``."""
    return -(-time_ns // COALESCE_NS) * COALESCE_NS

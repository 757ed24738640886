"""Flood guard: how much is read of each node, and which nodes are not read at all for a while. Pure.

An agent sends one batch per application and period of 100 ms, and up to nine early ones between two where containers
are throttled; a node of 200 applications sends 2,000 to 6,000 messages a second, one of 10,000 containers in one
application 11 MB. A budget is two token buckets: one per application and node, in messages, and one per node, in units
of a message and of 4 KiB. What exceeds either is dropped. A node of which much is dropped is quarantined: nothing of
it is received for some seconds, and twice as long each time that it goes on afterwards.

After a pause of this process all that has waited meanwhile arrives at once. So a node is quarantined only where much is
dropped for some time, or very much.

Node and application names are tokens of subjects here; times are monotonic seconds.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

from services._runtime.token_bucket import TokenBucket

UNIT_BYTES: Final = 4096
TOLERATED_UNITS: Final = 1_000.0
"""Dropped within `WINDOW_S`: with more the node is quarantined, once it has been dropped for `TOLERATED_S`."""
TOLERATED_S: Final = 0.1
HARD_UNITS: Final = 16_000.0
"""With more dropped it is quarantined at once."""
WINDOW_S: Final = 10.0
FIRST_QUARANTINE_S: Final = 10.0
LONGEST_QUARANTINE_S: Final = 320.0


class Kind(StrEnum):
    """What is received of nodes."""

    BATCH = "batch"
    REQUEST = "memory request"


class Budget(NamedTuple):
    """What is read of a node."""

    app_burst: float
    """Messages of one application at once."""
    app_per_s: float
    node_burst: float
    """Units of all applications together at once."""
    node_per_s: float


BUDGETS: Final = {
    Kind.BATCH: Budget(app_burst=500.0, app_per_s=250.0, node_burst=4_000.0, node_per_s=8_000.0),
    Kind.REQUEST: Budget(app_burst=100.0, app_per_s=50.0, node_burst=1_000.0, node_per_s=400.0),
}


class Quarantine(NamedTuple):
    """A node of which nothing is received."""

    node: str
    kind: Kind
    """What it sent too much of."""
    seconds: float
    dropped: int
    """Messages of it that were dropped until then, since it was last within its budget for `WINDOW_S`."""


@dataclass(slots=True)
class _Excess:
    """What was dropped of one node lately."""

    since_s: float
    units: float = 0.0
    messages: int = 0


@dataclass(slots=True)
class FloodGuard:
    """Budgets of all nodes."""

    dropped: Counter[Kind] = field(default_factory=Counter)
    """Messages."""
    quarantined: dict[str, float] = field(default_factory=dict)
    """Nodes, and until when."""
    newly_quarantined: list[Quarantine] = field(default_factory=list)
    """The reader clears it."""
    _buckets: dict[tuple[Kind, str, str], TokenBucket] = field(default_factory=dict)
    """By kind, node and application; an empty one: all of the node's."""
    _excess: dict[str, _Excess] = field(default_factory=dict)
    _last: dict[str, tuple[float, float]] = field(default_factory=dict)
    """End and length of each node's last quarantine, as long as the next one is to be longer."""

    def admit(self, kind: Kind, app: str, node: str, size_bytes: int, now_s: float) -> bool:
        """Whether to read a message; False: it is dropped, and counted."""
        units = 1.0 + size_bytes / UNIT_BYTES
        if node not in self.quarantined:
            budget = BUDGETS[kind]
            of_node = self._bucket((kind, node, ""), budget.node_burst, budget.node_per_s, now_s)
            # The node's first: it bounds how many applications it can invent.
            if of_node.take(now_s, units):
                of_app = self._bucket((kind, node, app), budget.app_burst, budget.app_per_s, now_s)
                if of_app.take(now_s):
                    return True
            self._record_excess(kind, node, units, now_s)
        self.dropped[kind] += 1
        return False

    def _bucket(self, key: tuple[Kind, str, str], burst: float, per_s: float, now_s: float) -> TokenBucket:
        if (bucket := self._buckets.get(key)) is None:
            bucket = self._buckets[key] = TokenBucket(burst, per_s, now_s)
        return bucket

    def _record_excess(self, kind: Kind, node: str, units: float, now_s: float) -> None:
        excess = self._excess.get(node)
        if excess is None or now_s - excess.since_s > WINDOW_S:
            excess = self._excess[node] = _Excess(now_s)
        excess.units += units
        excess.messages += 1
        lasting = excess.units > TOLERATED_UNITS and now_s - excess.since_s >= TOLERATED_S
        if lasting or excess.units > HARD_UNITS:
            _, before_s = self._last.get(node, (0.0, FIRST_QUARANTINE_S / 2))
            seconds = min(2 * before_s, LONGEST_QUARANTINE_S)
            self.quarantined[node] = now_s + seconds
            self._last[node] = now_s + seconds, seconds
            self.newly_quarantined.append(Quarantine(node, kind, seconds, excess.messages))
            del self._excess[node]

    def expire(self, now_s: float) -> list[str]:
        """End quarantines that are over, and forget what is as if nothing had been sent; returns the former."""
        over = [node for node, until_s in self.quarantined.items() if now_s >= until_s]
        for node in over:
            del self.quarantined[node]
        self._buckets = {key: bucket for key, bucket in self._buckets.items() if not bucket.is_full(now_s)}
        self._excess = {node: each for node, each in self._excess.items() if now_s - each.since_s <= WINDOW_S}
        self._last = {node: (end_s, long_s) for node, (end_s, long_s) in self._last.items() if now_s < end_s + long_s}
        return over

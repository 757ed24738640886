"""What is told of each override, as fields of `schemas.network.RouteEvent`. Pure; written after the fact.

One record per destination; where the same happens to many at once, one for up to 500 of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from services.fastpath.peers import Announcement
from services.fastpath.routes import gateway_text
from services.fastpath.values import GroupChange, Hop, Outcome, Overridden, Released, Status

SEPARATE: Final = 16
"""Up to so many destinations at once have a record each."""
TOGETHER: Final = 500
KEPT: Final = 8_192

Record = dict[str, Any]


class Trigger(NamedTuple):
    """What led to writes."""

    cause: str
    uplink: str
    """Empty: not one in particular."""
    peer: str
    """Router id of the ToR, or the VTEP that told of it."""
    wall_ns: int
    noticed_s: float
    acked_s: float
    """When the kernel had answered the last write."""


class Audit:
    """Makes records and keeps them until they are taken; the oldest are dropped, and counted, when nobody does."""

    def __init__(self, name_of: Callable[[int], str]) -> None:
        """Begin.

        Args:
            name_of: the name of a link by its ifindex.
        """
        self._name_of = name_of
        self._held: dict[int, list[Record]] = {}
        """Overrides that wait for acknowledgements, by announcement."""
        self._queue: deque[tuple[Record, int]] = deque()
        """In order; what stands behind an override that waits is told after it."""
        self.ready: deque[Record] = deque()
        self.dropped = 0

    def add(self, outcome: Outcome, trigger: Trigger, announcement: Announcement | None) -> None:
        """What an input led to. Overrides that others are told of wait for their acknowledgements."""
        records = self._overrides([*outcome.overridden, *_overridden(outcome.groups)], trigger)
        number = 0
        if announcement is not None and announcement.waiting and records:
            number = announcement.number
            self._held[number] = records
        self._put(records, number)
        self._put(self._releases([*outcome.released, *_released(outcome.groups)], trigger))
        self._put([_status(status, trigger) for status in outcome.statuses])

    def status(self, status: Status, wall_ns: int) -> None:
        """Something of the process itself, or of a session."""
        self._put([_status(status, Trigger(status.kind, "", "", wall_ns, 0.0, 0.0))])

    def told(self, announcement: Announcement) -> None:
        """All have acknowledged, or will not."""
        records = self._held.pop(announcement.number, [])
        heard = announcement.asked - len(announcement.waiting)
        after_us = round((announcement.last_ack_s - announcement.started_s) * 1e6) if heard else 0
        for record in records:
            record["peer_ack_us"] = max(after_us, 0)
            record["reason"] += f"; {heard} of {announcement.asked} hosts have acknowledged"
        self._advance()

    def release_held(self) -> None:
        """Nobody waits for acknowledgements any more."""
        self._held.clear()
        self._advance()

    def _put(self, records: Sequence[Record], number: int = 0) -> None:
        self._queue.extend((record, number) for record in records)
        self._advance()

    def _advance(self) -> None:
        while self._queue and self._queue[0][1] not in self._held:
            if len(self.ready) >= KEPT:
                self.ready.popleft()
                self.dropped += 1
            self.ready.append(self._queue.popleft()[0])

    def _hops(self, hops: Sequence[Hop]) -> list[str]:
        texts = []
        for hop in hops:
            gateway = gateway_text(hop)
            name = self._name_of(hop.ifindex)
            texts.append(f"{gateway}@{name}" if gateway else name)
        return texts

    def _overrides(self, overridden: Sequence[Overridden], trigger: Trigger) -> list[Record]:
        groups: dict[tuple[tuple[Hop, ...], ...], list[str]] = {}
        for row in overridden:
            groups.setdefault((row.before, row.after), []).append(row.destination)
        return [
            {
                "kind": "override",
                "time_ns": trigger.wall_ns,
                "destination": names[0],
                "also": names[1:],
                "interface": trigger.uplink,
                "cause": trigger.cause,
                "peer": trigger.peer,
                "latency_us": max(round((trigger.acked_s - trigger.noticed_s) * 1e6), 0),
                "before": self._hops(before),
                "after": self._hops(after),
                "reason": f"a failed next hop was removed for {_some(names)}",
            }
            for (before, after), members in groups.items()
            for names in _parts(members)
        ]

    def _releases(self, released: Sequence[Released], trigger: Trigger) -> list[Record]:
        groups: dict[Released, list[Released]] = {}
        for row in released:
            groups.setdefault(row._replace(destination="", held_s=0.0), []).append(row)
        return [
            {
                "kind": "override_removed",
                "time_ns": trigger.wall_ns,
                "destination": names[0],
                "also": names[1:],
                "interface": ",".join(common.uplinks),
                "cause": str(common.reason),
                "before": self._hops(common.before),
                "after": self._hops(common.after),
                "latency_us": max(round(held_s * 1e6), 0),
                "reason": f"{_some(names)} handed back after {held_s * 1e3:.1f} ms; overridden for {common.cause}",
            }
            for common, members in groups.items()
            for held_s in [max(row.held_s for row in members)]
            for names in _parts([row.destination for row in members])
        ]


def _overridden(groups: Sequence[GroupChange]) -> list[Overridden]:
    return [
        Overridden(name, group.routes[name].hops, row.hops)
        for group in groups
        if group.reason is None
        for name, row in group.rows.items()
        if name in group.routes
    ]


def _released(groups: Sequence[GroupChange]) -> list[Released]:
    return [
        Released(
            name,
            (group.uplink,),
            str(group.cause),
            group.reason,
            group.held_s,
            row.hops,
            group.routes[name].hops if name in group.routes else (),
        )
        for group in groups
        if group.reason is not None
        for name, row in group.rows.items()
    ]


def _parts(names: list[str]) -> list[list[str]]:
    size = 1 if len(names) <= SEPARATE else TOGETHER
    return [names[start : start + size] for start in range(0, len(names), size)]


def _some(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{len(names)} destinations"


def _status(status: Status, trigger: Trigger) -> Record:
    return {
        "kind": "fast_path",
        "time_ns": trigger.wall_ns,
        "cause": status.kind,
        "interface": status.uplink,
        "peer": status.peer,
        "alarm": status.alarm,
        "reason": status.reason,
    }

"""Event records of overrides, as fields of `schemas.network.RouteEvent`. Pure; made after the writes.

One record per destination; equal changes of many destinations are merged, up to 500 per record.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from services.fastpath.protocol import Announcement
from services.fastpath.values import BackupTableChange, Hop, Outcome, Overridden, Removed, Status

MAX_SEPARATE_RECORDS: Final = 16
"""Up to this many destinations at once have a record each."""
MAX_DESTINATIONS: Final = 500
MAX_RECORDS: Final = 8_192

Record = dict[str, Any]


class Trigger(NamedTuple):
    """The input that led to writes."""

    cause: str
    uplink: str
    """Empty: none in particular."""
    peer: str
    """Router id of the ToR, or the VTEP that signalled it."""
    wall_ns: int
    noticed_s: float
    acked_s: float
    """When the kernel had acknowledged the last write."""


class EventRecorder:
    """Makes records and queues them; above `MAX_RECORDS` the oldest are dropped, and counted."""

    def __init__(self, hop_text: Callable[[Hop], str]) -> None:
        """Start empty.

        Args:
            hop_text: a next hop as ``interface`` or ``gateway@interface``.
        """
        self._hop_text = hop_text
        self._awaiting_acks: dict[int, list[Record]] = {}
        """Records that wait for acknowledgements, by announcement."""
        self._queue: deque[tuple[Record, int]] = deque()
        """In order: records behind a waiting one are sent after it."""
        self.ready: deque[Record] = deque()
        self.dropped = 0

    def add(self, outcome: Outcome, trigger: Trigger, announcement: Announcement | None) -> None:
        """Record the output of an input. Records of announced overrides wait for the acknowledgements."""
        records = self._overrides([*outcome.overridden, *_overridden(outcome.table_changes)], trigger)
        number = 0
        if announcement is not None and announcement.unacknowledged and records:
            number = announcement.number
            self._awaiting_acks[number] = records
        self._put(records, number)
        self._put(self._removals([*outcome.removed, *_released(outcome.table_changes)], trigger))
        self._put([_status(status, trigger) for status in outcome.statuses])

    def status(self, status: Status, wall_ns: int) -> None:
        """Record a status event."""
        self._put([_status(status, Trigger(status.kind, "", "", wall_ns, 0.0, 0.0))])

    def acknowledged(self, announcement: Announcement) -> None:
        """Complete the records of an ended announcement."""
        records = self._awaiting_acks.pop(announcement.number, [])
        confirmed = announcement.recipients - len(announcement.unacknowledged)
        after_us = round((announcement.last_ack_s - announcement.started_s) * 1e6) if confirmed else 0
        for record in records:
            record["peer_ack_us"] = max(after_us, 0)
            record["reason"] += f"; {confirmed} of {announcement.recipients} hosts have acknowledged"
        self._advance()

    def stop_waiting(self) -> None:
        """Release all records that wait for acknowledgements."""
        self._awaiting_acks.clear()
        self._advance()

    def _put(self, records: Sequence[Record], number: int = 0) -> None:
        self._queue.extend((record, number) for record in records)
        self._advance()

    def _advance(self) -> None:
        while self._queue and self._queue[0][1] not in self._awaiting_acks:
            if len(self.ready) >= MAX_RECORDS:
                self.ready.popleft()
                self.dropped += 1
            self.ready.append(self._queue.popleft()[0])

    def _hops(self, hops: Sequence[Hop]) -> list[str]:
        return [self._hop_text(hop) for hop in hops]

    def _overrides(self, overridden: Sequence[Overridden], trigger: Trigger) -> list[Record]:
        table_changes: dict[tuple[tuple[Hop, ...], ...], list[str]] = {}
        for row in overridden:
            table_changes.setdefault((row.before, row.after), []).append(row.destination)
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
            for (before, after), members in table_changes.items()
            for names in _parts(members)
        ]

    def _removals(self, removed: Sequence[Removed], trigger: Trigger) -> list[Record]:
        table_changes: dict[Removed, list[Removed]] = {}
        for row in removed:
            table_changes.setdefault(row._replace(destination="", held_s=0.0), []).append(row)
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
            for common, members in table_changes.items()
            for held_s in [max(row.held_s for row in members)]
            for names in _parts([row.destination for row in members])
        ]


def _overridden(table_changes: Sequence[BackupTableChange]) -> list[Overridden]:
    return [
        Overridden(name, group.routes[name].hops, row.hops)
        for group in table_changes
        if group.reason is None
        for name, row in group.rows.items()
        if name in group.routes
    ]


def _released(table_changes: Sequence[BackupTableChange]) -> list[Removed]:
    return [
        Removed(
            name,
            (group.uplink,),
            str(group.cause),
            group.reason,
            group.held_s,
            row.hops,
            group.routes[name].hops if name in group.routes else (),
        )
        for group in table_changes
        if group.reason is not None
        for name, row in group.rows.items()
    ]


def _parts(names: list[str]) -> list[list[str]]:
    size = 1 if len(names) <= MAX_SEPARATE_RECORDS else MAX_DESTINATIONS
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

"""OomEvents in numbers and in words. Pure: `top`, `explain` and the demo's report share it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Final

from schemas.codec import to_plain
from schemas.oom import OomCause, OomCounters, OomEvent, OomKind
from services._runtime.command.output import format_bytes, format_duration

SEVERE_KINDS: Final = frozenset({OomKind.GRANT_DENIED, OomKind.OOM_KILLER_ENABLED, OomKind.KILL, OomKind.LIMIT_HITS})
"""What a person asks about afterwards."""
_BY: Final = {
    OomCause.WATCHDOG: " by the watchdog",
    OomCause.DEADLINE: " at the deadline",
    OomCause.SHUTDOWN: " as the agent stopped",
}


@dataclass(slots=True)
class MemoryCounters(OomCounters):
    """What happened to the memory of a container, or of an application's containers together."""

    slowest_grant_us: int = 0
    longest_pause_us: int = 0

    def add(self, event: OomEvent) -> None:
        """Count one event."""
        self.count(event.kind, granted_bytes(event), event.limit_hits)
        self.longest_pause_us = max(self.longest_pause_us, event.blocked_us)
        if event.kind is OomKind.GRANT:
            self.slowest_grant_us = max(self.slowest_grant_us, event.latency_us)

    def plain(self) -> dict[str, int]:
        """As plain JSON types."""
        return dataclasses.asdict(self)

    def in_words(self) -> str:
        """Only what happened: ``12 grants (384 MiB), 1 OOM wait (longest 3 ms)``; empty if nothing did."""
        granted = f" ({format_bytes(self.granted_bytes)})"
        waited = f" (longest {format_duration(self.longest_pause_us)})" if self.longest_pause_us else ""
        parts = (
            _counted(self.grants, "grant", granted),
            _counted(self.oom_waits, "OOM wait", waited),
            _counted(self.grants_denied, "denied grant"),
            _counted(self.oom_killer_enabled, "wait", " ended by the OOM killer"),
            _counted(self.kills, "kill"),
            _counted(self.limit_hits, "limit hit"),
        )
        return ", ".join(part for part in parts if part)


def granted_bytes(event: OomEvent) -> int:
    """What a grant has added; 0 where there was no limit."""
    return max(0, event.limit_after_bytes - event.limit_before_bytes) if event.limit_before_bytes >= 0 else 0


def describe_event(event: OomEvent) -> str:
    """The event as a sentence; the sender's reason, where it gives one, has the measured values."""
    size = f"{format_bytes(event.usage_bytes)} of {format_bytes(event.limit_before_bytes)}"
    waited = f" after a wait of {format_duration(event.blocked_us)}" if event.blocked_us else ""
    match event.kind:
        case OomKind.NEAR_LIMIT:
            text = "near its limit" if event.reason else f"near its limit with {size}"
        case OomKind.OOM_WAIT:
            text = "blocked at its limit" if event.reason else f"blocked at its limit with {size}"
        case OomKind.GRANT:
            change = f"{format_bytes(event.limit_before_bytes)} → {format_bytes(event.limit_after_bytes)}"
            quickly = f" in {format_duration(event.latency_us)}" if event.latency_us else ""
            text = f"granted {format_bytes(granted_bytes(event))}{quickly} ({change}){waited}"
        case OomKind.GRANT_DENIED:
            text = f"denied more than {format_bytes(event.limit_before_bytes)}{waited}"
        case OomKind.OOM_KILLER_ENABLED:
            text = f"OOM killer enabled with {size}{waited}"
        case OomKind.KILL:
            # Usage was read after it, and tells nothing.
            text = f"OOM killed at its limit of {format_bytes(event.limit_before_bytes)}{waited}"
        case OomKind.LIMIT_HITS:
            text = f"calls can have failed at its limit of {format_bytes(event.limit_before_bytes)}"
    reason = f": {event.reason}" if event.reason else ""
    return f"{text}{_BY.get(event.cause, '')}{reason}"


def plain_event(event: OomEvent) -> dict[str, Any]:
    """The event as plain JSON types, with its sentence."""
    return to_plain(event) | {"sentence": describe_event(event)}


def container_name(key: str) -> str:
    """The container's name without the id that makes its key unique."""
    return key.rsplit("-", 1)[0]


def _counted(count: int, noun: str, detail: str = "") -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}{detail}" if count else ""

"""Memory events and requests as values; the service makes messages of them. Times are monotonic nanoseconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from schemas.oom import OomCause, OomCounters, OomKind
from services._host.cgroup_snapshot import QuotaWriter
from services.agent.ports import FoundContainer, WatchdogReport

MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class MemoryEvent:
    """One line of what happened to a container's memory; see `schemas.oom.OomEvent`."""

    kind: OomKind
    cause: OomCause
    key: str
    app: str
    usage_bytes: int
    limit_before_bytes: int
    limit_after_bytes: int
    reserve_bytes: int
    reason: str
    known_ns: int | None = None
    """Since when the agent could know: latency counts from here."""
    blocked_us: int = 0
    oom_kills: int = 0
    limit_hits: int = 0
    wall_ns: int | None = None
    """When it was, where that is long ago; None: now."""


@dataclass(frozen=True, slots=True)
class PendingRequest:
    """A request for memory that has to be sent; `MemoryController.answered` must follow."""

    app: str
    key: str
    wanted_bytes: int
    usage_bytes: int
    limit_bytes: int
    paused: bool


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """What became of a request."""

    denial: str = ""
    """Why there is nothing more."""
    timeout: str = ""
    """Why there was no answer."""


@dataclass(frozen=True, slots=True)
class Drift:
    """A limit or the OOM control of a container was modified externally; the reason has what was done about it."""

    found: FoundContainer
    quota_us: int
    """What holds now."""
    limit_bytes: int
    reason: str
    writer: QuotaWriter | None = None
    """Of the CPU quota; None: it was not changed, or the writer is not known."""


@dataclass(slots=True)
class MemoryCounters(OomCounters):
    """Counted since the start."""

    requests: int = 0
    polls: int = 0
    """Inspections of containers that grow fast or wait, between the periodic samples."""
    drifts: int = 0
    rejected_decreases: int = 0


@dataclass(slots=True)
class EventBuffer:
    """Events, requests and drifts that wait to be published, and the counts."""

    counters: MemoryCounters = field(default_factory=MemoryCounters)
    waiting: bool = False
    """Whether anything waits; in a steady period nothing does."""
    _events: list[MemoryEvent] = field(default_factory=list)
    _requests: list[PendingRequest] = field(default_factory=list)
    _drifts: list[Drift] = field(default_factory=list)

    def add(self, event: MemoryEvent) -> None:
        """Add a memory event."""
        self._events.append(event)
        self.waiting = True
        granted_bytes = max(event.limit_after_bytes - event.limit_before_bytes, 0)
        self.counters.count(event.kind, granted_bytes, event.limit_hits)

    def request(self, request: PendingRequest) -> None:
        """Add a request."""
        self._requests.append(request)
        self.waiting = True
        self.counters.requests += 1

    def add_drift(self, drift: Drift) -> None:
        """Add a drift."""
        self._drifts.append(drift)
        self.waiting = True
        self.counters.drifts += 1

    def take_events(self) -> list[MemoryEvent]:
        """What has happened since the last call."""
        taken, self._events = self._events, []
        return taken

    def take_requests(self) -> list[PendingRequest]:
        """Requests since the last call."""
        taken, self._requests = self._requests, []
        return taken

    def take_drifts(self) -> list[Drift]:
        """External modifications since the last call."""
        taken, self._drifts = self._drifts, []
        return taken


def span_attributes(events: Sequence[MemoryEvent], requests: Sequence[PendingRequest]) -> dict[str, Any]:
    """What happened to an application's memory at one moment, as attributes of a span."""
    newest = events[-1] if events else None
    first = newest or requests[0]
    return {
        "turnbuckle__app": first.app,
        "turnbuckle__container": first.key,
        "turnbuckle__oom__kinds": [str(event.kind) for event in events],
        "turnbuckle__memory__usage_bytes": first.usage_bytes,
        "turnbuckle__memory__limit_bytes": newest.limit_after_bytes if newest else requests[0].limit_bytes,
        "turnbuckle__memory__granted_bytes": sum(
            max(each.limit_after_bytes - each.limit_before_bytes, 0) for each in events if each.kind is OomKind.GRANT
        ),
        "turnbuckle__memory__wanted_bytes": sum(request.wanted_bytes for request in requests),
    }


def events_of_reports(reports: Iterable[WatchdogReport]) -> list[MemoryEvent]:
    """What the watchdog did while no agent lived."""
    return [
        MemoryEvent(
            kind=OomKind.GRANT if report.granted else OomKind.OOM_KILLER_ENABLED,
            cause=OomCause.WATCHDOG,
            key=report.key,
            app=report.app,
            usage_bytes=report.usage_bytes,
            limit_before_bytes=report.limit_before_bytes,
            limit_after_bytes=report.limit_after_bytes,
            reserve_bytes=0,
            reason=(
                f"no agent lived: the watchdog raised the limit to {mib(report.limit_after_bytes)} out of the reserve"
                if report.granted
                else f"no agent lived and the reserve was empty: the watchdog gave the kernel its kill back "
                f"at {mib(report.usage_bytes)} of {mib(report.limit_before_bytes)}"
            ),
            blocked_us=report.paused_us,
            wall_ns=report.time_ns,
        )
        for report in reports
    ]


def mib(value_bytes: float) -> str:
    """For sentences."""
    return "no limit" if value_bytes < 0 else f"{round(value_bytes) / MIB:.4g} MiB"

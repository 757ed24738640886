"""What the memory guard did or saw, as values: the service makes messages of them. Times are monotonic nanoseconds."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from schemas.oom import OomCause, OomKind
from services.agent.ports import FoundContainer, QuotaWriter, WatchdogReport

MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Occurrence:
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
    paused_us: int = 0
    oom_kills: int = 0
    limit_hits: int = 0
    wall_ns: int | None = None
    """When it was, where that is long ago; None: now."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request for memory that has to be sent; `MemoryGuard.answered` must follow."""

    app: str
    key: str
    wanted_bytes: int
    usage_bytes: int
    limit_bytes: int
    paused: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a request."""

    refusal: str = ""
    """Why there is nothing more."""
    silence: str = ""
    """Why there was no answer."""


@dataclass(frozen=True, slots=True)
class Drift:
    """Other hands changed something of a container's; what was done about it stands in the reason."""

    found: FoundContainer
    quota_us: int
    """What holds now."""
    limit_bytes: int
    reason: str
    writer: QuotaWriter | None = None
    """Of the CPU quota; None: it was not changed, or the kernel cannot say."""


@dataclass(slots=True)
class GuardCounters:
    """Counted since the start."""

    grants: int = 0
    granted_bytes: int = 0
    traps: int = 0
    refusals: int = 0
    releases: int = 0
    kills: int = 0
    limit_hits: int = 0
    """Counted by the kernel, and told."""
    requests: int = 0
    polls: int = 0
    """Looks at containers that grow fast or wait, between the periodic samples."""
    drifts: int = 0
    refused_cuts: int = 0


@dataclass(slots=True)
class Journal:
    """What waits to be told, and the counts."""

    counters: GuardCounters = field(default_factory=GuardCounters)
    _occurrences: list[Occurrence] = field(default_factory=list)
    _requests: list[Asked] = field(default_factory=list)
    _drifts: list[Drift] = field(default_factory=list)

    def tell(self, occurrence: Occurrence) -> None:
        """Note an occurrence."""
        self._occurrences.append(occurrence)
        counters = self.counters
        match occurrence.kind:
            case OomKind.GRANT:
                counters.grants += 1
                counters.granted_bytes += max(occurrence.limit_after_bytes - occurrence.limit_before_bytes, 0)
            case OomKind.OOM_WAIT:
                counters.traps += 1
            case OomKind.GRANT_DENIED:
                counters.refusals += 1
            case OomKind.OOM_KILLER_ENABLED:
                counters.releases += 1
            case OomKind.KILL:
                counters.kills += 1
            case OomKind.LIMIT_HITS:
                counters.limit_hits += occurrence.limit_hits
            case OomKind.NEAR_LIMIT:
                pass

    def ask(self, request: Asked) -> None:
        """Note a request."""
        self._requests.append(request)
        self.counters.requests += 1

    def report(self, drift: Drift) -> None:
        """Note a drift."""
        self._drifts.append(drift)
        self.counters.drifts += 1

    def take_occurrences(self) -> list[Occurrence]:
        """What has happened since the last call."""
        taken, self._occurrences = self._occurrences, []
        return taken

    def take_requests(self) -> list[Asked]:
        """What has to be asked."""
        taken, self._requests = self._requests, []
        return taken

    def take_drifts(self) -> list[Drift]:
        """What other hands have done since the last call."""
        taken, self._drifts = self._drifts, []
        return taken


def described(told: Sequence[Occurrence], asked: Sequence[Asked]) -> dict[str, Any]:
    """What happened to an application's memory at one moment, as attributes of a span."""
    newest = told[-1] if told else None
    first = newest or asked[0]
    return {
        "turnbuckle__app": first.app,
        "turnbuckle__container": first.key,
        "turnbuckle__oom__kinds": [str(occurrence.kind) for occurrence in told],
        "turnbuckle__memory__usage_bytes": first.usage_bytes,
        "turnbuckle__memory__limit_bytes": newest.limit_after_bytes if newest else asked[0].limit_bytes,
        "turnbuckle__memory__granted_bytes": sum(
            max(each.limit_after_bytes - each.limit_before_bytes, 0) for each in told if each.kind is OomKind.GRANT
        ),
        "turnbuckle__memory__wanted_bytes": sum(request.wanted_bytes for request in asked),
    }


def of_watchdog(reports: Iterable[WatchdogReport]) -> list[Occurrence]:
    """What the watchdog did while no agent lived."""
    return [
        Occurrence(
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
            paused_us=report.paused_us,
            wall_ns=report.time_ns,
        )
        for report in reports
    ]


def mib(value_bytes: float) -> str:
    """For sentences."""
    return "no limit" if value_bytes < 0 else f"{round(value_bytes) / MIB:.4g} MiB"

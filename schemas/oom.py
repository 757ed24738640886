"""Memory events near the limit, and requests for more memory (thesis 2.3.2, 2.4.4.2; design 4.4)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar

from schemas.message import Count, Message, renamed


class OomKind(StrEnum):
    """Kind of a memory event. Each incident is published once, as the kind that describes it best."""

    NEAR_LIMIT = "near_limit"
    """Usage came near the limit and nothing could be granted at once: a request for more was sent."""
    OOM_WAIT = "oom_wait"
    """Usage reached the limit and tasks are blocked instead of killed (cgroup v1: memory.oom_control, under_oom;
    v2: throttled by memory.high)."""
    GRANT = "grant"
    """The agent raised the limit out of its node's reserve."""
    GRANT_DENIED = "grant_denied"
    """The application or the node has no memory left, or no allocator replied; `reason` says which."""
    OOM_KILLER_ENABLED = "oom_killer_enabled"
    """The wait ended without a grant: the OOM killer is enabled again."""
    KILL = "kill"
    """The OOM killer killed a task; `reason` says why no grant prevented it."""
    LIMIT_HITS = "limit_hits"
    """The limit was hit, without an OOM wait or kill: system calls may have failed."""

    @classmethod
    def _missing_(cls, value: object) -> OomKind | None:
        """Values of 0.1, which streams may still hold."""
        renamed = {
            "near": cls.NEAR_LIMIT,
            "trap": cls.OOM_WAIT,
            "refusal": cls.GRANT_DENIED,
            "release": cls.OOM_KILLER_ENABLED,
        }
        return renamed.get(value) if isinstance(value, str) else None


@dataclass(slots=True)
class OomCounters:
    """Memory events, folded."""

    near_limit: int = 0
    grants: int = 0
    granted_bytes: int = 0
    oom_waits: int = 0
    grants_denied: int = 0
    oom_killer_enabled: int = 0
    kills: int = 0
    """Events: one may tell of several kills, which the batches' `oom_kills` count."""
    limit_hits: int = 0
    """How often the kernel hit the limit: system calls can have failed."""

    def count(self, kind: OomKind, granted_bytes: int, limit_hits: int) -> None:
        """One event, with what it has granted and how many hits it reports."""
        match kind:
            case OomKind.NEAR_LIMIT:
                self.near_limit += 1
            case OomKind.OOM_WAIT:
                self.oom_waits += 1
            case OomKind.GRANT:
                self.grants += 1
                self.granted_bytes += granted_bytes
            case OomKind.GRANT_DENIED:
                self.grants_denied += 1
            case OomKind.OOM_KILLER_ENABLED:
                self.oom_killer_enabled += 1
            case OomKind.KILL:
                self.kills += 1
            case OomKind.LIMIT_HITS:
                self.limit_hits += limit_hits


class OomCause(StrEnum):
    """Cause of a memory event."""

    THRESHOLD = "threshold"
    """A usage threshold was crossed (version 1), or memory.high reached (version 2)."""
    SAMPLE = "sample"
    """The periodic sample, or an extra reading of a container that grows fast."""
    LIMIT = "limit"
    """The limit was hit."""
    ALLOCATOR_REPLY = "allocator_reply"
    """The allocator replied to a request."""
    DEADLINE = "deadline"
    """Tasks were blocked for as long as `TURNBUCKLE_AGENT__OOM_WAIT_TIMEOUT_S` allows."""
    WATCHDOG = "watchdog"
    """The agent was not running: its watchdog acted, and the restarted agent published it."""
    SHUTDOWN = "shutdown"
    """The agent stops."""
    KERNEL = "kernel"
    """The kernel's own counter of kills has risen."""
    NODE = "node"
    """An increase would have exceeded the node's memory budget, or MemAvailable was too low."""

    @classmethod
    def _missing_(cls, value: object) -> OomCause | None:
        """Values of 0.1, which streams may still hold."""
        renamed = {"answer": cls.ALLOCATOR_REPLY}
        return renamed.get(value) if isinstance(value, str) else None


class OomEvent(Message):
    """A near-OOM, OOM wait, grant, denied grant, enabled OOM killer or kill of one container."""

    type_name: ClassVar[str] = "turnbuckle.oom.v1.OomEvent"

    kind: OomKind
    cause: OomCause
    app: str
    node: str
    container: str
    incarnation: int
    time_ns: int
    usage_bytes: int
    limit_before_bytes: int
    limit_after_bytes: int
    """Limit in the kernel afterwards; equal to `limit_before_bytes` if none was written."""
    reserve_bytes: int
    """The node's reserve for the application afterwards."""
    latency_us: int = 0
    """GRANT: from the notification to the limit written. GRANT_DENIED: from request to reply."""
    blocked_us: Annotated[int, renamed("blocked_us", "paused_us")] = 0
    """How long tasks were blocked, as far as known; 0: none was."""
    oom_kills: int = 0
    """KILL: by the kernel since the container was found."""
    limit_hits: int = 0
    """LIMIT_HITS: number since the last such event (memory.failcnt; `max` in memory.events), including hits that
    reclaim resolved."""
    reason: str = ""
    """A sentence with the measured values."""


class MemoryRequest(Message):
    """Requests a refill of a node's reserve from the application's owner."""

    type_name: ClassVar[str] = "turnbuckle.oom.v1.MemoryRequest"

    app: str
    node: str
    incarnation: Count
    container: str
    """The container with the largest shortage."""
    wanted_bytes: Count
    """In addition to the reserve."""
    usage_bytes: Count
    limit_bytes: int
    tasks_blocked: Annotated[bool, renamed("tasks_blocked", "paused")]
    """Whether tasks are blocked until the reply."""
    time_ns: Count


class MemoryReply(Message):
    """Reply to MemoryRequest. Granted memory is sent as a LimitUpdate; this announces it."""

    type_name: ClassVar[str] = "turnbuckle.oom.v1.MemoryReply"

    app: str
    epoch: Count
    granted_bytes: Count
    """Granted to the node's reserve now."""
    reclaiming_bytes: Count
    """Being reclaimed from other containers; granted when they have released it."""
    denial: Annotated[str, renamed("denial", "refusal")] = ""
    """Why nothing more will be granted, with figures; empty: more will be."""
    node_is_full: bool = False
    """Whether that is because of the node's headroom, as the allocator knew it."""

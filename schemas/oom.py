"""Memory near its limit: what happened, and the request for more (thesis 2.3.2, 2.4.4.2; design 4.4)."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from schemas.message import Count, Message


class OomKind(StrEnum):
    """What happened to a container's memory. Every occurrence is told once, by the line that describes it best."""

    NEAR = "near"
    """Usage came near the limit and nothing could be granted at once: more was asked for."""
    TRAP = "trap"
    """Usage reached the limit: tasks wait (version 1: paused; version 2: slowed by memory.high) instead of dying."""
    GRANT = "grant"
    """The agent raised the limit out of its node's reserve."""
    REFUSAL = "refusal"
    """The application has nothing left to give, or nobody answered; `reason` says which."""
    RELEASE = "release"
    """The wait ended without a grant: the kernel does what it always does."""
    KILL = "kill"
    """The kernel killed; `reason` says why nothing could be done."""
    LIMIT_HITS = "limit_hits"
    """The kernel hit the limit, and neither did tasks wait nor did it kill: system calls can have failed."""


class OomCause(StrEnum):
    """What led to it."""

    THRESHOLD = "threshold"
    """A usage threshold was crossed (version 1), or memory.high reached (version 2)."""
    SAMPLE = "sample"
    """The periodic sample, or a closer look at a container that grows fast, saw it."""
    LIMIT = "limit"
    """The limit was hit."""
    ANSWER = "answer"
    """The allocator answered a request."""
    DEADLINE = "deadline"
    """A task has waited for as long as the setting allows."""
    WATCHDOG = "watchdog"
    """The agent did not live: its watchdog acted, as the restarted agent tells."""
    SHUTDOWN = "shutdown"
    """The agent stops."""
    KERNEL = "kernel"
    """The kernel's own counter of kills has risen."""
    NODE = "node"
    """A raise that was ordered would have passed the node's memory budget, or its MemAvailable was too low."""


class OomEvent(Message):
    """A near-OOM, trap, grant, refusal, release or kill of one container."""

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
    """In the kernel after it; equal to `limit_before_bytes` where nothing was written."""
    reserve_bytes: int
    """What the node's reserve for the application holds after it."""
    latency_us: int = 0
    """GRANT: from the moment that the agent could know to the limit written. REFUSAL: from request to answer."""
    paused_us: int = 0
    """How long tasks had been waiting, as far as the agent can know; 0: none was."""
    oom_kills: int = 0
    """KILL: by the kernel since the container was found."""
    limit_hits: int = 0
    """LIMIT_HITS: how often since the last such event (memory.failcnt; `max` in memory.events), also where reclaim made
    room afterwards."""
    reason: str = ""
    """A sentence with the measured values."""


class MemoryRequest(Message):
    """A node's reserve for an application runs out. Asks the application's owner to refill it."""

    type_name: ClassVar[str] = "turnbuckle.oom.v1.MemoryRequest"

    app: str
    node: str
    incarnation: Count
    container: str
    """Who needs it most."""
    wanted_bytes: Count
    """On top of what the reserve holds."""
    usage_bytes: Count
    limit_bytes: int
    paused: bool
    """A task waits for the answer."""
    time_ns: Count


class MemoryReply(Message):
    """The owner's answer. What is granted travels as a LimitUpdate: this only says what is on its way."""

    type_name: ClassVar[str] = "turnbuckle.oom.v1.MemoryReply"

    app: str
    epoch: Count
    granted_bytes: Count
    """Ordered for the node's reserve now."""
    reclaiming_bytes: Count
    """Ordered back from others now; it follows when they have given it."""
    refusal: str = ""
    """Why there will be nothing more, with figures; empty: there will."""

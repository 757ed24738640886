"""Initial limits of a container that joins (thesis 2.4.1, equations 2.1 and 2.2), or a sentence why it cannot."""

from __future__ import annotations

from dataclasses import dataclass

from schemas.apps import PERIOD_US
from services.allocator.budget.fairness import PAGE_BYTES
from services.allocator.memory.policy import MARGIN_BYTES
from services.allocator.state.container_columns import NO_BOUND


@dataclass(frozen=True, slots=True)
class Room:
    """One application's numbers at this moment; CPU in microseconds per period."""

    cpu_limit_us: int
    cpu_free_us: int
    """Limit minus everything that may be in force, minus what is kept for others."""
    memory_limit_bytes: int
    memory_free_bytes: int
    delta_bytes: int
    node_free_bytes: int = NO_BOUND
    """What the container may have on its node: what the node has left, and what the container counts for already."""
    node_share_bytes: int = NO_BOUND
    """The same, if it leaves others their part of what the node has left."""


@dataclass(frozen=True, slots=True)
class Newcomer:
    """What is known of the container; CPU in microseconds per period."""

    name: str
    used_us: int
    usage_bytes: int
    share_us: int
    """Equation 2.1: cpu_limit / n, with n counting the newcomer (`AppSpec.initial_quota_us`)."""
    share_bytes: int
    """Equation 2.2: memory_limit x (1 - sigma) / n (`AppSpec.initial_memory_bytes`)."""
    min_us: int
    cap_us: int
    min_bytes: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class Admission:
    """Limits to start with."""

    quota_us: int
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why not."""

    reason: str
    permanent: bool
    """True: it would not fit into the empty application either. False: others hold the room at present."""


def admit(room: Room, newcomer: Newcomer) -> Admission | Refusal:
    """Initial limits within what is free.

    CPU: the equal share, or what the container uses if that is more, at most what is free and its cap; refused below
    its minimum. Memory: the equal share, or usage + delta if that is more, at most what is free and its maximum;
    refused below usage + MARGIN_BYTES, because a limit below usage kills on cgroup v2.
    """
    needed_bytes = _pages_up(max(newcomer.min_bytes, newcomer.usage_bytes + MARGIN_BYTES))
    if newcomer.min_us > room.cpu_free_us:
        return Refusal(
            f"{newcomer.name} needs at least {_cores(newcomer.min_us)}, "
            f"{_cores(max(room.cpu_free_us, 0))} of {_cores(room.cpu_limit_us)} are free",
            permanent=newcomer.min_us > room.cpu_limit_us,
        )
    if needed_bytes > newcomer.max_bytes:
        return Refusal(
            f"{newcomer.name} uses {_mib(newcomer.usage_bytes)} and needs a limit of {_mib(needed_bytes)}, "
            f"container_max_memory is {_mib(newcomer.max_bytes)}",
            permanent=True,
        )
    if needed_bytes > room.memory_free_bytes:
        return Refusal(
            f"{newcomer.name} needs at least {_mib(needed_bytes)} of memory, "
            f"{_mib(max(room.memory_free_bytes, 0))} of {_mib(room.memory_limit_bytes)} are free",
            permanent=needed_bytes > room.memory_limit_bytes,
        )
    if needed_bytes > room.node_free_bytes:
        return Refusal(
            f"{newcomer.name} needs at least {_mib(needed_bytes)} of memory, its node has room for "
            f"{_mib(max(room.node_free_bytes, 0))}",
            permanent=False,
        )
    wished_us = max(newcomer.share_us, newcomer.used_us, newcomer.min_us)
    wished_bytes = _pages_up(max(newcomer.share_bytes, newcomer.usage_bytes + room.delta_bytes, needed_bytes))
    bound_bytes = min(newcomer.max_bytes, room.memory_free_bytes, room.node_share_bytes) // PAGE_BYTES * PAGE_BYTES
    return Admission(
        quota_us=min(wished_us, room.cpu_free_us, max(newcomer.cap_us, newcomer.min_us)),
        limit_bytes=min(wished_bytes, max(bound_bytes, needed_bytes)),
    )


def _pages_up(size: int) -> int:
    return -(-size // PAGE_BYTES) * PAGE_BYTES


def _cores(quota_us: int) -> str:
    return f"{quota_us / PERIOD_US:.2f} cores"


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.0f} MiB"

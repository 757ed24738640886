"""Initial limits of a container (thesis 2.4.1, equations 2.1 and 2.2), or the reason it is not admitted."""

from __future__ import annotations

from dataclasses import dataclass

from schemas.apps import PERIOD_US
from services.allocator.budget.fairness import PAGE_BYTES
from services.allocator.memory.policy import MARGIN_BYTES
from services.allocator.state.container_columns import NO_BOUND


@dataclass(frozen=True, slots=True)
class Capacity:
    """Free capacity of one application; CPU in microseconds per period."""

    cpu_limit_us: int
    cpu_free_us: int
    """Limit minus committed quotas, minus what is reserved for other pending containers."""
    memory_limit_bytes: int
    memory_free_bytes: int
    delta_bytes: int
    node_free_bytes: int = NO_BOUND
    """Bytes the container may have on its node: the headroom plus what already counts for it."""
    node_share_bytes: int = NO_BOUND
    """The same, limited to its share of the headroom."""


@dataclass(frozen=True, slots=True)
class PendingContainer:
    """A container that is not admitted yet; CPU in microseconds per period."""

    name: str
    used_us: int
    usage_bytes: int
    share_us: int
    """Equation 2.1: cpu_limit / n, n including this container (`AppSpec.initial_quota_us`)."""
    share_bytes: int
    """Equation 2.2: memory_limit x (1 - sigma) / n (`AppSpec.initial_memory_bytes`)."""
    min_us: int
    cap_us: int
    min_bytes: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class Admission:
    """Initial limits."""

    quota_us: int
    limit_bytes: int


@dataclass(frozen=True, slots=True)
class AdmissionRefusal:
    """Why a container is not admitted."""

    reason: str
    permanent: bool
    """True: it would not fit into the empty application either. False: the capacity is in use at present."""


def admit(capacity: Capacity, pending: PendingContainer) -> Admission | AdmissionRefusal:
    """Initial limits within the free capacity.

    CPU: the equal share, or the usage if that is more, at most what is free and the cap; refused below the minimum.
    Memory: the equal share, or usage + delta if that is more, at most the free capacity and the maximum; refused below
    usage + MARGIN_BYTES, because a limit below usage kills on cgroup v2.
    """
    required_bytes = _pages_up(max(pending.min_bytes, pending.usage_bytes + MARGIN_BYTES))
    if pending.min_us > capacity.cpu_free_us:
        return AdmissionRefusal(
            f"{pending.name} needs at least {_cores(pending.min_us)}, "
            f"{_cores(max(capacity.cpu_free_us, 0))} of {_cores(capacity.cpu_limit_us)} are free",
            permanent=pending.min_us > capacity.cpu_limit_us,
        )
    if required_bytes > pending.max_bytes:
        return AdmissionRefusal(
            f"{pending.name} uses {_mib(pending.usage_bytes)} and needs a limit of {_mib(required_bytes)}, "
            f"container_max_memory is {_mib(pending.max_bytes)}",
            permanent=True,
        )
    if required_bytes > capacity.memory_free_bytes:
        return AdmissionRefusal(
            f"{pending.name} needs at least {_mib(required_bytes)} of memory, "
            f"{_mib(max(capacity.memory_free_bytes, 0))} of {_mib(capacity.memory_limit_bytes)} are free",
            permanent=required_bytes > capacity.memory_limit_bytes,
        )
    if required_bytes > capacity.node_free_bytes:
        return AdmissionRefusal(
            f"{pending.name} needs at least {_mib(required_bytes)} of memory, its node has room for "
            f"{_mib(max(capacity.node_free_bytes, 0))}",
            permanent=False,
        )
    desired_us = max(pending.share_us, pending.used_us, pending.min_us)
    desired_bytes = _pages_up(max(pending.share_bytes, pending.usage_bytes + capacity.delta_bytes, required_bytes))
    bound_bytes = (
        min(pending.max_bytes, capacity.memory_free_bytes, capacity.node_share_bytes) // PAGE_BYTES * PAGE_BYTES
    )
    return Admission(
        quota_us=min(desired_us, capacity.cpu_free_us, max(pending.cap_us, pending.min_us)),
        limit_bytes=min(desired_bytes, max(bound_bytes, required_bytes)),
    )


def _pages_up(size: int) -> int:
    return -(-size // PAGE_BYTES) * PAGE_BYTES


def _cores(quota_us: int) -> str:
    return f"{quota_us / PERIOD_US:.2f} cores"


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.0f} MiB"

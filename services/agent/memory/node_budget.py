"""How much memory the containers of one node may be promised: by how much limits and reserves may still rise, and why.

Replicas of the allocator own applications; only its agent sees all of a node (decision 36). Two signals:

- the budget: memory limits and reserves of all managed containers add up to at most the node's *allocatable* memory,
  that is its capacity less what is reserved for the system (the terms are Kubernetes');
- MemAvailable: what is promised is one thing, what the machine has left is another. Below a threshold (the kubelet
  evicts at the same) nothing is raised, and nothing is granted out of reserves, whatever the budget leaves.

Pure: readings come in as arguments. All values are bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import numpy as np

from services.agent.memory.growth import MIB, PAGE_BYTES
from services.agent.memory.policy import DECREASE_MARGIN_BYTES, IntArray

DEFAULT_RESERVED_BYTES: Final = 256 * MIB
DEFAULT_RESERVED_SHARE: Final = 20
"""A twentieth (5 %) of the capacity is reserved for the system, and `DEFAULT_RESERVED_BYTES` at least."""
MOST_RESERVED_SHARE: Final = 2
"""... but by default never more than half: a machine of 256 MiB can still be used."""


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """A node's memory, and what is not for containers."""

    capacity_bytes: int
    reserved_bytes: int
    min_available_bytes: int
    """Nothing is raised or granted while MemAvailable is below."""

    @property
    def allocatable_bytes(self) -> int:
        """The most that limits and reserves may add up to."""
        return max(self.capacity_bytes - self.reserved_bytes, 0)


def default_reserved_bytes(capacity_bytes: int) -> int:
    """The default of what is reserved for the system: max(256 MiB, 5 %), at most half."""
    default_bytes = max(DEFAULT_RESERVED_BYTES, capacity_bytes // DEFAULT_RESERVED_SHARE)
    return min(default_bytes, capacity_bytes // MOST_RESERVED_SHARE)


def least_limit_bytes(usage_bytes: int) -> int:
    """The least limit that is safe for a container that uses so much; whole pages."""
    return -(-(max(usage_bytes, 0) + DECREASE_MARGIN_BYTES) // PAGE_BYTES) * PAGE_BYTES


def counted_bytes(limit_bytes: int, usage_bytes: int) -> int:
    """What one container counts for: its limit; without one, what it uses and the margin that a first limit leaves.

    So a container without a limit can always be given its first one, on a full node too, and the sum does not rise.
    """
    return limit_bytes if limit_bytes >= 0 else least_limit_bytes(usage_bytes)


def committed_bytes(limit_bytes: IntArray, usage_bytes: IntArray, reserves_left_bytes: int) -> int:
    """What limits and reserves add up to.

    Args:
        limit_bytes: of all managed containers, as the kernel holds them; negative: none. Shape (N,).
        usage_bytes: latest readings, shape (N,).
        reserves_left_bytes: what can still be granted out of reserves.
    """
    least = -(-(usage_bytes + DECREASE_MARGIN_BYTES) // PAGE_BYTES) * PAGE_BYTES
    return reserves_left_bytes + int(np.where(limit_bytes >= 0, limit_bytes, least).sum())


Signal = Literal["node_budget", "memory_available"]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why there is no headroom, with what was measured and its threshold."""

    signal: Signal
    measured_bytes: int
    threshold_bytes: int

    def sentence(self, node: str) -> str:
        """For people."""
        measured, threshold = _mib(self.measured_bytes), _mib(self.threshold_bytes)
        if self.signal == "memory_available":
            return f"memory of node {node} runs out: MemAvailable is {measured}, nothing is raised below {threshold}"
        return (
            f"the memory budget of node {node} is used up: limits and reserves of its containers add up to {measured} "
            f"of {threshold} that are allocatable"
        )


class Headroom(NamedTuple):
    """By how much limits and reserves may rise, and what stands in the way of more."""

    left_bytes: int
    """>= 0; 0 also where the node is above its budget already: then nothing is lowered for it, but nothing raised."""
    refusal: Refusal


def grant_refusal(budget: MemoryBudget, available_bytes: int | None) -> Refusal | None:
    """Why nothing may be granted out of reserves now, or None. They count in the budget already.

    Args:
        budget: of the node.
        available_bytes: MemAvailable; None: not known.
    """
    if available_bytes is None or available_bytes >= budget.min_available_bytes:
        return None
    return Refusal("memory_available", available_bytes, budget.min_available_bytes)


def headroom(budget: MemoryBudget, committed: int, available_bytes: int | None) -> Headroom:
    """By how much limits and reserves may rise now.

    Args:
        budget: of the node.
        committed: what they add up to (`committed_bytes`).
        available_bytes: MemAvailable; None: not known.
    """
    if (refusal := grant_refusal(budget, available_bytes)) is not None:
        return Headroom(0, refusal)
    allocatable = budget.allocatable_bytes
    return Headroom(max(allocatable - committed, 0), Refusal("node_budget", committed, allocatable))


def _mib(size: int) -> str:
    return f"{size / MIB:.1f} MiB"

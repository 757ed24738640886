"""One container: its control files, what it came with, and what the agent knows of its limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from services._host.cgroup_snapshot import Limits
from services.agent.ports import ContainerHandle, FoundContainer

ROUNDING_BYTES: Final = 1 << 16
"""The kernel rounds memory limits down to whole pages; pages are at most 64 KiB."""


@dataclass(slots=True)
class ContainerLimits:
    """What the agent knows of one container's limits. Quota per period; -1: unlimited."""

    app: str
    quota_us: int
    limit_bytes: int
    epoch: int = 0
    seq: int = 0
    pending_decrease_us: int | None = None
    """A lower quota that waits for the container's period boundary."""
    pending_update: tuple[int, int] | None = None
    quota_ordered: bool = False
    """Whether the quota was ever updated: if not, the agent never restores it."""
    limit_ordered: bool = False
    """Whether the agent controls its memory: any update shows that the application is enforced."""
    quota_inherited: bool = False
    """Whether a previous agent has set the quota."""
    limit_promised: bool = False
    """Whether this agent or a previous one has set the memory limit: one that it came with promises nothing."""

    @property
    def quota_promised(self) -> bool:
        """The same of the quota."""
        return self.quota_ordered or self.quota_inherited


@dataclass(slots=True)
class ManagedContainer:
    """One container. `ContainerSet.limits[key]` has its limits."""

    found: FoundContainer
    handle: ContainerHandle
    configured: Limits
    """That it has without an agent."""
    oom_kills: int = 0
    first_oom_kills: int = 0

    @property
    def kills(self) -> int:
        """By the kernel since the container was found."""
        return self.oom_kills - self.first_oom_kills


def same_memory(held_bytes: int, known_bytes: int) -> bool:
    """Whether the kernel holds the known limit, but for its rounding to pages."""
    if held_bytes < 0 or known_bytes < 0:
        return held_bytes == known_bytes
    return 0 <= known_bytes - held_bytes < ROUNDING_BYTES

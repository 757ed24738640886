"""What the agent needs from the outside world. A vanished container is a value here, never an exception."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from schemas.containers import ContainerSource

UNLIMITED = -1


class Counters(NamedTuple):
    """One reading of a container's cumulative counters, and its memory usage now."""

    nr_periods: int
    nr_throttled: int
    throttled_us: int
    """Time throttled, summed over CPUs."""
    usage_us: int
    memory_bytes: int


class Limits(NamedTuple):
    """What the kernel holds."""

    quota_us: int
    """Per period of `schemas.apps.PERIOD_US`, whatever period the kernel holds; `UNLIMITED` if none."""
    memory_bytes: int
    """`UNLIMITED` if none."""


class WriteOutcome(Enum):
    """What became of a write."""

    WRITTEN = "written"
    VANISHED = "vanished"
    REFUSED = "refused"
    """The kernel said no (EBUSY: memory below usage; EINVAL: above the parent): the old value still holds."""


class ContainerHandle(Protocol):
    """One container's control files, kept open."""

    def read(self) -> Counters | None:
        """Counters now, or None if the container has vanished."""

    def read_periods(self) -> int | None:
        """Only nr_periods: the cheapest way to see a period boundary pass. None: vanished."""

    def read_limits(self) -> Limits | None:
        """Limits as the kernel holds them, re-read. None: vanished."""

    def read_oom_kills(self) -> int:
        """Kills by the kernel since the cgroup was made; 0 if vanished."""

    def write_quota(self, quota_us: int) -> WriteOutcome:
        """Set the quota (>= 1000) per `PERIOD_US`; sets the period too where the kernel holds another one."""

    def write_memory(self, limit_bytes: int) -> WriteOutcome:
        """Set the memory limit, without ever causing a kill by itself (v2: memory.max never below current + margin)."""

    def restore(self) -> None:
        """Put back every value that was found at opening and that this handle has changed. Vanished: nothing."""

    def close(self) -> None:
        """Close the descriptors."""


@dataclass(frozen=True, slots=True)
class FoundContainer:
    """A running container that carries our labels."""

    container_id: str
    app: str
    name: str
    source: ContainerSource
    pid: int | None = None
    """A process of it (Docker: its init); its cgroups are read from /proc."""
    managed_directory: str | None = None
    """For `turnbuckle exec`: the directory below each controller's mount."""

    @property
    def key(self) -> str:
        """Unique in the cluster and readable."""
        return f"{self.name}-{self.container_id[:12]}"


@dataclass(frozen=True, slots=True)
class GoneContainer:
    """A container that has stopped."""

    container_id: str


@dataclass(frozen=True, slots=True)
class RejectedContainer:
    """A container whose labels cannot be used: it is left alone and reported once."""

    container_id: str
    app: str
    name: str
    source: ContainerSource
    reason: str


Discovered = FoundContainer | GoneContainer | RejectedContainer


class Host(Protocol):
    """The machine below the agent."""

    @property
    def cpu_count(self) -> int:
        """Processors."""

    @property
    def memory_bytes(self) -> int:
        """Memory of the machine."""

    @property
    def cgroup_version(self) -> int:
        """1, 2, or 0 where simulated."""

    @property
    def telemetry_source(self) -> str:
        """``cgroup-v1``, ``cgroup-v2`` or ``simulated``."""

    def open(self, container: FoundContainer) -> ContainerHandle | None:
        """Open its control files; None if it vanished meanwhile."""


class Discovery(Protocol):
    """Finds containers: one implementation per maker."""

    async def run(self, sink: Callable[[Discovered], None]) -> None:
        """Report what runs, then every change, until cancelled. Reconnects by itself; reporting twice is harmless."""

    @property
    def available(self) -> bool:
        """Whether the maker answers right now (Docker down: False)."""

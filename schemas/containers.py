"""Container events and node registrations."""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from schemas.message import Message


class ContainerChange(StrEnum):
    """What happened to a container."""

    STARTED = "started"
    """Discovered and sampled; its limits are unchanged."""
    EXITED = "exited"
    RELEASED = "released"
    """The agent stopped gracefully and restored the original limits."""
    REJECTED = "rejected"
    """Has an invalid turnbuckle label; `reason` says why. It stays unmanaged."""
    REFUSED = "refused"
    """The application has no capacity for it: it has no more than its floor, of CPU or of memory; `reason` says why."""
    DRIFTED = "drifted"
    """Its limits were modified externally; `reason` says from what to what, and whether they were restored."""
    CPU_REFUSED = "cpu_refused"
    """Its node's CPU budget does not allow an increase of its CPU limit, or a part of it; `reason` has the figures. The
    event's limits are those that hold."""
    LIMIT_REFUSED = "limit_refused"
    """The kernel has refused a limit for a second or longer; `reason` says which values, and why. The event has the
    limits that hold."""
    LIMIT_ACCEPTED = "limit_accepted"
    """The end of LIMIT_REFUSED: the kernel accepts such a limit again, or none was ordered for longer than a minute.
    Sent by the allocator, the end of REFUSED: there is room."""


class ContainerSource(StrEnum):
    """What created the container."""

    DOCKER = "docker"
    KUBERNETES = "kubernetes"
    """A pod's."""
    EXEC = "exec"
    SIMULATED = "simulated"
    ALLOCATOR = "allocator"
    """Not a creator: the sender of a REFUSED event."""


class LimitWriter(Message):
    """The process that changed a limit, recorded by the kernel at the write."""

    type_name: ClassVar[str] = "turnbuckle.container.v1.LimitWriter"

    pid: int
    """In the host's PID namespace. It may have ended since, and the number may be reused."""
    comm: str
    """Name of its command (``/proc/PID/comm``), which a process can change; non-printable characters are escaped."""
    cgroup: str
    """Its cgroup below the root, such as ``system.slice/docker.service``; ``/``: the root."""


class ContainerEvent(Message):
    """A container started, exited, was released, rejected, refused, drifted, or a limit of it was refused."""

    type_name: ClassVar[str] = "turnbuckle.container.v1.ContainerEvent"

    change: ContainerChange
    app: str
    node: str
    container: str
    """Key: the name, a dash, and the first 12 characters of the id. Unique in the cluster."""
    name: str
    source: ContainerSource
    time_ns: int
    incarnation: int
    quota_us: int = -1
    """Initial limit of the container; -1: unlimited."""
    limit_bytes: int = -1
    oom_kills: int = 0
    reason: str = ""
    writer: LimitWriter | None = None
    """Process that changed the CPU quota of a DRIFTED container; none: another limit, or unknown."""


class NodeInfo(Message):
    """Registration of an agent under its node's name, with the node's capabilities: kept in KV with a time to live."""

    type_name: ClassVar[str] = "turnbuckle.node.v1.NodeInfo"

    node: str
    incarnation: int
    time_ns: int
    host_cpus: int
    memory_bytes: int
    cgroup_version: int
    """1, 2, or 0 for a simulated host."""
    telemetry_source: str
    """``bpf-periods`` (exact periods), ``bpf``, ``cgroup-v1``, ``cgroup-v2`` or ``simulated``."""
    docker: bool
    container_count: int
    version: str
    sources_pending: tuple[ContainerSource, ...] = ()
    """Sources of containers that have neither answered since the agent's start nor timed out."""
    memory_guard: str = ""
    """How memory is guarded: ``thresholds+trap`` (version 1), ``memory.high`` (version 2), ``sampled``."""
    holder: str = ""
    """Random token in a lock file held by the agent: a successor that reads it knows that this process is dead."""
    allocatable_memory_bytes: int | None = None
    """Bound of `committed_memory_bytes`: the node's memory less the part reserved for the system (Kubernetes' *node
    allocatable*); none: the agent sets no bound."""
    committed_memory_bytes: int | None = None
    """Sum of the memory limits of enforced containers, of reserves, and of what all other containers use."""
    committed_cpu_us: int | None = None
    """Sum of the CPU quotas of managed containers, us per period. Where there is a bound those that no agent has set
    count what their containers used last, and at least 1,000 us."""
    allocatable_cpu_us: int | None = None
    """Bound of that sum; none: the agent sets no bound."""
    warns_cpu_overcommit: bool = True
    """Whether a sum above the node's cores is worth a warning; false also where there is a bound."""
    available_memory_bytes: int | None = None
    """MemAvailable of /proc/meminfo."""
    memory_pressure_percent: float | None = None
    """`some` avg10 of /proc/pressure/memory; none: the kernel has no pressure stall information."""
    cpu_pressure_percent: float | None = None
    """`some` avg10 of /proc/pressure/cpu, or none."""

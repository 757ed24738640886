"""AppSpec: a Distributed Container, that is an application with one CPU and one memory limit across hosts."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import ByteSize, ConfigDict, Field, model_validator

from schemas.message import Message
from schemas.sizes import MemorySize

NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"
PERIOD_US: Final = 100_000
MIN_QUOTA_US: Final = 1_000
"""The kernel refuses smaller quotas (Documentation/scheduler/sched-bwc.rst)."""
LEAST_RAISE_US: Final = 1_000
"""What a full node leaves of a raise is written from here on only: a write of a quota refills its bandwidth."""
MIN_MEMORY_BYTES: Final = 4 << 20
FLOOR_MEMORY_BYTES: Final = 6 << 20
"""Docker's smallest limit: runc takes 4 MiB in a container's group before the container's own program runs."""
MAX_MEMORY_BYTES: Final = 1 << 60
"""Keeps every sum over containers within 64 bits."""

Name = Annotated[str, Field(pattern=NAME_PATTERN, description="letters, digits, '_', '.', '-'; at most 63")]
Policy = Literal["waterfill", "escra"]
Mode = Literal["observe", "enforce"]


class AppSpec(Message):
    """Limits and policy of one application (thesis 2.4.1, 2.6.1; design 4.1)."""

    model_config = ConfigDict(allow_inf_nan=False)  # joins the base's; NaN would pass a bound written as ge or le
    type_name: ClassVar[str] = "turnbuckle.app.v1.AppSpec"

    name: Name
    cpu_limit: Annotated[float, Field(gt=0, le=100_000, description="cores, over all containers and hosts")]
    memory_limit: Annotated[
        MemorySize,
        Field(ge=MIN_MEMORY_BYTES, le=MAX_MEMORY_BYTES, description="bytes, such as 2GiB, over all containers"),
    ]
    policy: Policy = "waterfill"
    mode: Mode = "enforce"
    sigma: Annotated[float, Field(ge=0, lt=1, description="share of memory kept for containers below fair shares")] = (
        0.2
    )
    kappa: Annotated[
        float, Field(gt=0, le=1, description="escra: share of the mean unused runtime taken per period")
    ] = 0.8
    gamma: Annotated[float, Field(ge=0, description="escra: cores of unused runtime that are left alone")] = 0.2
    upsilon: Annotated[float, Field(gt=0, le=100, description="escra: percent of the pool per throttled share")] = 20.0
    window: Annotated[int, Field(ge=1, le=64, description="periods in escra's sliding windows")] = 10
    delta: Annotated[
        MemorySize, Field(ge=1 << 20, le=MAX_MEMORY_BYTES, description="bytes of memory kept above usage by reclaim")
    ] = ByteSize(50 << 20)
    period_us: Annotated[Literal[100_000], Field(description="CFS period; the thesis found 100 ms best (2.6.9.1)")] = (
        100_000
    )
    announced_containers: Annotated[
        int, Field(ge=0, description="containers that the deployer starts: their initial shares are kept free for them")
    ] = 0
    container_min_cpu: Annotated[float, Field(ge=0.01, description="cores that every container keeps")] = 0.01
    container_max_cpu: Annotated[float | None, Field(gt=0, description="cores; none: the host's")] = None
    container_min_memory: Annotated[MemorySize, Field(ge=MIN_MEMORY_BYTES, le=MAX_MEMORY_BYTES)] = ByteSize(
        MIN_MEMORY_BYTES
    )
    container_max_memory: Annotated[MemorySize | None, Field(ge=MIN_MEMORY_BYTES, le=MAX_MEMORY_BYTES)] = None
    container_floor_cpu: Annotated[
        float,
        Field(ge=0.01, description="cores of a container from when it is found, and as long as there are no more"),
    ] = 0.01
    container_floor_memory: Annotated[
        MemorySize,
        Field(
            ge=MIN_MEMORY_BYTES,
            le=MAX_MEMORY_BYTES,
            description="the same in bytes, or what it uses and a margin if that is more",
        ),
    ] = ByteSize(FLOOR_MEMORY_BYTES)

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if self.container_min_cpu > self.cpu_limit:
            raise ValueError(f"container_min_cpu {self.container_min_cpu} exceeds cpu_limit {self.cpu_limit}")
        if self.container_max_cpu is not None and self.container_max_cpu < self.container_min_cpu:
            raise ValueError(f"container_max_cpu {self.container_max_cpu} is below container_min_cpu")
        if self.container_min_memory > self.memory_limit:
            raise ValueError("container_min_memory exceeds memory_limit")
        if self.container_max_memory is not None and self.container_max_memory < self.container_min_memory:
            raise ValueError("container_max_memory is below container_min_memory")
        return self

    @property
    def cpu_limit_us(self) -> int:
        """The application's CPU limit in microseconds per period."""
        return int(self.cpu_limit * self.period_us)

    @property
    def min_quota_us(self) -> int:
        """Smallest quota of a container, never below what the kernel accepts."""
        return max(MIN_QUOTA_US, int(self.container_min_cpu * self.period_us))

    @property
    def floor_quota_us(self) -> int:
        """Quota of a container for which there is no more, never below what the kernel accepts."""
        return max(MIN_QUOTA_US, int(self.container_floor_cpu * self.period_us))

    def initial_quota_us(self, containers: int) -> int:
        """Equation 2.1: the CPU limit shared equally, in microseconds per period."""
        return max(self.min_quota_us, self.cpu_limit_us // containers)

    def initial_memory_bytes(self, containers: int) -> int:
        """Equation 2.2 with sigma as the share *withheld* (the thesis prints the factor sigma but defines it so)."""
        share = int(self.memory_limit * (1 - self.sigma)) // containers
        return max(int(self.container_min_memory), share // 4096 * 4096)

    def refuse_containers(self, containers: int) -> str | None:
        """Why this many containers do not fit under the limits, or None if they do."""
        if containers * self.min_quota_us > self.cpu_limit_us:
            return (
                f"{containers} containers need at least {containers * self.min_quota_us / self.period_us:g} cores, "
                f"cpu_limit is {self.cpu_limit:g}"
            )
        if containers * int(self.container_min_memory) > self.memory_limit:
            return (
                f"{containers} containers need at least {containers * int(self.container_min_memory)} bytes, "
                f"memory_limit is {int(self.memory_limit)}"
            )
        return None

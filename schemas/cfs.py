"""Observations: usage and limits of every container in the last period."""

from __future__ import annotations

from enum import IntFlag
from typing import Annotated, ClassVar, Final

from pydantic import Field

from schemas.message import ColumnarMessage, Count, Int32Column, Int64Column, UInt8Column, UInt16Column, renamed


class SampleFlag(IntFlag):
    """Bits of the ``flags`` column."""

    IDLE = 1
    """No period elapsed and nothing was used: the kernel's period timer is stopped, so used is 0."""
    WALL_CLOCK = 2
    """No quota is set, so no periods are counted: usage is scaled from the wall clock."""
    EARLY = 4
    """Sent between two samples: the container has just been throttled, so all of its quota counts as used. The period
    is not over, and is part of the next sample too, which does not count it as throttled again."""
    OWN_MEMORY_LIMIT = 8
    """No agent has set its memory limit, so on its node it counts with what it uses."""


_NOT_EARLY: Final = bytes(flags for flags in range(256) if not flags & SampleFlag.EARLY)


class CfsBatch(ColumnarMessage):
    """One application's containers on one node in one period (thesis 2.3.1, 2.4.4.1)."""

    type_name: ClassVar[str] = "turnbuckle.cfs.v1.CfsBatch"

    app: str
    node: str
    incarnation: Count
    """Start time of the agent, ns since the epoch: a restarted agent has a larger one."""
    report_seq: Count
    """Counts batches and limit replies of this incarnation together: the larger one is the newer state."""
    time_ns: Count
    """When the sample was taken, ns since the epoch."""
    period_us: Annotated[int, Field(ge=1_000, le=1_000_000)]
    host_cpus: Annotated[int, Field(ge=1, le=65_536)]
    inventory_complete: bool = True
    """Whether every source of containers of the node (Docker Engine, container runtime, ...) has answered since the
    agent's start, or timed out. False: a container that is not listed here may still exist."""
    reserve_given_bytes: Count = 0
    """Cumulative reserve of this node for the application; available is given - used."""
    reserve_used_bytes: Count = 0
    """Of it, granted by the agent to containers: their `memory_limit_bytes` in this batch include it."""
    reserve_update_seq: Annotated[Count, renamed("reserve_update_seq", "reserve_order_seq")] = 0
    """Sequence of the newest reserve update received from the application's current owner; 0: none."""
    node_headroom_bytes: Annotated[int, Field(ge=-1, le=(1 << 62) - 1)] = -1
    """By how much memory limits and reserves on this node may rise: the lesser of what is allocatable and not committed
    (`schemas.containers.NodeInfo`), and what of MemAvailable is neither kept free nor promised already; -1: the agent
    sets no bound."""
    node_cpu_headroom_us: Annotated[int, Field(ge=-1, le=(1 << 62) - 1)] = -1
    """CPU budget of the node less the quotas that agents have set on it and what its other containers use, us per
    period; -1: the agent sets no bound."""
    configured_cpu_us: Annotated[int, Field(ge=-1, le=1 << 40)] = -1
    """Sum of the CPU limits that these containers came with, us per period; -1: one of them has none, or not known."""
    configured_memory_bytes: Annotated[int, Field(ge=-1, le=1 << 60)] = -1
    """Sum of the memory limits that they came with; -1: one of them has none, or not known."""

    node_idle_percent: Annotated[int, Field(ge=-1, le=100)] = -1
    """Idle share of the node's CPU time over about three periods; -1: not known."""

    periods: UInt16Column
    """CFS periods since the previous sample; 0: none has ended, only limits and memory are new."""
    quota_us: Int64Column
    """Quota in the kernel, per period; -1: unlimited."""
    used_us: Int32Column
    """CPU time used per period."""
    unused_us: Int32Column
    """Quota not used, per period; 0 when unlimited."""
    throttled: UInt16Column
    """Throttled periods since the previous sample."""
    throttled_us: Int32Column
    """Time throttled per period, summed over CPUs."""
    memory_usage_bytes: Int64Column
    memory_reclaimable_bytes: Int64Column
    """Reclaimable part of the usage: inactive page cache. Read every 5 s."""
    memory_limit_bytes: Int64Column
    """Memory limit in the kernel; -1: unlimited."""
    limit_update_seq: Annotated[Int64Column, renamed("limit_update_seq", "order_seq")]
    """Sequence of the newest limit update that the agent has accepted or rejected for this container; 0: none."""
    oom_kills: Int32Column
    """Kills by the kernel since the container was found."""
    flags: UInt8Column

    @property
    def is_early(self) -> bool:
        """Whether this is an early sample, for throttled containers only: its other rows are not new."""
        return bool(self.flags.translate(None, delete=_NOT_EARLY))  # numpy takes ten times as long for some bytes

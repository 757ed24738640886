"""Settings of the aggregator. Every field is a variable ``TURNBUCKLE_AGGREGATOR__<FIELD>``."""

from __future__ import annotations

import os
from typing import Annotated, ClassVar, Literal

from pydantic import ByteSize, Field

from schemas.sizes import MemorySize
from services._host.cgroupfs import MANAGED_ROOT
from services._runtime.service.settings import CommonSettings


class AggregatorSettings(CommonSettings):
    """What the aggregator service needs to know."""

    service: ClassVar[str] = "aggregator"

    host: Annotated[
        str,
        Field(
            min_length=1,
            max_length=200,
            description="address that aggregators listen on and workers connect to, at any free port; the default "
            "reaches workers on this host only",
        ),
    ] = "127.0.0.1"
    processes: Annotated[
        int | None, Field(ge=1, le=1024, description="aggregators at most; default: one per core of this process")
    ] = None
    memory_bytes: Annotated[
        MemorySize,
        Field(ge=1 << 20, description="memory of an aggregator for its jobs, such as 2GiB; jobs are refused beyond it"),
    ] = ByteSize(1 << 30)
    loss_limit: Annotated[
        float, Field(ge=0, le=10, description="by how much jobs of an aggregator may slow each other: 0.1 is a tenth")
    ] = 0.1
    range_values: Annotated[
        int, Field(ge=1, le=1 << 30, description="fp32 values of a range, which is moved in one piece, at most")
    ] = 1 << 22
    max_jobs: Annotated[int, Field(ge=1, le=100_000, description="jobs at most; more are refused")] = 256
    idle_after_s: Annotated[
        float, Field(gt=0, description="seconds without a finished step after which a job counts as ended")
    ] = 3_600.0
    rebalance_s: Annotated[
        float, Field(gt=0, description="seconds between two attempts to do with fewer aggregators by measured load")
    ] = 60.0

    announce_limits: Annotated[
        bool,
        Field(
            description="announce the application `aggregation`, by which allocator and agent limit the aggregators' "
            "CPU, unless there is one already"
        ),
    ] = True
    cpu_cores: Annotated[
        float | None,
        Field(ge=0.01, le=100_000, description="cores of all aggregators, as announced; default: one for each at most"),
    ] = None
    control_groups: Annotated[
        Literal["auto", "off"],
        Field(description="auto: a control group for each aggregator where they can be made; off: none"),
    ] = "auto"
    managed_root: Annotated[
        str,
        Field(
            pattern=r"^[A-Za-z0-9_-]{1,64}$",
            description="directory of the aggregators' control groups below each controller, as this host's agent has "
            "it",
        ),
    ] = MANAGED_ROOT

    @property
    def most_processes(self) -> int:
        """Aggregators at most."""
        return self.processes or len(os.sched_getaffinity(0))

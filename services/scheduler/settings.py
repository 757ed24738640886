"""Settings of the scheduler. Every field is a variable ``TURNBUCKLE_SCHEDULER__<FIELD>``."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from services._runtime.service.settings import CommonSettings


class SchedulerSettings(CommonSettings):
    """Settings of a scheduler."""

    service: ClassVar[str] = "scheduler"

    replica: Annotated[
        str, Field(min_length=1, max_length=100, description="name of this replica, in the log and in `jobs queue`")
    ] = Field(default_factory=socket.gethostname)
    policy: Annotated[
        Literal[
            "index",
            "fifo",
            "backfill",
            "fjf",
            "sjf",
            "shortest",
            "srsf",
            "shortest-gpu",
            "dlas",
            "las",
            "dlas-gpu",
            "gittins",
        ],
        Field(
            description="order of the jobs: index (a Gittins index from estimates or ended jobs), fifo (first come, "
            "first served), backfill or fjf (the same, and later jobs that fit may pass), sjf (fewest slots), shortest "
            "(least time left by its estimate), srsf or shortest-gpu (least slot-seconds left), dlas and las or "
            "dlas-gpu (least attained time or service, in queues), gittins (those queues by an index from ended "
            "jobs); the same for all replicas"
        ),
    ] = "index"
    lost_after_s: Annotated[
        float,
        Field(
            ge=30,
            description="seconds of a node's silence, and the job's grace period besides, after which workers that may "
            "be preempted count as lost; more than the runners' fence_after_s",
        ),
    ] = 330.0
    snapshot_entries: Annotated[
        int,
        Field(
            ge=1,
            description="entries of the log after which the leader stores its state: a start replays what follows",
        ),
    ] = 5_000
    topology: Annotated[
        Path | None,
        Field(
            description="topology.yaml: the links that jobs on several nodes may share, such as a rack's uplink; the "
            "same for all replicas; none: jobs share no link"
        ),
    ] = None
    advisor_timeout_s: Annotated[
        float, Field(ge=0, le=2, description="seconds that a submission waits for the advisor's estimate; 0: none")
    ] = 2.0
    planner_timeout_s: Annotated[
        float,
        Field(ge=0, le=2, description="seconds that the start of a job with a model waits for a plan; 0: no plans"),
    ] = 2.0
    gbit_per_s_inside_nodes: Annotated[
        float,
        Field(
            ge=0,
            allow_inf_nan=False,
            description="between two devices of one node, as plans count with it; 0: not known",
        ),
    ] = 0.0
    gbit_per_s_between_nodes: Annotated[
        float,
        Field(ge=0, allow_inf_nan=False, description="between two nodes, as plans count with it; 0: not known"),
    ] = 0.0
    announce_limits: Annotated[
        bool,
        Field(description="announce each job that has slots as the application job-NAME: CPU and memory limits"),
    ] = True

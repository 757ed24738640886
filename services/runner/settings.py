"""Settings of the runner. Every field is a variable ``TURNBUCKLE_RUNNER__<FIELD>``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import ByteSize, Field

from schemas.jobs import MAX_NAME_CHARACTERS
from schemas.sizes import MemorySize
from services._host.cgroupfs import MANAGED_ROOT
from services._runtime.service.settings import NodeSettings


class RunnerSettings(NodeSettings):
    """What a runner needs to know."""

    service: ClassVar[str] = "runner"

    slots: Annotated[
        int | None,
        Field(
            ge=1,
            le=100_000,
            description="slots of this node; default: its GPUs (/dev/nvidia[0-9]*), without any its cores",
        ),
    ] = None
    cores: Annotated[
        float | None, Field(gt=0, le=100_000, description="cores that its slots share; default: all of this host")
    ] = None
    memory_bytes: Annotated[
        MemorySize | None,
        Field(ge=1 << 20, description="memory that its slots share, such as 16GiB; default: all of this host"),
    ] = None
    device_kind: Annotated[
        str | None,
        Field(
            max_length=MAX_NAME_CHARACTERS,
            description="what each slot has, as layer profiles name it, such as l4; default: cpu, with GPUs not known",
        ),
    ] = None
    device_memory_bytes: Annotated[
        MemorySize | None,
        Field(ge=1, description="memory of each GPU, such as 24GiB; default: not known. Without GPUs: a slot's share"),
    ] = None
    rack: Annotated[
        str, Field(description="rack of this host: a job's workers are kept in one where that is possible")
    ] = ""
    address: Annotated[
        str | None,
        Field(description="where workers on other hosts reach this one; default: its address towards the NATS server"),
    ] = None
    network_namespace: Annotated[
        str | None,
        Field(
            description="network of the workers where they have one of their own: a namespace, by name or path; "
            "TURNBUCKLE_RUNNER__ADDRESS is this node's address there; the runner itself stays outside"
        ),
    ] = None
    state_directory: Annotated[
        Path, Field(description="records and logs of workers; they outlive the runner, so not on a tmpfs for long logs")
    ] = Path("/var/lib/turnbuckle/runner")
    run_as: Annotated[
        str | None,
        Field(
            description="user of the workers, where the runner is root; default: the user behind sudo, else `nobody`; "
            "root only if this says so"
        ),
    ] = None
    checkpoint_root: Annotated[
        Path | None,
        Field(
            description="where a job without a `checkpoint: {directory: ...}` has its directory, ROOT/JOB: the same "
            "on all nodes, made for the workers' user; default: `turnbuckle-checkpoints` below the job's directory"
        ),
    ] = None
    control_groups: Annotated[
        Literal["auto", "off"],
        Field(description="auto: a control group for each worker where they can be made; off: none"),
    ] = "auto"
    managed_root: Annotated[
        str,
        Field(
            pattern=r"^[A-Za-z0-9_-]{1,64}$",
            description="directory of workers' control groups below each controller, as this host's agent has it",
        ),
    ] = MANAGED_ROOT
    fence_after_s: Annotated[
        float,
        Field(
            gt=0,
            le=86_400,
            description="seconds without the bus after which workers of jobs that may be preempted are stopped: the "
            "scheduler may have given them up; its lost_after_s has to be longer by the grace period",
        ),
    ] = 300.0
    ready_within_s: Annotated[
        float,
        Field(
            gt=0,
            le=86_400,
            description="seconds that a worker with checkpoints may take to create TURNBUCKLE_READY_FILE; without that "
            "file it counts as ready since its start",
        ),
    ] = 60.0
    collective_timeout_s: Annotated[
        float,
        Field(
            gt=0,
            le=86_400,
            description="the shortest timeout of the jobs' collective operations (init_process_group), seconds: no "
            "pause that interleaves jobs on a link is longer than a fifth of it",
        ),
    ] = 30.0
    log_bytes: Annotated[
        MemorySize, Field(ge=1 << 16, description="of each worker's log on the disk; beyond it the oldest half goes")
    ] = ByteSize(64 << 20)
    log_days: Annotated[float, Field(ge=0, description="days for which logs of jobs that are over are kept")] = 7.0
    workers_at_stop: Annotated[
        Literal["keep", "stop"],
        Field(description="workers when the runner is stopped: keep: they run on; stop: they end with it"),
    ] = "keep"
    stop_grace_s: Annotated[
        float, Field(gt=0, le=3600, description="workers_at_stop stop: seconds from SIGTERM to SIGKILL")
    ] = 4.0
    mltcp: Annotated[
        Literal["off", "restricted", "everybody"],
        Field(
            description="congestion control for jobs that share links: restricted: for this runner's workers, and for "
            "who may choose any; everybody: every program of this host may choose it; off: not loaded"
        ),
    ] = "restricted"
    kernel_directory: Annotated[
        Path | None,
        Field(description="where `make kernel` put them; default: kernel/build of a checkout, or /usr/lib/turnbuckle"),
    ] = None

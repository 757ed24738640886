"""Settings of the agent. Every field is a variable ``TURNBUCKLE_AGENT__<FIELD>``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal

from pydantic import BeforeValidator, ByteSize, Field

from schemas.sizes import MemorySize
from services._host.cgroupfs import MANAGED_ROOT
from services._runtime.service.settings import NodeSettings

MOST_OVERCOMMIT: Final = 1000.0


def _overcommit(value: object) -> object:
    """One sentence for all mistakes, where a union would give one for each of its members."""
    if value in {"warn", "allow"}:
        return value
    try:
        ratio = float(str(value))
    except ValueError:
        ratio = 0.0
    if not 0 < ratio <= MOST_OVERCOMMIT:
        raise ValueError(f"must be warn, allow, or a ratio of limits to cores above 0, at most {MOST_OVERCOMMIT:g}")
    return ratio


class AgentSettings(NodeSettings):
    """What an agent needs to know."""

    service: ClassVar[str] = "agent"
    renamed: ClassVar[Mapping[str, str]] = {
        "early_looks": "throttle_polls_per_period",
        "pause_deadline_s": "oom_wait_timeout_s",
        "watchdog_silence_s": "watchdog_timeout_s",
    }

    host: Annotated[
        Literal["auto", "cgroup", "simulated"],
        Field(
            description="auto: control groups where they can be written, else an error; simulated: no real container"
        ),
    ] = "auto"
    scenario_file: Annotated[
        Path | None, Field(description="simulated host: JSON list of applications with load and first limits")
    ] = None
    simulated_cpus: Annotated[int, Field(ge=1, le=4096, description="simulated host: processors")] = 4
    managed_root: Annotated[
        str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$", description="directory of `turnbuckle exec` below each controller")
    ] = MANAGED_ROOT
    docker: Annotated[Literal["auto", "off"], Field(description="auto: manage labelled Docker containers")] = "auto"
    docker_url: Annotated[str | None, Field(description="Docker Engine, such as unix:///run/docker.sock")] = None
    docker_timeout_s: Annotated[
        float,
        Field(
            gt=0,
            le=3600,
            description="seconds after the start for which an unresponsive Docker Engine leaves the inventory "
            "incomplete: containers that are not reported meanwhile are not considered gone",
        ),
    ] = 30.0
    pods: Annotated[
        Literal["off", "on"], Field(description="on: manage labelled pods (needs the extra kubernetes)")
    ] = "off"
    cri_socket: Annotated[
        Path,
        Field(
            description="socket of the container runtime, which knows the pods' labels; /run/crio/crio.sock of CRI-O"
        ),
    ] = Path("/run/containerd/containerd.sock")
    pods_timeout_s: Annotated[
        float, Field(gt=0, le=3600, description="the same for an unresponsive container runtime (pods)")
    ] = 30.0
    pod_namespaces: Annotated[
        tuple[str, ...], Field(description="namespaces whose pods may join applications; empty: all")
    ] = ()
    kernel_programs: Annotated[
        Literal["auto", "off"],
        Field(description="auto: read all control groups by the kernel's own programs where they can be loaded"),
    ] = "auto"
    kernel_directory: Annotated[
        Path | None,
        Field(description="where `make kernel` put them; default: kernel/build of a checkout, or /usr/lib/turnbuckle"),
    ] = None
    throttle_polls_per_period: Annotated[
        int,
        Field(
            ge=0,
            le=9,
            description="extra readings between two samples of containers that have just been throttled, at most: on "
            "each notification of the BPF programs, or evenly spaced for 10 s after throttling, where they only "
            "read; where there are only files, of the usage of idle containers; 0: none",
        ),
    ] = 4
    realtime_priority: Annotated[
        int, Field(ge=0, le=99, description="SCHED_FIFO priority of the agent; 0: default scheduling")
    ] = 0
    state_directory: Annotated[
        Path, Field(description="state that outlives the agent: granted reserves, original limits, locks; on a tmpfs")
    ] = Path("/run/turnbuckle")
    oom_wait_timeout_s: Annotated[
        float,
        Field(
            ge=0.1,
            le=60,
            description="seconds that tasks may be blocked at their memory limit until the OOM killer is enabled again",
        ),
    ] = 2.0
    watchdog_timeout_s: Annotated[
        float,
        Field(ge=0.2, le=60, description="seconds without a heartbeat after which the watchdog acts for the agent"),
    ] = 0.5
    watchdog_groups: Annotated[
        Literal["inherit", "root"],
        Field(
            description="root: the watchdog leaves the agent's control groups, and so outlives the agent's unit or "
            "container (which needs the host's process ids and control groups)"
        ),
    ] = "inherit"
    memory_qos: Annotated[
        Literal["cooperate", "refuse"],
        Field(
            description="containers that come with a memory.high, as of the kubelet's Memory QoS (cgroup v2): "
            "cooperate keeps the lower of that and the memory guard's; refuse leaves them alone and says so"
        ),
    ] = "cooperate"
    node_memory_bytes: Annotated[
        MemorySize | None,
        Field(
            ge=1 << 20,
            description="memory of this node, such as 16GiB, at most and by default MemTotal, or the limit of the root "
            "control group",
        ),
    ] = None
    system_reserved_memory_bytes: Annotated[
        MemorySize | None,
        Field(
            ge=0,
            description="of it, kept for the system and unmanaged processes (Kubernetes: system reserved): limits of "
            "enforced containers, reserves and what other containers use add up to at most the rest; default: max(256 "
            "MiB, 5 %) or half",
        ),
    ] = None
    min_available_memory_bytes: Annotated[
        MemorySize,
        Field(
            ge=0, description="of MemAvailable, never promised: limits are raised, and memory granted, out of the rest"
        ),
    ] = ByteSize(100 << 20)
    cpu_overcommit: Annotated[
        Literal["warn", "allow"] | float,
        BeforeValidator(_overcommit),
        Field(
            description="CPU limits that add up to more than this node's cores. warn: in `apply`, `top`, `explain`; "
            "allow: no warning; a ratio, such as 1.5: limits add up to at most ratio x cores, raises beyond are refused"
        ),
    ] = "warn"
    on_drift: Annotated[
        Literal["reassert", "adopt"],
        Field(description="limits that were modified externally: reassert restores them, adopt takes the new ones"),
    ] = "reassert"

"""The one place that chooses between cgroup versions."""

from __future__ import annotations

from pathlib import Path

from services._host.cgroupfs import CgroupLayout
from services.agent.cgroup.host import CgroupHost
from services.agent.cgroup.v1 import CgroupV1Host
from services.agent.cgroup.v2 import CgroupV2Host
from services.agent.state_files import StateDirectory


def open_host(
    layout: CgroupLayout,
    state: StateDirectory | None = None,
    kernel_directory: Path | None = None,
    *,
    refuse_memory_qos: bool = False,
) -> CgroupHost:
    """The host adapter for a layout that `services._host.cgroupfs.detect` found; the rest as for the adapters."""
    if layout.version == 1:  # without memory.high
        return CgroupV1Host(layout, state, kernel_directory)
    return CgroupV2Host(layout, state, kernel_directory, refuse_memory_qos=refuse_memory_qos)

"""The one place that chooses between cgroup versions."""

from __future__ import annotations

from pathlib import Path

from services._host.cgroupfs import CgroupLayout
from services.agent.cgroup.host import CgroupHost
from services.agent.cgroup.v1 import CgroupV1Host
from services.agent.cgroup.v2 import CgroupV2Host
from services.agent.state_files import StateDirectory


def open_host(
    layout: CgroupLayout, state: StateDirectory | None = None, kernel_directory: Path | None = None
) -> CgroupHost:
    """The host adapter for a layout that `services._host.cgroupfs.detect` found; the rest as for `CgroupHost`."""
    host = CgroupV1Host if layout.version == 1 else CgroupV2Host
    return host(layout, state, kernel_directory)

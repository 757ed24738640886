"""The one place that chooses between cgroup versions."""

from __future__ import annotations

from services._runtime.cgroupfs import CgroupLayout
from services.agent.adapters.cgroup_host import CgroupHost
from services.agent.adapters.cgroup_v1 import CgroupV1Host
from services.agent.adapters.cgroup_v2 import CgroupV2Host


def open_host(layout: CgroupLayout) -> CgroupHost:
    """The host adapter for a layout that `services._runtime.cgroupfs.detect` found."""
    return CgroupV1Host(layout) if layout.version == 1 else CgroupV2Host(layout)

"""The one place that chooses between cgroup versions."""

from __future__ import annotations

from services._runtime.cgroupfs import CgroupLayout
from services.agent.adapters.cgroup_host import CgroupHost
from services.agent.adapters.cgroup_v1 import CgroupV1Host
from services.agent.adapters.cgroup_v2 import CgroupV2Host
from services.agent.adapters.state_files import StateDirectory


def open_host(layout: CgroupLayout, state: StateDirectory | None = None) -> CgroupHost:
    """The host adapter for a layout that `services._runtime.cgroupfs.detect` found; `state` as for `CgroupHost`."""
    return CgroupV1Host(layout, state) if layout.version == 1 else CgroupV2Host(layout, state)

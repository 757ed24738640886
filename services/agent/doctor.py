"""The agent's checks for `turnbuckle doctor`: BPF telemetry, memory guard, running agents, groups left behind.

Reads the agent's state directory: ``*.lock`` (JSON with the holder's pid, node and start), and per managed root
``originals/*.json`` (a container's control groups, written before the agent first changes them); and the arguments of
watchdogs (directory of the managed root, lock, the agent's pid). Takes no lock: a starting agent could mistake that for
another one.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from services._host.cgroupfs import CgroupLayout, CgroupUnavailableError, detect
from services._host.kernel_programs import (
    LOADER,
    check_programs,
    hierarchies_of,
    kernel_directory,
    loader_arguments,
)
from services._host.pod_cgroups import PodGroups, find_tops
from services._runtime.command.finding import Finding, Level
from services.agent.cgroup.v2 import external_high
from services.agent.host_lock import DOCKER_LOCK, exec_lock
from services.agent.settings import AgentSettings
from services.agent.watchdog.process import COMMAND_LINE

STATE_DIRECTORY_VARIABLE: Final = AgentSettings.variable("state_directory")
KERNEL_DIRECTORY_VARIABLE: Final = AgentSettings.variable("kernel_directory")
_FILES_ONLY: Final = "control groups are read file by file"
_TABLE: Final = "cgroups"
"""The program without which the agent reads files; the others add to it."""
_NAMED: Final = 3
"""How many are named before the rest is only counted."""


def state_directory() -> Path:
    """As the agent of this host has it."""
    return Path(os.environ.get(STATE_DIRECTORY_VARIABLE) or AgentSettings.model_fields["state_directory"].default)


def check_memory_guard(find_layout: Callable[[], CgroupLayout] = detect) -> Finding:
    """How memory is guarded here (`schemas.containers.NodeInfo.memory_guard`)."""
    try:
        layout = find_layout()
    except CgroupUnavailableError:
        return Finding("memory guard", Level.MISSING, "no control groups: sampled on a simulated host")
    directory = Path(layout.mounts["memory"].directory)
    if layout.version == 2:
        # The root group has no limits: look at its children.
        if any((child / "memory.high").exists() for child in directory.iterdir() if child.is_dir()):
            return Finding("memory guard", Level.OK, "memory.high below memory.max (version 2)")
        return Finding("memory guard", Level.NOTE, "no group below the root has memory.high yet (version 2)")
    if missing := [name for name in ("memory.oom_control", "cgroup.event_control") if not (directory / name).exists()]:
        found = f"no {' and no '.join(missing)} in {directory}: usage is sampled, and the kernel kills at the limit"
        return Finding("memory guard", Level.MISSING, found, "boot with systemd.unified_cgroup_hierarchy=1")
    return Finding(
        "memory guard",
        Level.NOTE,
        "usage thresholds and disabled OOM killer (version 1); memory.oom_control is deprecated, some kernels from "
        "6.12 on lack it",
        "boot with systemd.unified_cgroup_hierarchy=1 to use version 2",
    )


def check_memory_qos(layout: CgroupLayout, state: Path) -> Finding | None:
    """Whether the kubelet writes memory.high (Memory QoS, KEP-2570), as the memory guard does; None: no pods here.

    Args:
        layout: of this host.
        state: the agents' state directory, which says what memory.high was before they changed it.
    """
    pods = PodGroups(layout).scan(find_tops(layout)) if layout.version == 2 else []
    if not pods:
        return None
    before = {}
    for path in state.glob("*/originals/*.json"):
        said = _read_json(path)
        before[said.get("directories", {}).get("memory")] = said.get("values", {}).get("memory.high")
    directories = [layout.directories(pod.directory)["memory"] for pod in pods]
    found = [directory for directory in directories if _external_high(Path(directory), before.get(directory))]
    if not found:
        return Finding("memory QoS", Level.OK, f"no memory.high of the kubelet on {_several(len(pods), 'container')}")
    setting = AgentSettings.variable("memory_qos")
    text = (
        f"the kubelet sets memory.high (Memory QoS) on {len(found)} of {_several(len(pods), 'container')}: "
        f"{_listed(found)}; the memory guard keeps the lower one, or leaves them alone with {setting}=refuse"
    )
    return Finding("memory QoS", Level.NOTE, text, "switch the kubelet's feature gate MemoryQoS off on this node")


def _external_high(directory: Path, before: str | None) -> bool:
    """``before``: its memory.high before an agent changed it; None: none did."""
    try:
        limit = (directory / "memory.max").read_bytes().strip()
        high = before.encode() if before is not None else (directory / "memory.high").read_bytes().strip()
    except OSError:  # gone, or without the memory controller
        return False
    return external_high(high, limit) is not None


def check_state_directory(directory: Path) -> Finding:
    """Whether the agent can keep there what must outlive it."""
    existing = next(path for path in (directory, *directory.parents) if path.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        mend = f"sudo turnbuckle up, or set {STATE_DIRECTORY_VARIABLE} to a directory on a tmpfs"
        return Finding("state directory", Level.MISSING, f"{directory} cannot be written", mend)
    made = "" if existing == directory else ", and will be made"
    return Finding("state directory", Level.OK, f"{directory} can be written{made}")


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds a lock, and what it says of itself."""

    lock: str
    pid: int
    node: str
    started: str


def lock_holders(directory: Path, locks: str = "/proc/locks") -> dict[str, Holder]:
    """Who holds which lock file of the state directory, by file name."""
    held = dict(_flocks(Path(locks)))
    found = {}
    for path in sorted(directory.glob("*.lock")):
        status = path.stat()
        device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
        if (pid := held.get(device)) is not None:
            said = _read_json(path)
            found[path.name] = Holder(path.name, pid, str(said.get("node", "?")), str(said.get("started", "?")))
    return found


def check_lock_holders(holders: dict[str, Holder]) -> Finding:
    """Which agents run here; a second one for the same containers would be refused."""
    if not holders:
        return Finding("agents here", Level.OK, "none holds a lock: `turnbuckle up` can start one")
    by_pid: dict[int, list[Holder]] = {}
    for holder in holders.values():
        by_pid.setdefault(holder.pid, []).append(holder)
    agents = [
        f"pid {pid}, node {group[0].node}, since {group[0].started}, holds {', '.join(item.lock for item in group)}"
        for pid, group in by_pid.items()
    ]
    mend = "stop it before `turnbuckle up`, or use `turnbuckle up --simulate`"
    return Finding("agents here", Level.NOTE, "; ".join(agents), mend)


@dataclass(frozen=True, slots=True)
class WatchdogSeen:
    """A watchdog that runs."""

    pid: int
    root_directory: str
    """State directory of its agent's managed root."""
    orphaned: bool
    """Its agent has gone."""


def running_watchdogs(proc: str = "/proc") -> list[WatchdogSeen]:
    """All on this host."""
    found = []
    for entry in sorted(Path(proc).glob("[0-9]*")):
        try:
            command = (entry / "cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ").decode(errors="replace")
            if (match := COMMAND_LINE.search(command)) is not None:
                # The name in parentheses may hold anything, also spaces.
                parent = (entry / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1]
                found.append(WatchdogSeen(int(entry.name), match["state"], parent != match["agent"]))
        except (OSError, ValueError, IndexError):  # it has ended meanwhile
            continue
    return found


def check_watchdogs(watchdogs: list[WatchdogSeen]) -> Finding:
    """Watchdogs whose agent has gone."""
    left = [watchdog for watchdog in watchdogs if watchdog.orphaned]
    if left:
        pids = ", ".join(str(watchdog.pid) for watchdog in left)
        text = f"{_several(len(left), 'watchdog')} without an agent (pid {pids}) manages its containers"
        mend = "start the agent again; without one the kernel gets its kill back and the watchdog ends within a minute"
        return Finding("watchdogs", Level.NOTE, text, mend)
    return Finding("watchdogs", Level.OK, f"{len(watchdogs)} with an agent, none without")


@dataclass(frozen=True, slots=True)
class GuardedGroup:
    """A control group that an agent has changed, or whose tasks wait at their memory limit."""

    directory: str
    root: str | None
    """The managed root of the agent that has changed it; None: it is in no agent's books."""
    docker: bool
    paused: bool
    """Version 1: under_oom."""


def guarded_groups(directory: Path, layout: CgroupLayout) -> list[GuardedGroup]:
    """Groups in the agents' books that still exist, and, version 1, any other whose tasks wait with no kill to come."""
    groups = {}
    for path in sorted(directory.glob("*/originals/*.json")):
        said = _read_json(path)
        memory = said.get("directories", {}).get("memory")
        if isinstance(memory, str) and _inode(memory) == said.get("inode"):
            root = path.parent.parent.name
            managed = f"/{root}/" in memory
            groups[memory] = GuardedGroup(memory, root, not managed, _oom_control(Path(memory)) == (1, 1))
    if layout.version == 1:
        for found, _, files in os.walk(layout.mounts["memory"].directory):
            if found not in groups and "memory.oom_control" in files and _oom_control(Path(found)) == (1, 1):
                groups[found] = GuardedGroup(found, None, docker=False, paused=True)
    return list(groups.values())


def check_left_behind(groups: list[GuardedGroup], holders: dict[str, Holder], watchdogs: list[WatchdogSeen]) -> Finding:
    """Groups left paused, or with altered settings, without an agent or watchdog."""
    watched = {Path(watchdog.root_directory).name for watchdog in watchdogs}

    def orphaned(group: GuardedGroup) -> bool:
        if group.root is None:
            return True
        lock = DOCKER_LOCK if group.docker else exec_lock(Path(), group.root).name
        return lock not in holders and group.root not in watched

    left = [group for group in groups if orphaned(group)]
    paused = [group for group in left if group.paused]
    if paused:
        text = f"tasks are blocked at their memory limit without an agent or watchdog: {_names(paused)}"
        mend = f"start the agent, or let the kernel kill: echo 0 > {paused[0].directory}/memory.oom_control"
        return Finding("left behind", Level.FAILED, text, mend)
    if left:
        text = f"{_several(len(left), 'control group')} with settings of an agent that is gone: {_names(left)}"
        return Finding("left behind", Level.NOTE, text, "start the agent: it takes them over, and restores at its end")
    return Finding("left behind", Level.OK, f"nothing; {_several(len(groups), 'control group')} looked after")


def check_kernel_programs(find_layout: Callable[[], CgroupLayout] = detect) -> Finding:
    """Load each BPF program for a moment: whether the agent can read by them, and why not."""
    directory = kernel_directory(Path(given) if (given := os.environ.get(KERNEL_DIRECTORY_VARIABLE)) else None)
    try:
        hierarchies = hierarchies_of(find_layout())
    except CgroupUnavailableError:
        return Finding("telemetry", Level.NOTE, "no control groups: a simulated host has its own")
    if not os.access(directory / LOADER, os.X_OK):
        return Finding("telemetry", Level.NOTE, f"{_FILES_ONLY}: {directory / LOADER} is not there", "make kernel")
    command = [str(directory / LOADER), *loader_arguments(directory, hierarchies, "--check", "--json")]
    try:
        programs = check_programs(command)
    except (OSError, subprocess.SubprocessError, ValueError, TypeError, KeyError) as error:
        return Finding(
            "telemetry", Level.NOTE, f"{_FILES_ONLY}: {directory / LOADER} does not run: {error}", "make kernel"
        )
    if why_no_table := programs.get(_TABLE, "the loader does not know the table"):
        mend = "sudo turnbuckle doctor" if os.geteuid() else ""
        return Finding("telemetry", Level.NOTE, f"{_FILES_ONLY}: {why_no_table}", mend)
    failed = [f"{name}: {why}" for name, why in programs.items() if why]
    found = "all control groups in one read of the kernel's own table"
    return Finding("telemetry", Level.NOTE if failed else Level.OK, "; ".join([found, *failed]))


def run_guard_checks() -> list[Finding]:
    """Everything about the memory guard of this host."""
    directory = state_directory()
    holders = lock_holders(directory)
    findings = [check_memory_guard(), check_state_directory(directory), check_lock_holders(holders)]
    watchdogs = running_watchdogs()
    findings.append(check_watchdogs(watchdogs))
    try:
        layout = detect()
    except CgroupUnavailableError:
        return findings
    if (memory_qos := check_memory_qos(layout, directory)) is not None:
        findings.append(memory_qos)
    return [*findings, check_left_behind(guarded_groups(directory, layout), holders, watchdogs)]


def _flocks(locks: Path) -> Iterator[tuple[str, int]]:
    """Device and inode, and the holder's pid (proc_locks(5)); processes of other PID namespaces are not shown."""
    try:
        lines = locks.read_text(encoding="ascii").splitlines()
    except OSError:
        return
    for line in lines:
        fields = line.split()
        if len(fields) >= 6 and fields[1] == "FLOCK":
            yield fields[5], int(fields[4])


def _oom_control(directory: Path) -> tuple[int, int]:
    """oom_kill_disable and under_oom; zeros where there is no such file."""
    try:
        lines = (directory / "memory.oom_control").read_text(encoding="ascii").splitlines()
        values = {name: int(value) for name, value in (line.split() for line in lines)}
    except (OSError, ValueError):
        return 0, 0
    return values.get("oom_kill_disable", 0), values.get("under_oom", 0)


def _inode(directory: str) -> int | None:
    try:
        return Path(directory).stat().st_ino
    except OSError:
        return None


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _names(groups: list[GuardedGroup]) -> str:
    return _listed([group.directory for group in groups])


def _listed(directories: list[str]) -> str:
    more = f" and {len(directories) - _NAMED} more" if len(directories) > _NAMED else ""
    return ", ".join(directories[:_NAMED]) + more


def _several(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"

"""What this host offers to workers: slots, an address, control groups, and the user that they run as."""

from __future__ import annotations

import grp
import os
import pwd
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from services._host.cgroupfs import CgroupLayout, CgroupUnavailableError, can_manage, detect
from services._host.host_load import memory_capacity
from services._runtime.settings_error import UnusableSettingsError
from services.runner.core.node_slots import NodeSlots
from services.runner.settings import RunnerSettings

DEVICES: Final = Path("/dev")
UNPRIVILEGED: Final = "nobody"
_SUDO_USER: Final = "SUDO_USER"
_LOOPBACK: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class WorkerUser:
    """Who workers run as."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str


def node_slots(settings: RunnerSettings, devices: Path = DEVICES) -> NodeSlots:
    """The node's slots, by its settings or by what is there."""
    gpus = len(list(devices.glob("nvidia[0-9]*")))
    cores = settings.cores or float(os.cpu_count() or 1)
    memory_bytes = settings.memory_bytes or _host_memory_bytes()
    return NodeSlots(settings.slots or gpus or max(1, int(cores)), gpus, cores, memory_bytes)


def _host_memory_bytes() -> int:
    with suppress(CgroupUnavailableError):
        return memory_capacity(detect())
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def node_address(settings: RunnerSettings, nats_url: str) -> str:
    """Where workers on other hosts reach this one: as set, else the one that NATS sees."""
    if settings.address:
        return settings.address
    server = urlsplit(nats_url if "://" in nats_url else f"nats://{nats_url}")
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((server.hostname or _LOOPBACK, server.port or 4222))  # sends nothing (udp(7))
        return str(probe.getsockname()[0])
    return _LOOPBACK


def usable_groups(settings: RunnerSettings) -> CgroupLayout | str:
    """This host's control groups, or why workers get none."""
    if settings.control_groups == "off":
        return "switched off by TURNBUCKLE_RUNNER__CONTROL_GROUPS"
    try:
        layout = detect()
    except CgroupUnavailableError as error:
        return str(error)
    return can_manage(layout) or layout


def worker_user(run_as: str | None) -> WorkerUser | None:
    """Who workers run as; None: as the runner, which is not root and cannot change that.

    Raises:
        UnusableSettingsError: there is no such user, or the runner may not become it.
    """
    if os.geteuid() != 0:
        own = pwd.getpwuid(os.geteuid()).pw_name
        if run_as not in (None, own):
            raise UnusableSettingsError(
                f"TURNBUCKLE_RUNNER__RUN_AS={run_as}: the runner is not root, so workers run as {own}: unset it"
            )
        return None
    behind = os.environ.get(_SUDO_USER, "")
    name = run_as or (behind if behind not in ("", "root") else UNPRIVILEGED)
    try:
        entry = pwd.getpwnam(name)
    except KeyError as error:
        raise UnusableSettingsError(f"workers cannot run as {name}: there is no such user on this host") from error
    groups = {entry.pw_gid, *(group.gr_gid for group in grp.getgrall() if name in group.gr_mem)}
    return WorkerUser(name, entry.pw_uid, entry.pw_gid, tuple(sorted(groups)), entry.pw_dir)

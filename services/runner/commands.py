"""What the CLI uses of the runner: the check of congestion control for `turnbuckle doctor`."""

from __future__ import annotations

import os
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Final

from schemas.scheduling import MLTCP
from services._host.bpf.congestion import AVAILABLE, DEFAULT
from services._host.cgroupfs import CgroupUnavailableError, detect
from services._host.kernel_programs import CONGESTION_LOADER, check_programs, kernel_directory
from services._runtime.command.finding import Finding, Level
from services.runner.settings import RunnerSettings

KERNEL_DIRECTORY_VARIABLE: Final = RunnerSettings.variable("kernel_directory")
CONTROL_GROUPS_VARIABLE: Final = RunnerSettings.variable("control_groups")
NETWORK_NAMESPACE_VARIABLE: Final = RunnerSettings.variable("network_namespace")
MOUNTINFO: Final = Path("/proc/self/mountinfo")
RDMA_DEVICES: Final = Path("/sys/class/infiniband")
_NAME: Final = "congestion control"


def check_congestion_control(
    available: Path = AVAILABLE,
    default: Path = DEFAULT,
    rdma_devices: Path = RDMA_DEVICES,
    mountinfo: Path = MOUNTINFO,
) -> Finding:
    """Whether workers' connections can have MLTCP, by trying it for a moment, and how; what they have otherwise."""
    try:
        names, host_default = available.read_text(encoding="ascii").split(), default.read_text(encoding="ascii").strip()
    except OSError as error:
        return Finding(_NAME, Level.NOTE, f"not known: {error.filename}: {error.strerror}")
    otherwise = f"the host's default is {host_default}"
    devices = sorted(path.name for path in rdma_devices.iterdir()) if rdma_devices.is_dir() else []
    if devices:
        otherwise += f"; RDMA ({', '.join(devices)}): TCP's congestion control has no effect on its traffic"
    if MLTCP in names:
        return Finding(_NAME, Level.OK, f"{MLTCP} is loaded; workers have it {_how(mountinfo)}; {otherwise}")
    directory = kernel_directory(Path(given) if (given := os.environ.get(KERNEL_DIRECTORY_VARIABLE)) else None)
    loader = directory / CONGESTION_LOADER
    if not os.access(loader, os.X_OK):
        return Finding(_NAME, Level.NOTE, f"no {MLTCP}: {loader} is not there; {otherwise}", "make kernel")
    try:
        why_not = check_programs([loader, "--objects", directory, "--check", "--json"])
    except (OSError, subprocess.SubprocessError, ValueError, TypeError, KeyError) as error:
        return Finding(_NAME, Level.NOTE, f"no {MLTCP}: {loader} does not run: {error}; {otherwise}", "make kernel")
    failed = [f"no {name}: {why}" for name, why in why_not.items() if why]
    if failed:
        mend = "sudo turnbuckle doctor" if os.geteuid() else ""
        return Finding(_NAME, Level.NOTE, "; ".join([*failed, otherwise]), mend)
    loadable = f"a runner can load {', '.join(name for name in why_not)}"
    return Finding(_NAME, Level.OK, f"{loadable}; workers have it {_how(mountinfo)}; {otherwise}")


def _how(mountinfo: Path) -> str:
    """By what a runner with the settings of this environment gives it."""
    if os.environ.get(CONTROL_GROUPS_VARIABLE) != "off":
        with suppress(CgroupUnavailableError):
            if not any(mount.read_only for mount in detect(str(mountinfo)).mounts.values()):
                return "by their control groups"
    if namespace := os.environ.get(NETWORK_NAMESPACE_VARIABLE):
        return f"by the routes of network namespace {namespace}"
    return f"in no way here: that takes control groups, or {NETWORK_NAMESPACE_VARIABLE}"

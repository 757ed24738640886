"""Prerequisites of the machine: privileges, kernel features, FRR. Read-only."""

from __future__ import annotations

import ctypes
import errno
import grp
import os
import pwd
import shutil
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from services._host.netns import netns_path
from services.fabric.frr_text import DAEMON_PRIORITIES, VTY_GROUP, FrrPaths
from services.fabric.links import unsupported_devices
from services.fabric.model import HostFile
from services.fabric.nic import Nics
from services.fabric.preflight_error import PreflightProblem
from services.fabric.resources import SWITCHDEV

_CLONE_NEWNET: Final = 0x40000000
_CAPABILITIES: Final = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}
"""linux/capability.h: devices and routes; network namespaces."""
_INSTALL_FRR: Final = "apt-get install frr"


def rights(status: str | None = None) -> list[PreflightProblem]:
    """Whether we may change devices and enter network namespaces."""
    text = Path("/proc/self/status").read_text(encoding="ascii") if status is None else status
    line = next((line for line in text.splitlines() if line.startswith("CapEff:")), "CapEff: 0")
    held = int(line.split()[1], 16)
    lacking = [name for name, bit in _CAPABILITIES.items() if not held >> bit & 1]
    if not lacking:
        return []
    return [
        PreflightProblem(
            f"no right to change this host's network ({' and '.join(lacking)})", "sudo turnbuckle fabric ..."
        )
    ]


def kernel(host: HostFile) -> Iterator[PreflightProblem]:
    """Whether the kernel can create the file's devices: tried in a scratch namespace."""
    wanted: dict[str, dict[str, Any]] = {
        "bridge": {"kind": "bridge"},
        "vxlan": {"kind": "vxlan", "vxlan_id": host.vni, "vxlan_port": host.vxlan.port},
    }
    if any(port.type == "veth" for port in host.ports):
        wanted["veth"] = {"kind": "veth", "peer": "probe1"}
    for kind, number in _try_in_scratch_namespace(wanted).items():
        if number == errno.EOPNOTSUPP:
            remedy = f"modprobe {kind}, or a kernel with CONFIG_{kind.upper()}"
            yield PreflightProblem(f"this kernel has no {kind} devices", remedy)
        elif number:
            yield PreflightProblem(f"a {kind} device cannot be made ({os.strerror(number)})", "see `dmesg`")
    if not Path("/proc/sys/net/ipv6").exists():
        yield PreflightProblem(
            "this kernel has no IPv6, which unnumbered uplinks speak over", "boot without ipv6.disable=1"
        )
    if any("/" not in port.netns for port in host.ports) and shutil.which("ip") is None:
        yield PreflightProblem("there is no `ip` command", "apt-get install iproute2")


def _try_in_scratch_namespace(wanted: dict[str, dict[str, Any]]) -> dict[str, int]:
    """Error number per kind of device, 0 where it could be made. The namespace ends with the thread."""
    outcome = dict.fromkeys(wanted, 0)

    def attempt() -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(_CLONE_NEWNET):
            outcome.update(dict.fromkeys(wanted, ctypes.get_errno()))
            return
        outcome.update(unsupported_devices(wanted))

    thread = threading.Thread(target=attempt, name="kernel-probe")
    thread.start()
    thread.join()
    return outcome


def frr(host: HostFile, paths: FrrPaths) -> Iterator[PreflightProblem]:
    """Whether FRR is installed, and no other zebra runs in the namespace."""
    if not Path(paths.configuration).is_dir():
        yield PreflightProblem(f"FRR is not installed (no {paths.configuration})", _INSTALL_FRR)
        return
    if shutil.which("vtysh") is None:
        yield PreflightProblem("FRR's vtysh is not installed", _INSTALL_FRR)
    try:
        pwd.getpwnam("frr")
    except KeyError:
        yield PreflightProblem("there is no user frr, which FRR runs as", _INSTALL_FRR)
    if not host.frr.start:
        return
    try:
        grp.getgrnam(VTY_GROUP)
    except KeyError:
        remedy = f"groupadd --system {VTY_GROUP} && usermod -a -G {VTY_GROUP} frr, or {_INSTALL_FRR}"
        yield PreflightProblem(f"there is no group {VTY_GROUP}, which vtysh's users are in", remedy)
    for name in DAEMON_PRIORITIES:
        if not os.access(f"{paths.binaries}/{name}", os.X_OK):
            yield PreflightProblem(f"FRR's {name} is not in {paths.binaries}", _INSTALL_FRR)
    yield from _other_zebra(host, paths)
    if host.frr.realtime and (number := _try_realtime()):
        remedy = "grant CAP_SYS_NICE (and cpu.rt_runtime_us of the control group), or 'frr: {realtime: false}'"
        yield PreflightProblem(f"FRR cannot be given SCHED_RR ({os.strerror(number)})", remedy)


def _other_zebra(host: HostFile, paths: FrrPaths) -> Iterator[PreflightProblem]:
    """Two zebras in one namespace remove each other's routes."""
    own = ""
    with suppress(OSError):
        own = Path(paths.runtime, host.pathspace or host.name, "zebra.pid").read_text(encoding="ascii").strip()
    place = netns_path(host.netns) if host.netns else Path("/proc/self/ns/net")
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or entry.name == own:
            continue
        try:
            if (entry / "comm").read_text().strip() != "zebra" or not (entry / "ns/net").samefile(place):
                continue
        except OSError:
            continue  # it has ended meanwhile
        remedy = f"'frr: {{start: false}}' to use that one, or end it: kill {entry.name}"
        yield PreflightProblem(f"another zebra (process {entry.name}) runs in this network namespace", remedy)


def nics(host: HostFile, found: Nics) -> Iterator[PreflightProblem]:
    """Whether NICs have the virtual functions that the file asks for, or can be given them without harm to others."""
    wanted: dict[str, int] = {}
    for port in host.ports:
        if port.vf:
            wanted[port.vf.nic] = max(wanted.get(port.vf.nic, 0), port.vf.number + 1)
    for command, package in (("devlink", "iproute2"), ("ethtool", "ethtool")):
        if wanted and shutil.which(command) is None:
            yield PreflightProblem(f"there is no `{command}` command, which SR-IOV needs", f"apt-get install {package}")
            return
    for nic, count in wanted.items():
        yield from _nic(nic, count, found)


def _nic(nic: str, count: int, found: Nics) -> Iterator[PreflightProblem]:
    if found.pci_address(nic) is None:
        yield PreflightProblem(
            f"there is no NIC {nic} on the PCI bus", "name its device, or 'type: veth'", in_file=True
        )
        return
    limit, there = found.function_limit(nic), found.function_count(nic)
    if count > limit:
        most = f"numbers up to {limit - 1}" if limit else "none, see its firmware's SR-IOV setting (mstconfig SRIOV_EN)"
        yield PreflightProblem(
            f"{nic} can have {limit} virtual functions, number {count - 1} is asked for", f"it has {most}"
        )
        return
    anew = f"end their users, then echo 0 > /sys/class/net/{nic}/device/sriov_numvfs"
    if 0 < there < count:
        yield PreflightProblem(
            f"{nic} has {there} virtual functions, {count} are needed, and the kernel goes only through 0", anew
        )
    try:
        mode = found.switch_mode(nic)
    except OSError as error:
        yield PreflightProblem(
            f"the switch of {nic} cannot be queried ({error.strerror})", "see `devlink dev eswitch show`"
        )
        return
    if mode is None:
        yield PreflightProblem(f"{nic} has no switch that devlink can set to switchdev", "'type: veth' for its ports")
    elif mode != SWITCHDEV and there:
        yield PreflightProblem(
            f"{nic} has virtual functions in {mode} mode, which a change would take from their users", anew
        )


def _try_realtime() -> int:
    """Error number of taking SCHED_RR, 0 where it is permitted; tried in a thread of its own."""
    outcome = [0]

    def attempt() -> None:
        try:
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(max(DAEMON_PRIORITIES.values())))
        except OSError as error:
            outcome[0] = error.errno or errno.EPERM

    thread = threading.Thread(target=attempt, name="realtime-probe")
    thread.start()
    thread.join()
    return outcome[0]

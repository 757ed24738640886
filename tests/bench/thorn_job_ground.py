"""What the training job stands on: hosts, as namespaces of their applications, and switch ports that can be cut.

`single_homed` is the edge of today: one uplink per host, nothing that could take over; it needs only namespaces. Two
uplinks per host are in `thorn_job_lab`.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from services._host.netns import NETNS_DIRECTORY
from services.fabric.testbed.topology import APPLICATION_MTU_BYTES

FaultName = Literal["blackhole", "link-down"]
"""blackhole: packets vanish both ways and no carrier is lost; link-down: the port is switched off."""

_PREFIX: Final = "tbjob"
_DROP_ALL: Final = "1,6 0 0 2"
"""One instruction of classic BPF: return TC_ACT_SHOT."""


@dataclass(frozen=True, slots=True)
class FaultPort:
    """A port of a switch, by which a host is attached."""

    name: str
    fail: Callable[[], object]
    restore: Callable[[], object]


@dataclass(frozen=True, slots=True)
class Ground:
    """Hosts and ports; ports in the order in which faults go round. Host N has address 172.16.0.N on device app."""

    namespaces: tuple[str, ...]
    ports: tuple[FaultPort, ...]


def why_not() -> str | None:
    """Why the training job cannot run here, or None."""
    if os.geteuid() != 0:
        return "needs root to make network namespaces"
    for command in ("ip", "tc", "nsenter", "setpriv", "vtysh"):
        if shutil.which(command) is None:
            return f"needs the command {command}: apt-get install iproute2 util-linux frr"
    if importlib.util.find_spec("torch") is None:
        return "needs torch: pip install -c constraints.txt torch"
    return None


@contextmanager
def single_homed(hosts: int, fault: FaultName) -> Iterator[Ground]:
    """One switch, one uplink per host: namespaces ``tbjob<pid>-...``, gone at the end.

    Raises:
        subprocess.CalledProcessError: no right to make namespaces.
    """
    _remove_orphans()
    prefix = f"{_PREFIX}{os.getpid()}"
    switch, applications = f"{prefix}-s1", tuple(f"{prefix}-a{number}" for number in range(1, hosts + 1))
    try:
        for namespace in (switch, *applications):
            _ip("netns", "add", namespace)
            _ip("-n", namespace, "link", "set", "lo", "up")
        _ip("-n", switch, "link", "add", "br0", "type", "bridge")
        _ip("-n", switch, "link", "set", "br0", "up")
        for number, application in enumerate(applications, 1):
            _attach(switch, application, number)
        yield Ground(applications, tuple(_port(switch, f"d{number}", fault) for number in range(1, hosts + 1)))
    finally:
        for namespace in (switch, *applications):
            if (NETNS_DIRECTORY / namespace).exists():
                _ip("netns", "del", namespace)


def _attach(switch: str, application: str, number: int) -> None:
    port, mtu = f"d{number}", str(APPLICATION_MTU_BYTES)
    _ip("-n", switch, "link", "add", port, "type", "veth", "peer", "name", "app", "netns", application)
    _ip("-n", switch, "link", "set", port, "mtu", mtu, "master", "br0", "up")
    _ip("-n", application, "link", "set", "app", "address", f"02:00:00:00:00:{number:02x}", "mtu", mtu, "up")
    _ip("-n", application, "address", "add", f"172.16.0.{number}/24", "dev", "app")


def _port(switch: str, port: str, fault: FaultName) -> FaultPort:
    def carrier(state: str) -> None:
        _ip("-n", switch, "link", "set", port, state)

    def blackhole() -> None:
        _tc(switch, "qdisc", "add", "dev", port, "clsact")
        for direction in ("ingress", "egress"):
            _tc(switch, "filter", "add", "dev", port, direction, "bpf", "da", "bytecode", _DROP_ALL)

    def lift() -> None:
        _tc(switch, "qdisc", "del", "dev", port, "clsact")

    name = f"{switch.rpartition('-')[2]}/{port}"
    if fault == "blackhole":
        return FaultPort(name, blackhole, lift)
    return FaultPort(name, lambda: carrier("down"), lambda: carrier("up"))


def _remove_orphans() -> None:
    """Remove what a killed run has left."""
    for path in NETNS_DIRECTORY.glob(f"{_PREFIX}*-*"):
        owner = path.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            _ip("netns", "del", path.name)


def _ip(*arguments: str) -> None:
    _run(["ip", *arguments])


def _tc(namespace: str, *arguments: str) -> None:
    _run(["tc", "-n", namespace, *arguments])


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)

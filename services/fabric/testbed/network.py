"""Namespaces, cables and switches' addresses of the lab."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from services._host.netns import inside
from services._runtime.command.errors import CommandError
from services.fabric.testbed.netlink import LabNetlink
from services.fabric.testbed.topology import UNDERLAY_MTU_BYTES, Cable, DualTor, PortState

_ROUTER: Final = {
    "net/ipv4/ip_forward": "1",
    "net/ipv4/fib_multipath_hash_policy": "1",
    "net/ipv6/conf/all/forwarding": "1",
    "net/ipv4/conf/all/rp_filter": "0",
    "net/ipv4/conf/default/rp_filter": "0",
}
"""Kernel settings of a switch."""
_WITHIN_S: Final = 60.0
_DOWN: Final = PortState(up=False)


def make_namespace(netns: str) -> None:
    """Make one, with its loopback device up.

    Raises:
        CommandError: it exists, or cannot be made.
    """
    run_ip(["netns", "add", netns])
    set_up(netns, ["lo"])


def remove_namespace(netns: str) -> None:
    """Remove one and the devices in it.

    Raises:
        CommandError: it cannot be removed.
    """
    run_ip(["netns", "delete", netns])


def create_cables(cables: Iterable[Cable]) -> None:
    """Make the veth pairs and set both ends up.

    Raises:
        CommandError: one cannot be made.
    """
    laid = tuple(cables)
    mtu = f"mtu {UNDERLAY_MTU_BYTES}"
    run_ip_batch(
        f"link add {cable.first.port} {mtu} netns {cable.first.netns} type veth "
        f"peer name {cable.second.port} {mtu} netns {cable.second.netns}"
        for cable in laid
    )
    ports: dict[str, list[str]] = {}
    for end in (end for cable in laid for end in (cable.first, cable.second)):
        ports.setdefault(end.netns, []).append(end.port)
    for netns, names in ports.items():
        set_up(netns, names)


def prepare_switches(topology: DualTor) -> None:
    """Forwarding and loopback addresses. Before the cables are laid: new devices take the defaults.

    Raises:
        CommandError, OSError: something was refused.
    """
    for switch in topology.switches:
        with inside(switch.netns):
            for name, value in _ROUTER.items():
                (Path("/proc/sys") / name).write_text(value, encoding="ascii")
        run_ip(["-n", switch.netns, "address", "add", f"{switch.router_id}/32", "dev", "lo"])


def set_up(netns: str, names: Iterable[str]) -> None:
    """Set devices up."""
    with LabNetlink(netns) as netlink:
        netlink.set_ports({name: (_DOWN, PortState()) for name in names})


def run_ip(arguments: list[str]) -> None:
    """Run iproute2's `ip`.

    Raises:
        CommandError: it failed; holds what it said.
    """
    _run(["ip", *arguments], None)


def run_ip_batch(lines: Iterable[str]) -> None:
    """Several `ip` commands in one process.

    Raises:
        CommandError: one failed; holds what it said.
    """
    _run(["ip", "-batch", "-"], "\n".join(lines) + "\n")


def _run(command: list[str], text: str | None) -> None:
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=_WITHIN_S, check=False)  # noqa: S603 - our own words
    except FileNotFoundError as error:
        raise CommandError("iproute2 is missing: apt-get install iproute2") from error
    except subprocess.TimeoutExpired as error:
        raise CommandError(f"{' '.join(command)} did not end within {_WITHIN_S:g} s") from error
    if done.returncode:
        raise CommandError(f"{' '.join(command)}: {done.stderr.strip()}")

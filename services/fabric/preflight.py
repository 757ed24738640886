"""Whether a host.yaml suits the host, found out before anything is written. Every mistake is named with its remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from ipaddress import IPv4Interface, ip_interface
from pathlib import Path
from typing import Any

from services._host.netns import netns_path
from services.fabric import prerequisites
from services.fabric.machine import Machine
from services.fabric.model import SMALLEST_MTU_BYTES, HostFile, Port
from services.fabric.places import Places
from services.fabric.problem import PreflightError, Problem
from services.fabric.resources import ip_command


def examine(host: HostFile, machine: Machine, places: Places) -> int:
    """Look at the host with a file's eyes. Returns the applications' MTU in bytes.

    Raises:
        PreflightError: names everything that is wrong.
    """
    require_ground(host)
    mtu, problems = look(host, machine, places)
    if problems:
        raise PreflightError(problems)
    return mtu


def require_ground(host: HostFile) -> None:
    """See that the host can be looked at.

    Raises:
        PreflightError: no rights, or no such network namespace.
    """
    require_rights()
    if missing := _missing_namespace(host):
        raise PreflightError(missing)


def require_rights() -> None:
    """See that we may change this host's network.

    Raises:
        PreflightError: we may not.
    """
    if lacking := prerequisites.rights():
        raise PreflightError(lacking)


def look(host: HostFile, machine: Machine, places: Places) -> tuple[int, list[Problem]]:
    """The applications' MTU in bytes, and everything that is wrong."""
    problems = [*prerequisites.kernel(host), *prerequisites.frr(host, places.frr)]
    problems += [*prerequisites.nics(host, machine.nics), *_devices(host, machine)]
    mtu, too_small = _mtu(host, machine)
    problems += [*too_small, *_addresses(host, machine), *_macs(host, machine), *_tunnels(host, machine)]
    return mtu, problems


def _missing_namespace(host: HostFile) -> list[Problem]:
    if host.netns is not None and not netns_path(host.netns).exists():
        return [
            Problem(f"there is no network namespace {host.netns}", f"ip netns add {host.netns}, or leave 'netns' out")
        ]
    paths = [port.netns for port in host.ports if "/" in port.netns and not Path(port.netns).exists()]
    return [
        Problem(
            f"there is no network namespace {path}", "start the application first, or name one for `fabric up` to make"
        )
        for path in paths
    ]


def _devices(host: HostFile, machine: Machine) -> Iterator[Problem]:
    links = machine.links(host.netns)
    names = {link["index"]: link.get_attr("IFLA_IFNAME") for link in links.every()}
    for uplink in host.uplinks:
        link = links.find(uplink.name)
        if link is None:
            near = difflib.get_close_matches(uplink.name, names.values(), n=1)
            known = ", ".join(sorted(name for name in names.values() if name != "lo")) or "none but lo"
            hint = f"did you mean {near[0]}?" if near else f"devices here are {known}"
            yield Problem(f"there is no uplink {uplink.name}", hint, in_file=True)
        elif master := link.get_attr("IFLA_MASTER"):
            command = f"{ip_command(host.netns)} link set {uplink.name} nomaster"
            yield Problem(f"uplink {uplink.name} is a port of {names.get(master, master)}, so it cannot route", command)


def _mtu(host: HostFile, machine: Machine) -> tuple[int, list[Problem]]:
    """The applications' MTU: as the file says, else what fits through every uplink."""
    found = {uplink.name: machine.links(host.netns).attribute(uplink.name, "mtu") for uplink in host.uplinks}
    sizes = {name: int(mtu) for name, mtu in found.items() if mtu is not None}
    if not sizes:
        return host.mtu or SMALLEST_MTU_BYTES, []  # no uplink is there, and that was said
    least = min(sizes.values()) - host.overhead_bytes
    mtu = host.mtu or least
    needed, ip = mtu + host.overhead_bytes, ip_command(host.netns)
    problems = [
        Problem(
            f"uplink {name} has MTU {size}, too small for the applications' {mtu} and VXLAN's {host.overhead_bytes}",
            f"{ip} link set {name} mtu {needed}, also the switch's; or 'mtu: {size - host.overhead_bytes}' in the file",
        )
        for name, size in sizes.items()
        if size < needed
    ]
    if least < SMALLEST_MTU_BYTES and not problems:
        small = min(sizes, key=lambda name: sizes[name])
        needed = SMALLEST_MTU_BYTES + host.overhead_bytes
        problems.append(
            Problem(
                f"uplink {small} has an MTU of {sizes[small]}: less {host.overhead_bytes} for VXLAN, {least} is left",
                f"{ip} link set {small} mtu {max(needed, 1500 + host.overhead_bytes)}",
            )
        )
    return mtu, problems


def _addresses(host: HostFile, machine: Machine) -> Iterator[Problem]:
    here = machine.links(host.netns).addresses()
    wanted = [("lo", f"{host.vtep}/32")]
    wanted += [(uplink.name, str(uplink.address)) for uplink in host.uplinks if uplink.address]
    for device, address in wanted:
        yield from _elsewhere(device, address, here, host.netns)
    for port in host.ports:
        if netns_path(port.netns).exists():
            inner = machine.links(port.netns).addresses()
            yield from _elsewhere(port.device, str(port.address), inner, port.netns)
            yield from _same_network(port, inner)


def _elsewhere(device: str, address: str, addresses: list[tuple[str, str]], netns: str | None) -> Iterator[Problem]:
    text, place = address.partition("/")[0], f" in {netns}" if netns else ""
    for other, held in addresses:
        if held.partition("/")[0] == text and (other, held) != (device, address):
            yield Problem(
                f"the address {address} for {device}{place} is there already, as {held} on {other}",
                f"{ip_command(netns)} address del {held} dev {other}, or choose another",
            )


def _same_network(port: Port, addresses: list[tuple[str, str]]) -> Iterator[Problem]:
    for other, held in addresses:
        interface = ip_interface(held)
        if other == port.device or not isinstance(interface, IPv4Interface) or interface.ip == port.address.ip:
            continue
        if interface.network.overlaps(port.address.network):
            yield Problem(
                f"{other} in {port.netns} has {held}, which overlaps port {port.name}'s {port.address.network}",
                f"{ip_command(port.netns)} address del {held} dev {other}, or choose another network for the port",
            )


def _macs(host: HostFile, machine: Machine) -> Iterator[Problem]:
    links = machine.links(host.netns)
    owners = {str(link.get_attr("IFLA_ADDRESS")): link.get_attr("IFLA_IFNAME") for link in links.every()}
    remote = {mac: vtep for _, mac, _, vtep in links.entries() if vtep}
    for port in host.ports:
        if owner := owners.get(port.mac):
            remedy = "choose another, such as 02 and five bytes of your own"
            yield Problem(f"port {port.name}'s MAC {port.mac} is that of {owner} here", remedy, in_file=True)
        if vtep := remote.get(port.mac):
            remedy = "choose another: a MAC belongs to one application in the whole fabric"
            yield Problem(f"port {port.name}'s MAC {port.mac} is announced by the host {vtep}", remedy, in_file=True)


def _tunnels(host: HostFile, machine: Machine) -> Iterator[Problem]:
    wanted = [(host.vxlan_name, host.vni, host.vxlan.port, False)]
    if host.encapsulation:
        wanted.append((host.encapsulation.name, 0, host.encapsulation.port, True))
    ours = {name for name, *_ in wanted}
    for link in machine.links(host.netns).every():
        name = str(link.get_attr("IFLA_IFNAME"))
        if link.get_nested("IFLA_LINKINFO", "IFLA_INFO_KIND") != "vxlan" or name in ours:
            continue
        vni, port, external = _vxlan_of(link)
        for device, wanted_vni, wanted_port, wanted_external in wanted:
            if port == wanted_port and (external != wanted_external or vni == wanted_vni):
                yield Problem(
                    f"{name} uses UDP port {port}"
                    + ("" if external != wanted_external else f" and VNI {vni}")
                    + f" already, so that the kernel refuses {device}",
                    f"{ip_command(host.netns)} link del {name}, or choose another port or VNI in the file",
                )


def _vxlan_of(link: Any) -> tuple[int, int, bool]:
    def parameter(name: str) -> Any:
        return link.get_nested("IFLA_LINKINFO", "IFLA_INFO_DATA", f"IFLA_VXLAN_{name}")

    return parameter("ID") or 0, parameter("PORT"), bool(parameter("COLLECT_METADATA"))

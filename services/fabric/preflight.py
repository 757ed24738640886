"""Preflight checks of a host.yaml against the host, before anything is written. Every problem has its remedy."""

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
from services.fabric.paths import FabricPaths
from services.fabric.preflight_error import PreflightError, PreflightProblem
from services.fabric.resources import ip_command


def run_preflight(host: HostFile, machine: Machine, paths: FabricPaths) -> int:
    """Check the host against its file. Returns the applications' MTU in bytes.

    Raises:
        PreflightError: names everything that is wrong.
    """
    require_host_access(host)
    mtu, problems = find_problems(host, machine, paths)
    if problems:
        raise PreflightError(problems)
    return mtu


def require_host_access(host: HostFile) -> None:
    """Check that the host's network can be read.

    Raises:
        PreflightError: no rights, or no such network namespace.
    """
    require_privileges()
    if missing := _missing_namespace(host):
        raise PreflightError(missing)


def require_privileges() -> None:
    """Check the privileges to change this host's network.

    Raises:
        PreflightError: they are missing.
    """
    if lacking := prerequisites.rights():
        raise PreflightError(lacking)


def find_problems(host: HostFile, machine: Machine, paths: FabricPaths) -> tuple[int, list[PreflightProblem]]:
    """The applications' MTU in bytes, and everything that is wrong."""
    problems = [*prerequisites.kernel(host), *prerequisites.frr(host, paths.frr)]
    problems += [*prerequisites.nics(host, machine.nics), *_devices(host, machine)]
    mtu, too_small = _mtu(host, machine)
    problems += [*too_small, *_addresses(host, machine), *_macs(host, machine), *_tunnels(host, machine)]
    return mtu, problems


def _missing_namespace(host: HostFile) -> list[PreflightProblem]:
    if host.netns is not None and not netns_path(host.netns).exists():
        return [
            PreflightProblem(
                f"there is no network namespace {host.netns}", f"ip netns add {host.netns}, or leave 'netns' out"
            )
        ]
    paths = [port.netns for port in host.ports if "/" in port.netns and not Path(port.netns).exists()]
    return [
        PreflightProblem(
            f"there is no network namespace {path}", "start the application first, or name one for `fabric up` to make"
        )
        for path in paths
    ]


def _devices(host: HostFile, machine: Machine) -> Iterator[PreflightProblem]:
    links = machine.links(host.netns)
    names = {link["index"]: link.get_attr("IFLA_IFNAME") for link in links.every()}
    for uplink in host.uplinks:
        link = links.find(uplink.name)
        if link is None:
            near = difflib.get_close_matches(uplink.name, names.values(), n=1)
            known = ", ".join(sorted(name for name in names.values() if name != "lo")) or "none but lo"
            hint = f"did you mean {near[0]}?" if near else f"devices here are {known}"
            yield PreflightProblem(f"there is no uplink {uplink.name}", hint, in_file=True)
        elif master := link.get_attr("IFLA_MASTER"):
            command = f"{ip_command(host.netns)} link set {uplink.name} nomaster"
            yield PreflightProblem(
                f"uplink {uplink.name} is a port of {names.get(master, master)}, so it cannot route", command
            )


def _mtu(host: HostFile, machine: Machine) -> tuple[int, list[PreflightProblem]]:
    """The applications' MTU: as the file says, else what fits through every uplink."""
    found = {uplink.name: machine.links(host.netns).attribute(uplink.name, "mtu") for uplink in host.uplinks}
    sizes = {name: int(mtu) for name, mtu in found.items() if mtu is not None}
    if not sizes:
        return host.mtu or SMALLEST_MTU_BYTES, []  # no uplink exists: reported by `_devices`
    least = min(sizes.values()) - host.overhead_bytes
    mtu = host.mtu or least
    needed, ip = mtu + host.overhead_bytes, ip_command(host.netns)
    problems = [
        PreflightProblem(
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
            PreflightProblem(
                f"uplink {small} has an MTU of {sizes[small]}: less {host.overhead_bytes} for VXLAN, {least} is left",
                f"{ip} link set {small} mtu {max(needed, 1500 + host.overhead_bytes)}",
            )
        )
    return mtu, problems


def _addresses(host: HostFile, machine: Machine) -> Iterator[PreflightProblem]:
    here = machine.links(host.netns).addresses()
    wanted = [("lo", f"{host.vtep}/32")]
    wanted += [(uplink.name, str(uplink.address)) for uplink in host.uplinks if uplink.address]
    for device, address in wanted:
        yield from _address_conflicts(device, address, here, host.netns)
    for port in host.ports:
        if netns_path(port.netns).exists():
            inner = machine.links(port.netns).addresses()
            yield from _address_conflicts(port.device, str(port.address), inner, port.netns)
            yield from _network_overlaps(port, inner)


def _address_conflicts(
    device: str, address: str, addresses: list[tuple[str, str]], netns: str | None
) -> Iterator[PreflightProblem]:
    text, place = address.partition("/")[0], f" in {netns}" if netns else ""
    for other, held in addresses:
        if held.partition("/")[0] == text and (other, held) != (device, address):
            yield PreflightProblem(
                f"the address {address} for {device}{place} is there already, as {held} on {other}",
                f"{ip_command(netns)} address del {held} dev {other}, or choose another",
            )


def _network_overlaps(port: Port, addresses: list[tuple[str, str]]) -> Iterator[PreflightProblem]:
    for other, held in addresses:
        interface = ip_interface(held)
        if other == port.device or not isinstance(interface, IPv4Interface) or interface.ip == port.address.ip:
            continue
        if interface.network.overlaps(port.address.network):
            yield PreflightProblem(
                f"{other} in {port.netns} has {held}, which overlaps port {port.name}'s {port.address.network}",
                f"{ip_command(port.netns)} address del {held} dev {other}, or choose another network for the port",
            )


def _macs(host: HostFile, machine: Machine) -> Iterator[PreflightProblem]:
    links = machine.links(host.netns)
    owners = {str(link.get_attr("IFLA_ADDRESS")): link.get_attr("IFLA_IFNAME") for link in links.every()}
    remote = {mac: vtep for _, mac, _, vtep in links.entries() if vtep}
    for port in host.ports:
        if owner := owners.get(port.mac):
            remedy = "choose another, such as 02 and five bytes of your own"
            yield PreflightProblem(f"port {port.name}'s MAC {port.mac} is that of {owner} here", remedy, in_file=True)
        if vtep := remote.get(port.mac):
            remedy = "choose another: a MAC belongs to one application in the whole fabric"
            yield PreflightProblem(
                f"port {port.name}'s MAC {port.mac} is announced by the host {vtep}", remedy, in_file=True
            )


def _tunnels(host: HostFile, machine: Machine) -> Iterator[PreflightProblem]:
    wanted = [(host.vxlan_name, host.vni, host.vxlan.port, False)]
    if host.encapsulation:
        wanted.append((host.encapsulation.name, 0, host.encapsulation.port, True))
    own_devices = {name for name, *_ in wanted}
    for link in machine.links(host.netns).every():
        name = str(link.get_attr("IFLA_IFNAME"))
        if link.get_nested("IFLA_LINKINFO", "IFLA_INFO_KIND") != "vxlan" or name in own_devices:
            continue
        vni, port, external = _vxlan_of(link)
        for device, wanted_vni, wanted_port, wanted_external in wanted:
            if port == wanted_port and (external != wanted_external or vni == wanted_vni):
                yield PreflightProblem(
                    f"{name} uses UDP port {port}"
                    + ("" if external != wanted_external else f" and VNI {vni}")
                    + f" already, so that the kernel refuses {device}",
                    f"{ip_command(host.netns)} link del {name}, or choose another port or VNI in the file",
                )


def _vxlan_of(link: Any) -> tuple[int, int, bool]:
    def parameter(name: str) -> Any:
        return link.get_nested("IFLA_LINKINFO", "IFLA_INFO_DATA", f"IFLA_VXLAN_{name}")

    return parameter("ID") or 0, parameter("PORT"), bool(parameter("COLLECT_METADATA"))

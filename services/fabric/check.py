"""Differences between a host and its host.yaml, and the state of FRR's sessions. Read-only."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from services._edge.frr import Frr, FrrError
from services.fabric.access import SOCKET, exposure_of
from services.fabric.frr_text import DAEMON_PRIORITIES, SOCKETS_ACCESS
from services.fabric.journal import Journal
from services.fabric.layout import layout, load_command
from services.fabric.machine import Machine
from services.fabric.model import HostFile, Uplink
from services.fabric.nic import Nics
from services.fabric.paths import FabricPaths
from services.fabric.plan import ConflictError, step_for
from services.fabric.preflight import find_problems, require_host_access
from services.fabric.resources import Resource, ip_command

APPLY_COMMAND: Final = "turnbuckle fabric up"
_FAMILIES: Final = {"ipv4Unicast": "IPv4", "l2VpnEvpn": "EVPN"}


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference between the host and its file."""

    name: str
    found: str
    wanted: str
    remedy: str
    """A command, or what to do."""


def check(host: HostFile, paths: FabricPaths | None = None) -> list[Difference]:
    """Compare the host with its file, and FRR with both. Empty where all is well.

    Not for a thread that runs an event loop: there, ``await asyncio.to_thread(check, host)``.

    Raises:
        PreflightError: there is no right to look, or no such namespace.
        JournalError: the journal cannot be read.
    """
    paths = paths or FabricPaths()
    with Machine(Nics(paths.sysfs)) as machine:
        require_host_access(host)
        mtu, problems = find_problems(host, machine, paths)
        journal = Journal.load(paths.state, host.name)
        found = [Difference(problem.what, "a problem", "none", problem.remedy) for problem in problems]
        absent: set[str] = set()
        for resource in layout(host, mtu, paths.frr):
            value = machine.read(resource)
            if value is None:
                absent.add(resource.key)
            # The attributes of an absent device are not reported one by one.
            if resource.parent not in absent:
                found += _compare(resource, value, owned=journal.made(resource.key))
        found += _addresses(host, machine)
    found += _socket_access(host, paths)
    return found + asyncio.run(_frr_differences(host, paths))


def _compare(resource: Resource, value: str | None, *, owned: bool) -> Iterator[Difference]:
    try:
        step = step_for(resource, value, owned=owned)
    except ConflictError as conflict:
        yield Difference(resource.key, "not made by turnbuckle", resource.show(resource.value), conflict.remedy)
        return
    if step.writes:
        yield Difference(
            resource.key,
            resource.show(value),
            resource.show(resource.value),
            f"{APPLY_COMMAND}, or: {' && '.join(step.commands)}",
        )


def _addresses(host: HostFile, machine: Machine) -> Iterator[Difference]:
    """An unnumbered link needs a link-local address, which the kernel makes or NetworkManager does."""
    links = machine.links(host.netns)
    held = {name for name, address in links.addresses() if address.startswith("fe80:")}
    for uplink in host.uplinks:
        if uplink.peer is None and uplink.name not in held and links.attribute(uplink.name, "state") == "up":
            command = f"{ip_command(host.netns)} link set {uplink.name} addrgenmode eui64"
            remedy = f"see that it has carrier; if so {command}, then down and up"
            yield Difference(f"link-local address of {uplink.name}", "absent", "present", remedy)


async def _frr_differences(host: HostFile, paths: FabricPaths) -> list[Difference]:
    frr = Frr(host.pathspace, directory=Path(paths.frr.runtime))
    load = {name: load_command(host, paths.frr, name) for name in DAEMON_PRIORITIES}
    parts = {"zebra": _zebra(host, frr, load["zebra"]), "bgpd": _bgpd(host, frr, load["bgpd"])}
    if host.bfd is not None:
        parts["bfdd"] = _bfdd(host, frr, load["bfdd"])
    found = []
    for name, part in parts.items():
        try:
            found += [difference async for difference in part]
        except FrrError as error:
            remedy = APPLY_COMMAND if host.frr.start else f"systemctl restart frr, then {load[name]}"
            found.append(Difference(f"FRR's {name}", str(error), "answers", remedy))
    return found


async def _zebra(host: HostFile, frr: Frr, load: str) -> AsyncIterator[Difference]:
    running = await frr.ask("zebra", "show running-config")
    for line, why in (
        ("no zebra nexthop kernel enable", "or a group stays shrunk after a fault"),
        ("ip protocol bgp route-map SOURCE", "or tunnels leave with an uplink's address"),
    ):
        if line not in running.splitlines():
            yield Difference(f"FRR's '{line}'", "absent", f"present, {why}", load)
    vnis = await frr.show_json("zebra", "show evpn vni json")
    device = vnis.get(str(host.vni), {}).get("vxlanIf", "unknown")
    if device != host.vxlan_name:
        yield Difference(f"FRR's device of VNI {host.vni}", device, host.vxlan_name, load)


async def _bgpd(host: HostFile, frr: Frr, load: str) -> AsyncIterator[Difference]:
    summary = await frr.show_json("bgpd", "show bgp summary json")
    for family, title in _FAMILIES.items():
        part = summary.get(family)
        if part is None:
            yield Difference(f"BGP's {title} routes", "not configured", f"AS {host.asn}", load)
            continue
        for what, field, wanted in (
            ("AS", "as", host.asn),
            ("router id", "routerId", str(host.router_id or host.vtep)),
        ):
            if part.get(field) != wanted:
                yield Difference(f"BGP's {what}", str(part.get(field)), str(wanted), load)
        for uplink in host.uplinks:
            state = part.get("peers", {}).get(uplink.neighbour, {}).get("state", "not configured")
            if state != "Established":
                yield Difference(
                    f"BGP session on {uplink.name} ({title})",
                    state,
                    "Established",
                    _session_remedy(uplink, state, load),
                )
    evpn = await frr.show_json("bgpd", "show bgp l2vpn evpn vni json")
    if evpn.get("advertiseAllVnis") != "Enabled":
        yield Difference("BGP's advertise-all-vni", "off", "on", load)


def _session_remedy(uplink: Uplink, state: str, load: str) -> str:
    if state == "not configured":
        return load
    return f"see the cable of {uplink.name} and the switch: vtysh -c 'show bgp neighbors {uplink.neighbour}' there"


def _socket_access(host: HostFile, paths: FabricPaths) -> Iterator[Difference]:
    """Of an FRR that the distribution starts; of one that `up` starts, the directory is a resource."""
    directory = Path(paths.frr.runtime) / (host.pathspace or "")
    try:
        exposure = None if host.frr.start else exposure_of(directory)
    except OSError:
        return  # bfdd does not run: reported by `_frr_differences`
    if exposure is not None:
        name = f"access to {directory / SOCKET}"
        yield Difference(name, f"{exposure.who} ({exposure.found})", SOCKETS_ACCESS, exposure.remedy)


async def _bfdd(host: HostFile, frr: Frr, load: str) -> AsyncIterator[Difference]:
    assert host.bfd is not None, "checked only with BFD"
    peers = await frr.show_json("bfdd", "show bfd peers json")
    timers = {
        "receive-interval": host.bfd.interval_ms,
        "transmit-interval": host.bfd.interval_ms,
        "detect-multiplier": host.bfd.multiplier,
    }
    for uplink in host.uplinks:
        peer = _peer(peers, uplink)
        if peer is None:
            yield Difference(f"BFD session on {uplink.name}", "absent", "up", f"it comes with BGP's; else {load}")
            continue
        if peer.get("status") != "up":
            remedy = f"see the cable of {uplink.name}, and that the switch has BFD"
            yield Difference(f"BFD session on {uplink.name}", str(peer.get("status")), "up", remedy)
        for field, wanted in timers.items():
            if peer.get(field) != wanted:
                yield Difference(f"BFD's {field} on {uplink.name}", str(peer.get(field)), str(wanted), load)


def _peer(peers: list[dict[str, Any]], uplink: Uplink) -> dict[str, Any] | None:
    for peer in peers:
        if peer.get("peer") == uplink.neighbour or (uplink.peer is None and peer.get("interface") == uplink.name):
            return peer
    return None

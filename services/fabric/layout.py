"""Which resources a host.yaml asks for, in the order in which they are made. Pure."""

from __future__ import annotations

import hashlib
from typing import Final

from services.fabric.frr_text import DAEMON_PRIORITIES, SOCKETS_ACCESS, FrrConfiguration, FrrPaths, host_configuration
from services.fabric.model import HostFile, Port, Uplink, VirtualFunction
from services.fabric.resources import (
    Address,
    Daemon,
    Device,
    Directory,
    Feature,
    LinkAttribute,
    MovedFunction,
    Namespace,
    PortFlag,
    Representor,
    Resource,
    StaticEntry,
    SwitchMode,
    Sysctl,
    TextFile,
    VirtualFunctions,
    bridge_text,
    veth_text,
    vxlan_text,
)

TC_OFFLOAD: Final = "hw-tc-offload"
ZEBRA_BUFFER_BYTES: Final = 90_000_000
"""Netlink receive buffer, as FRR's own packages set it."""


def layout(host: HostFile, mtu: int, paths: FrrPaths) -> tuple[Resource, ...]:
    """Everything, in order; ``mtu`` is the applications'."""
    every: tuple[Resource, ...] = (
        *_namespaces(host),
        # First, as a change of mode may make the uplinks' devices anew.
        *_nics(host),
        *_sysctls(host),
        *_uplinks(host),
        *_loopback(host),
        *_bridge(host, mtu),
        *_tunnel(host, mtu),
        *_encapsulation(host, mtu),
        *(resource for port in host.ports for resource in _port(host, port, mtu)),
        *frr_resources(host, paths),
    )
    # Two applications may share a namespace, and its loopback.
    return tuple({resource.key: resource for resource in reversed(every)}.values())[::-1]


def _namespaces(host: HostFile) -> list[Resource]:
    names = dict.fromkeys(port.netns for port in host.ports if "/" not in port.netns)
    return [Namespace(name=name) for name in names]


def _sysctls(host: HostFile) -> list[Resource]:
    wanted = {"net/ipv4/fib_multipath_hash_policy": "1", "net/ipv4/conf/all/rp_filter": "0"}
    for uplink in host.uplinks:
        # While one uplink fails, packets of a peer arrive to which no route of this host leads back.
        wanted[f"net/ipv4/conf/{uplink.name}/rp_filter"] = "0"
        if uplink.peer is None:
            # FRR reads the switch's advertisements itself; the kernel must not make a default route of them.
            wanted[f"net/ipv6/conf/{uplink.name}/accept_ra"] = "0"
        if host.transit:
            wanted[f"net/ipv4/conf/{uplink.name}/forwarding"] = "1"
        if host.ignore_linkdown:
            wanted[f"net/ipv4/conf/{uplink.name}/ignore_routes_with_linkdown"] = "1"
    return [Sysctl(netns=host.netns, name=name, value=value) for name, value in wanted.items()]


def _uplinks(host: HostFile) -> list[Resource]:
    return [resource for uplink in host.uplinks for resource in _uplink(host, uplink)]


def _uplink(host: HostFile, uplink: Uplink) -> list[Resource]:
    up = LinkAttribute(netns=host.netns, device=uplink.name, attribute="state", value="up")
    if uplink.address is None:
        # Unnumbered BGP speaks over link-local addresses.
        ipv6 = Sysctl(netns=host.netns, name=f"net/ipv6/conf/{uplink.name}/disable_ipv6", value="0")
        return [ipv6, up]
    return [up, Address(netns=host.netns, device=uplink.name, address=str(uplink.address))]


def _loopback(host: HostFile) -> list[Resource]:
    return [
        LinkAttribute(netns=host.netns, device="lo", attribute="state", value="up"),
        Address(netns=host.netns, device="lo", address=f"{host.vtep}/32"),
    ]


def _attributes(device: Device, **values: str) -> list[Resource]:
    return [
        LinkAttribute(netns=device.netns, device=device.name, attribute=attribute, value=value, parent=device.key)
        for attribute, value in values.items()
    ]


def _bridge(host: HostFile, mtu: int) -> list[Resource]:
    bridge = Device(netns=host.netns, name=host.bridge, kind="bridge", value=bridge_text())
    # Without addresses of its own: it is the applications' switch, and no member of their network.
    return [bridge, *_attributes(bridge, addrgenmode="none", mtu=str(mtu), state="up")]


def _tunnel(host: HostFile, mtu: int) -> list[Resource]:
    device = Device(
        netns=host.netns,
        name=host.vxlan_name,
        kind="vxlan",
        value=vxlan_text(host.vni, str(host.vtep), host.vxlan.port, external=False, learning=False),
        vni=host.vni,
        local=str(host.vtep),
        port=host.vxlan.port,
    )
    flags = {"neigh_suppress": "on", "learning": "off"}
    return [
        device,
        *_attributes(device, addrgenmode="none", mtu=str(mtu), master=host.bridge),
        *(
            PortFlag(netns=host.netns, device=device.name, flag=flag, value=value, parent=device.key)
            for flag, value in flags.items()
        ),
        *_attributes(device, state="up"),
    ]


def _encapsulation(host: HostFile, mtu: int) -> list[Resource]:
    if host.encapsulation is None:
        return []
    device = Device(
        netns=host.netns,
        name=host.encapsulation.name,
        kind="vxlan",
        value=vxlan_text(0, str(host.vtep), host.encapsulation.port, external=True, learning=False),
        local=str(host.vtep),
        port=host.encapsulation.port,
        external=True,
    )
    # It only sends: what arrives on its port has no receiver, and must not get into this host's own stack.
    ip_disabled = {
        f"net/ipv4/conf/{device.name}/rp_filter": "1",  # no route leads back through it, so no source is right
        f"net/ipv4/conf/{device.name}/arp_ignore": "8",
        f"net/ipv6/conf/{device.name}/disable_ipv6": "1",
    }
    return [
        device,
        *(Sysctl(netns=host.netns, name=name, value=value, parent=device.key) for name, value in ip_disabled.items()),
        *_attributes(device, addrgenmode="none", mtu=str(mtu), state="up"),
    ]


def _nics(host: HostFile) -> list[Resource]:
    counts: dict[str, int] = {}
    for port in host.ports:
        if port.vf:
            counts[port.vf.nic] = max(counts.get(port.vf.nic, 0), port.vf.number + 1)
    return [
        resource
        for nic, count in counts.items()
        for resource in (
            SwitchMode(nic=nic),
            Feature(device=nic, feature=TC_OFFLOAD, value="on"),
            VirtualFunctions(nic=nic, value=str(count)),
        )
    ]


def _port(host: HostFile, port: Port, mtu: int) -> list[Resource]:
    """This host's end as a port of the bridge, and the application's end in its namespace."""
    ends = _function(port, port.vf) if port.vf else _pair(host, port)
    parent = ends[0].key if port.vf is None else VirtualFunctions(nic=port.vf.nic).key
    wanted = {"addrgenmode": "none", "mtu": str(mtu), "master": host.bridge, "state": "up"}
    return [
        *ends,
        *(
            LinkAttribute(netns=host.netns, device=port.name, attribute=attribute, value=value, parent=parent)
            for attribute, value in wanted.items()
        ),
        StaticEntry(netns=host.netns, device=port.name, mac=port.mac, parent=parent),
        *_application(port, parent, mtu),
    ]


def _pair(host: HostFile, port: Port) -> list[Resource]:
    value, inner, place = veth_text(port.device, port.netns), port.device, port.netns
    return [Device(netns=host.netns, name=port.name, kind="veth", value=value, peer=inner, peer_netns=place)]


def _function(port: Port, vf: VirtualFunction) -> list[Resource]:
    parent = VirtualFunctions(nic=vf.nic).key
    return [
        Representor(nic=vf.nic, number=vf.number, value=port.name, parent=parent),
        Feature(device=port.name, feature=TC_OFFLOAD, value="on", parent=parent),
        MovedFunction(nic=vf.nic, number=vf.number, netns=port.netns, device=port.device, parent=parent),
    ]


def _application(port: Port, parent: str, mtu: int) -> list[Resource]:
    def attribute(name: str, value: str) -> Resource:
        return LinkAttribute(netns=port.netns, device=port.device, attribute=name, value=value, parent=parent)

    namespace = Namespace(name=port.netns).key
    loopback = LinkAttribute(netns=port.netns, device="lo", attribute="state", value="up", parent=namespace)
    return [
        attribute("address", port.mac),
        attribute("mtu", str(mtu)),
        Address(netns=port.netns, device=port.device, address=str(port.address), parent=parent),
        attribute("state", "up"),
        loopback,
    ]


def frr_resources(host: HostFile, paths: FrrPaths) -> list[Resource]:
    """FRR's files and, where asked, its daemons."""
    configuration = host_configuration(host)
    if not host.frr.start:
        return [TextFile(path=written_file(host, paths), value=configuration.integrated)]
    return started_frr(host, configuration, paths)


def written_file(host: HostFile, paths: FrrPaths) -> str:
    """The file that a running FRR is to load."""
    directory = f"{paths.configuration}/{host.pathspace}" if host.pathspace else paths.configuration
    return f"{directory}/turnbuckle-{host.name}.conf"


def load_command(host: HostFile, paths: FrrPaths, daemon: str) -> str:
    """What puts a daemon's configuration into force once more, in a running FRR."""
    pathspace = f" -N {host.pathspace}" if host.pathspace else ""
    started = f"{paths.configuration}/{host.pathspace}/{daemon}.conf"
    return f"vtysh{pathspace} -f {started if host.frr.start else written_file(host, paths)}"


def started_frr(host: HostFile, configuration: FrrConfiguration, paths: FrrPaths) -> list[Resource]:
    """A set of daemons of our own, with a pathspace of its own."""
    pathspace = host.pathspace or host.name
    order = priorities(with_bfd=host.bfd is not None, realtime=host.frr.realtime)
    return daemon_resources(pathspace, host.netns, configuration, order, paths)


def priorities(*, with_bfd: bool, realtime: bool) -> dict[str, int]:
    """Daemons in the order in which they are started, and the priority of each; 0: default scheduling."""
    wanted = [name for name in DAEMON_PRIORITIES if name != "bfdd" or with_bfd]
    return {name: DAEMON_PRIORITIES[name] if realtime else 0 for name in wanted}


def daemon_resources(
    pathspace: str,
    netns: str | None,
    configuration: FrrConfiguration,
    order: dict[str, int],
    paths: FrrPaths,
) -> list[Resource]:
    """Directories, files and daemons of one pathspace; also for the lab's switches."""
    etc = Directory(path=f"{paths.configuration}/{pathspace}")
    run = Directory(path=f"{paths.runtime}/{pathspace}", value=SOCKETS_ACCESS, volatile=True)
    texts = {"zebra": configuration.zebra, "bgpd": configuration.bgpd, "bfdd": configuration.bfdd}
    files: list[Resource] = [TextFile(path=f"{etc.path}/vtysh.conf", value="", parent=None)]
    started: list[Resource] = []
    for name, priority in order.items():
        file = TextFile(path=f"{etc.path}/{name}.conf", value=texts[name])
        files.append(file)
        started.append(_daemon(name, (pathspace, netns, priority), file, paths))
    return [etc, run, *files, *started]


def _daemon(name: str, place: tuple[str, str | None, int], file: TextFile, paths: FrrPaths) -> Daemon:
    pathspace, netns, priority = place
    runtime = f"{paths.runtime}/{pathspace}"
    buffer = ("-s", str(ZEBRA_BUFFER_BYTES)) if name == "zebra" else ()
    # -P 0: no terminal on a TCP port.
    command = (
        f"{paths.binaries}/{name}",
        "-d",
        "-N",
        pathspace,
        "-f",
        file.path,
        "-i",
        f"{runtime}/{name}.pid",
        "-P",
        "0",
        "--log",
        f"file:{runtime}/{name}.log",
        "--log-level",
        "informational",
        *buffer,
    )
    digest = hashlib.sha256("\0".join((*command, str(priority), file.value)).encode()).hexdigest()[:16]
    return Daemon(
        netns=netns,
        name=name,
        pathspace=pathspace,
        command=command,
        priority=priority,
        pid_file=f"{runtime}/{name}.pid",
        value=digest,
    )

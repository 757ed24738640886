"""host.yaml: what one host needs to hang on two switches with one device per application (thesis 3.3).

    name: gpu-07
    asn: 65007
    vtep: 10.255.0.7                  # loopback address: source of every tunnel, BGP's router id
    uplinks: [p1, p2]                 # unnumbered eBGP; or {name: p1, address: 192.0.2.1/31, peer: 192.0.2.0}
    vni: 100
    ports:
      - name: rep0                    # this host's end
        mac: 02:00:00:00:00:07        # the application's end, in its own network namespace
        address: 172.16.0.7/24
        netns: training
    frr: {start: true}

Every other field has a default. Mistakes within the file are found here, mistakes about the host in `preflight`.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

VXLAN_OVERHEAD_BYTES: Final = {4: 50, 6: 70}
"""IP header 20 or 40, UDP 8, VXLAN 8, inner Ethernet 14 (RFC 7348 section 5)."""
SMALLEST_MTU_BYTES: Final = 576
INTERFACE_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9_.@-]{0,14}$"
NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"
_MAC_PATTERN: Final = re.compile(r"^[0-9a-f]{2}(:[0-9a-f]{2}){5}$")

InterfaceName = Annotated[str, Field(pattern=INTERFACE_PATTERN)]
"""A network device's name: at most 15 characters (IFNAMSIZ)."""
Name = Annotated[str, Field(pattern=NAME_PATTERN)]
NamespaceName = Annotated[str, Field(pattern=r"^(/[!-~]+|[A-Za-z0-9][A-Za-z0-9_.-]{0,62})$")]
"""As `ip netns` shows it, or a path such as /proc/4711/ns/net."""
Asn = Annotated[int, Field(ge=1, le=4_294_967_294)]
UdpPort = Annotated[int, Field(ge=1, le=65_535)]


def _check_mac(text: str) -> str:
    mac = text.lower()
    if not _MAC_PATTERN.match(mac):
        raise ValueError(f"{text!r} should be six bytes such as '02:00:00:00:00:07'")
    if int(mac[:2], 16) & 1 or mac == "00:00:00:00:00:00":
        raise ValueError(f"{text!r} is no unicast address: the first byte must be even, such as 02")
    return mac


Mac = Annotated[str, AfterValidator(_check_mac)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class Uplink(_Part):
    """A port to a top-of-rack switch, with an eBGP session. Without ``peer`` unnumbered (RFC 5549, link-local)."""

    name: InterfaceName
    address: Annotated[
        IPv4Interface | None, Field(description="own address of a numbered link, such as 192.0.2.1/31")
    ] = None
    peer: Annotated[IPv4Address | None, Field(description="the switch's address on a numbered link")] = None
    peer_asn: Annotated[Asn | None, Field(description="the switch's AS number; unset: any other than ours")] = None

    @model_validator(mode="after")
    def _check_numbers(self) -> Self:
        if (self.address is None) != (self.peer is None):
            missing, there = ("peer", "address") if self.peer is None else ("address", "peer")
            raise ValueError(
                f"{self.name} has '{there}' but no '{missing}': a numbered link needs both, another neither"
            )
        if self.address is not None and self.peer is not None:
            if self.peer not in self.address.network:
                raise ValueError(
                    f"{self.name}: peer {self.peer} is not in {self.address.network}: BGP could not reach it"
                )
            if self.peer == self.address.ip:
                raise ValueError(f"{self.name}: peer and address are both {self.peer}: they must differ")
        return self

    @property
    def neighbour(self) -> str:
        """How FRR names the session: by interface, or by address."""
        return self.name if self.peer is None else str(self.peer)


def _to_uplink(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


class VirtualFunction(_Part):
    """Which SR-IOV virtual function becomes the application's device."""

    nic: Annotated[InterfaceName, Field(description="the physical function's network device")]
    number: Annotated[int, Field(ge=0, le=4095, description="which virtual function, from 0")]


class Port(_Part):
    """One application's single device (thesis 3.3.1), and its end in the host's bridge."""

    name: Annotated[InterfaceName, Field(description="this host's end: veth or representor")]
    type: Literal["veth", "vf"] = "veth"
    mac: Mac
    address: Annotated[IPv4Interface, Field(description="the application's address with its prefix")]
    netns: Annotated[NamespaceName, Field(description="the application's network namespace; made if it has a name")]
    device: Annotated[InterfaceName, Field(description="the device's name in that namespace")] = "app"
    vf: VirtualFunction | None = None

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        if (self.type == "vf") != (self.vf is not None):
            raise ValueError(f"{self.name}: 'type: vf' and 'vf: {{nic: ..., number: ...}}' belong together")
        return self


class Tunnel(_Part):
    """The VXLAN device that is a port of the bridge; FRR fills its table."""

    name: Annotated[InterfaceName | None, Field(description="unset: vx and the VNI, such as vx100")] = None
    port: UdpPort = 4789


class Encapsulation(_Part):
    """The external VXLAN device that tc rules redirect to; it only sends, so its own port is nobody's destination."""

    name: InterfaceName = "vxenc0"
    port: UdpPort = 4790


class Bfd(_Part):
    """Failure detection on each uplink (RFC 5880): silence of interval times multiplier is a fault."""

    interval_ms: Annotated[int, Field(ge=10, le=60_000)] = 50
    multiplier: Annotated[int, Field(ge=2, le=255)] = 3


class Bgp(_Part):
    """BGP's own timers: what detects a fault where BFD is off."""

    keepalive_s: Annotated[int, Field(ge=1, le=21_845)] = 3
    hold_s: Annotated[int, Field(ge=3, le=65_535)] = 9

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if self.keepalive_s * 3 > self.hold_s:
            raise ValueError(f"hold_s {self.hold_s} should be at least three times keepalive_s {self.keepalive_s}")
        return self


class Frr(_Part):
    """How FRR comes by its configuration."""

    pathspace: Annotated[Name | None, Field(description="FRR's -N; with start: the host's name if unset")] = None
    start: Annotated[bool, Field(description="start zebra, bgpd and bfdd here; else only write their file")] = False
    realtime: Annotated[bool, Field(description="start them with SCHED_RR: bfdd 30, zebra and bgpd 15")] = True


class HostFile(_Part):
    """A whole host.yaml."""

    name: Name
    netns: Annotated[NamespaceName | None, Field(description="network namespace that is the host; unset: our own")] = (
        None
    )
    asn: Asn
    vtep: Annotated[IPv4Address, Field(description="loopback address: source and destination of tunnels")]
    router_id: Annotated[IPv4Address | None, Field(description="BGP's router id; unset: the VTEP")] = None
    uplinks: Annotated[tuple[Annotated[Uplink, BeforeValidator(_to_uplink)], ...], Field(min_length=1)]
    bridge: InterfaceName = "br0"
    vni: Annotated[int, Field(ge=1, le=16_777_215)]
    vxlan: Tunnel = Tunnel()
    encapsulation: Annotated[Encapsulation | None, Field(description="null: no rules, all through the bridge")] = (
        Encapsulation()
    )
    ports: tuple[Port, ...] = ()
    mtu: Annotated[int | None, Field(description="the applications'; unset: the uplinks' less 50")] = None
    bfd: Annotated[Bfd | None, Field(description="null: only BGP's timers")] = Bfd()
    bgp: Bgp = Bgp()
    transit: Annotated[bool, Field(description="carry other hosts' packets from uplink to uplink")] = False
    ignore_linkdown: Annotated[bool, Field(description="routes over an uplink without carrier are not used")] = False
    frr: Frr = Frr()

    @property
    def vxlan_name(self) -> str:
        """The tunnel device's name."""
        return self.vxlan.name or f"vx{self.vni}"

    @property
    def pathspace(self) -> str | None:
        """FRR's ``-N``; None: the FRR that the distribution runs."""
        return self.frr.pathspace or (self.name if self.frr.start else None)

    @property
    def overhead_bytes(self) -> int:
        """What the tunnel adds to each of the application's packets."""
        return VXLAN_OVERHEAD_BYTES[self.vtep.version]

    @model_validator(mode="after")
    def _check_all(self) -> Self:
        mistakes = [*_same_names(self), *_same_macs(self), *_overlaps(self), *_wrong_sizes(self)]
        if mistakes:
            raise ValueError("; ".join(mistakes))
        return self


def _same_names(host: HostFile) -> list[str]:
    names = [*(uplink.name for uplink in host.uplinks), host.bridge, host.vxlan_name]
    names += [host.encapsulation.name] if host.encapsulation else []
    names += [port.name for port in host.ports]
    mistakes = [f"two devices of the host are named {name!r}: names must differ" for name in _twice(names)]
    inner = [f"{port.device} in {port.netns}" for port in host.ports]
    mistakes += [f"two applications' devices are named {name}: names must differ" for name in _twice(inner)]
    if any(host.netns == port.netns for port in host.ports):
        mistakes.append(f"a port's netns is the host's own ({host.netns}): an application needs one of its own")
    functions = [f"{port.vf.nic} number {port.vf.number}" for port in host.ports if port.vf]
    mistakes += [f"two ports use the virtual function {name}: each needs its own" for name in _twice(functions)]
    if functions and host.netns is not None:
        mistakes.append("type vf works only without 'netns': a NIC's switch belongs to the machine")
    if host.encapsulation and host.encapsulation.port == host.vxlan.port:
        mistakes.append(
            f"encapsulation.port and vxlan.port are both {host.vxlan.port}: the kernel refuses the second with "
            "EADDRINUSE, choose another such as 4790"
        )
    return mistakes


def _same_macs(host: HostFile) -> list[str]:
    return [f"two ports have the MAC {mac}: MACs must differ" for mac in _twice([port.mac for port in host.ports])]


def _overlaps(host: HostFile) -> list[str]:
    mistakes = [f"the address {address} stands twice: addresses must differ" for address in _twice(_addresses(host))]
    outside: list[tuple[str, IPv4Network]] = [("vtep", IPv4Network(host.vtep))]
    outside += [(f"uplink {up.name}", up.address.network) for up in host.uplinks if up.address]
    for port in host.ports:
        mistakes += [
            f"port {port.name}'s network {port.address.network} overlaps {what} {network}: the application's "
            "addresses and the fabric's must be apart"
            for what, network in outside
            if port.address.network.overlaps(network)
        ]
    links = outside[1:]
    mistakes += [
        f"the networks of {one} and {other} overlap ({network}): each link needs its own"
        for position, (one, network) in enumerate(links)
        for other, second in links[position + 1 :]
        if network.overlaps(second)
    ]
    return mistakes


def _addresses(host: HostFile) -> list[str]:
    found = [str(host.vtep)]
    for uplink in host.uplinks:
        found += [str(uplink.address.ip), str(uplink.peer)] if uplink.address else []
    return found + [str(port.address.ip) for port in host.ports]


def _wrong_sizes(host: HostFile) -> list[str]:
    if host.mtu is None or host.mtu >= SMALLEST_MTU_BYTES:
        return []
    return [f"mtu {host.mtu} is below {SMALLEST_MTU_BYTES}, the least that IPv4 hosts must take (RFC 791)"]


def _twice(items: list[str]) -> list[str]:
    return sorted({item for item in items if items.count(item) > 1})

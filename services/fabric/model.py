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
from collections.abc import Hashable, Iterable, Iterator
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from typing import Annotated, Any, Final, Literal, NamedTuple, Self, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

VXLAN_OVERHEAD_BYTES: Final = 50
"""IPv4 20, UDP 8, VXLAN 8, inner Ethernet 14 (RFC 7348 section 5); 70 over IPv6, which `vtep` refuses."""
SMALLEST_MTU_BYTES: Final = 576
LARGEST_MTU_BYTES: Final = 65_465
NAME_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$"
_INTERFACE_PATTERN: Final = re.compile(r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,14}$")
_POINT_TO_POINT: Final = 31
_BFD_PATTERN: Final = re.compile(r"(\d+)x(\d+)")
_MAC_PATTERN: Final = re.compile(r"^[0-9a-f]{2}(:[0-9a-f]{2}){5}$")

Name = Annotated[str, Field(pattern=NAME_PATTERN)]
NamespaceName = Annotated[str, Field(pattern=r"^(/[!-~]+|[A-Za-z0-9][A-Za-z0-9_.-]{0,62})$")]
"""As `ip netns` shows it, or a path such as /proc/4711/ns/net."""
Asn = Annotated[int, Field(strict=True, ge=1, le=4_294_967_294)]
UdpPort = Annotated[int, Field(strict=True, ge=1, le=65_535)]


def _check_mac(text: str) -> str:
    mac = text.lower()
    if not _MAC_PATTERN.match(mac):
        raise ValueError(f"{text!r} should be six bytes such as '02:00:00:00:00:07'")
    if int(mac[:2], 16) & 1 or mac == "00:00:00:00:00:00":
        raise ValueError(f"{text!r} is no unicast address: the first byte must be even, such as 02")
    return mac


def _check_interface(name: str) -> str:
    if not _INTERFACE_PATTERN.match(name):
        raise ValueError(f"{name!r} should be a device's name: at most 15 letters, digits, '_', '.' and '-'")
    return name


def _check_unicast(address: IPv4Address) -> IPv4Address:
    if address.is_multicast or address.is_loopback or address.is_unspecified or address.is_reserved:
        raise ValueError(f"{address} should be a unicast address of this host, such as 10.255.0.7")
    return address


def _check_host_part(interface: IPv4Interface) -> IPv4Interface:
    _check_unicast(interface.ip)
    network = interface.network
    if network.prefixlen < _POINT_TO_POINT and interface.ip in {network.network_address, network.broadcast_address}:
        kind = "network" if interface.ip == network.network_address else "broadcast"
        raise ValueError(f"{interface.ip} is the {kind} address of {network}: no host can have it")
    return interface


Mac = Annotated[str, AfterValidator(_check_mac)]
HostAddress = Annotated[IPv4Interface, AfterValidator(_check_host_part)]
"""A host's address with the length of its network; all addresses of a /31 or /32 are hosts' (RFC 3021)."""
InterfaceName = Annotated[str, AfterValidator(_check_interface)]
"""A network device's name (IFNAMSIZ)."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class Uplink(_Part):
    """A port to a top-of-rack switch, with an eBGP session. Without ``peer`` unnumbered (RFC 5549, link-local)."""

    name: InterfaceName
    address: Annotated[
        HostAddress | None, Field(description="own address of a numbered link, such as 192.0.2.1/31")
    ] = None
    peer: Annotated[IPv4Address | None, Field(description="the switch's address on a numbered link")] = None
    peer_asn: Annotated[Asn | None, Field(description="the switch's AS number; unset: any other than this host's")] = (
        None
    )

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
            _check_host_part(IPv4Interface((self.peer, self.address.network.prefixlen)))
            if self.peer == self.address.ip:
                raise ValueError(f"{self.name}: peer and address are both {self.peer}: they must differ")
        return self

    @property
    def neighbour(self) -> str:
        """How FRR names the session: by interface, or by address."""
        return self.name if self.peer is None else str(self.peer)


def _to_vtep(value: Any) -> Any:
    if ":" in str(value):
        raise ValueError(f"{value} should be an IPv4 address: FRR's EVPN has IPv6 tunnels only from 10.6")
    return value


def _to_uplink(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


class VirtualFunction(_Part):
    """Which SR-IOV virtual function becomes the application's device."""

    nic: Annotated[InterfaceName, Field(description="the physical function's network device")]
    number: Annotated[int, Field(strict=True, ge=0, le=4095, description="which virtual function, from 0")]


class Port(_Part):
    """One application's single device (thesis 3.3.1), and its end in the host's bridge."""

    name: Annotated[InterfaceName, Field(description="this host's end: veth or representor")]
    type: Literal["veth", "vf"] = "veth"
    mac: Mac
    address: Annotated[HostAddress, Field(description="the application's address with its prefix")]
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
    """The external VXLAN device that tc rules redirect to; it only sends, so its own port receives no packets."""

    name: InterfaceName = "vxenc0"
    port: UdpPort = 4790


class Bfd(_Part):
    """Failure detection on each uplink (RFC 5880): silence of interval times multiplier is a fault."""

    interval_ms: Annotated[int, Field(strict=True, ge=10, le=60_000)] = 50
    multiplier: Annotated[int, Field(strict=True, ge=2, le=255)] = 3

    @classmethod
    def parse(cls, text: str) -> Self:
        """From ``50x3``.

        Raises:
            ValueError: it is written otherwise, or out of range.
        """
        found = _BFD_PATTERN.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is no BFD timing: write interval in ms and multiplier, such as 50x3")
        return cls(interval_ms=int(found[1]), multiplier=int(found[2]))

    def __str__(self) -> str:
        return f"{self.interval_ms}x{self.multiplier}"


class Bgp(_Part):
    """BGP's own timers: what detects a fault where BFD is off."""

    keepalive_s: Annotated[int, Field(strict=True, ge=1, le=21_845)] = 3
    hold_s: Annotated[int, Field(strict=True, ge=3, le=65_535)] = 9

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
    netns: Annotated[
        NamespaceName | None, Field(description="network namespace that is the host; unset: the process's own")
    ] = None
    asn: Asn
    vtep: Annotated[
        IPv4Address,
        BeforeValidator(_to_vtep),
        AfterValidator(_check_unicast),
        Field(description="loopback address: source and destination of tunnels"),
    ]
    router_id: Annotated[IPv4Address | None, Field(description="BGP's router id; unset: the VTEP")] = None
    uplinks: Annotated[tuple[Annotated[Uplink, BeforeValidator(_to_uplink)], ...], Field(min_length=1)]
    bridge: InterfaceName = "br0"
    vni: Annotated[int, Field(strict=True, ge=1, le=16_777_215)]
    vxlan: Tunnel = Tunnel()
    encapsulation: Annotated[Encapsulation | None, Field(description="null: no rules, all through the bridge")] = (
        Encapsulation()
    )
    ports: tuple[Port, ...] = ()
    mtu: Annotated[int | None, Field(strict=True, description="the applications'; unset: the uplinks' less 50")] = None
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
        return VXLAN_OVERHEAD_BYTES

    @model_validator(mode="after")
    def _check_all(self) -> Self:
        if mistakes := [*_names(self), *_kinds(self), *_macs(self), *_overlaps(self), *_sizes(self)]:
            raise HostFileError(mistakes)
        return self


class Mistake(NamedTuple):
    """What does not fit together in a file."""

    path: tuple[str | int, ...]
    """The field to change, such as ``("ports", 1, "mac")``."""
    what: str


class HostFileError(ValueError):
    """Fields that are right one by one do not fit together."""

    def __init__(self, mistakes: list[Mistake]) -> None:
        super().__init__("; ".join(mistake.what for mistake in mistakes))
        self.mistakes = mistakes


def _names(host: HostFile) -> Iterator[Mistake]:
    named: list[tuple[tuple[str | int, ...], str]] = [
        (("uplinks", position), uplink.name) for position, uplink in enumerate(host.uplinks)
    ]
    named += [(("bridge",), host.bridge), (("vxlan", "name"), host.vxlan_name)]
    named += [(("encapsulation", "name"), host.encapsulation.name)] if host.encapsulation else []
    named += [(("ports", position, "name"), port.name) for position, port in enumerate(host.ports)]
    for path, name in _duplicates(named):
        yield Mistake(path, f"a second device of the host is named {name}: names must differ")
    inner = [(("ports", position, "device"), (port.netns, port.device)) for position, port in enumerate(host.ports)]
    for path, (netns, device) in _duplicates(inner):
        yield Mistake(path, f"a second device in {netns} is named {device}: names must differ")


def _kinds(host: HostFile) -> Iterator[Mistake]:
    functions = []
    for position, port in enumerate(host.ports):
        if port.netns == host.netns:
            yield Mistake(("ports", position, "netns"), f"{port.netns} is the host's: an application needs its own")
        if port.vf is not None:
            functions.append((("ports", position, "vf"), (port.vf.nic, port.vf.number)))
            if host.netns is not None:
                yield Mistake(
                    ("ports", position, "type"), "vf goes only without 'netns': a NIC's switch is the machine's"
                )
    for path, (nic, number) in _duplicates(functions):
        yield Mistake(path, f"virtual function {number} of {nic} is a second port's: each needs its own")
    if host.encapsulation and host.encapsulation.port == host.vxlan.port:
        what = f"UDP port {host.vxlan.port} is the tunnel's, the kernel refuses the second (EADDRINUSE): such as 4790"
        yield Mistake(("encapsulation", "port"), what)


def _macs(host: HostFile) -> Iterator[Mistake]:
    for path, mac in _duplicates([(("ports", position, "mac"), port.mac) for position, port in enumerate(host.ports)]):
        yield Mistake(path, f"a second port has the MAC {mac}: MACs must differ")


def _overlaps(host: HostFile) -> Iterator[Mistake]:
    named: list[tuple[tuple[str | int, ...], IPv4Address]] = [(("vtep",), host.vtep)]
    networks: list[tuple[str, tuple[str | int, ...], IPv4Network]] = [("the VTEP", ("vtep",), IPv4Network(host.vtep))]
    for position, uplink in enumerate(host.uplinks):
        if uplink.address is not None and uplink.peer is not None:
            path: tuple[str | int, ...] = ("uplinks", position, "address")
            named += [(path, uplink.address.ip), (("uplinks", position, "peer"), uplink.peer)]
            networks.append((f"uplink {uplink.name}", path, uplink.address.network))
    for position, port in enumerate(host.ports):
        path = ("ports", position, "address")
        named.append((path, port.address.ip))
        for what, _, network in networks:
            if port.address.network.overlaps(network):
                said = f"{port.address.network} overlaps {network} of {what}: applications and fabric must be apart"
                yield Mistake(path, said)
    for path, address in _duplicates(named):
        yield Mistake(path, f"{address} stands here a second time: addresses must differ")
    for number, (what, _, network) in enumerate(networks):
        for other, path, second in networks[number + 1 :]:
            if network.overlaps(second):
                yield Mistake(path, f"{second} of {other} overlaps {network} of {what}: each needs its own")


def _sizes(host: HostFile) -> Iterator[Mistake]:
    if host.mtu is not None and not SMALLEST_MTU_BYTES <= host.mtu <= LARGEST_MTU_BYTES:
        least = f"at least {SMALLEST_MTU_BYTES}, which IPv4 hosts must take (RFC 791)"
        yield Mistake(("mtu",), f"{host.mtu} should be {least}, and at most {LARGEST_MTU_BYTES}")


_Found = TypeVar("_Found", bound=Hashable)


def _duplicates(
    items: Iterable[tuple[tuple[str | int, ...], _Found]],
) -> Iterator[tuple[tuple[str | int, ...], _Found]]:
    """Every item whose value stood before."""
    seen = set()
    for path, value in items:
        if value in seen:
            yield path, value
        seen.add(value)

"""FRR's configuration as text: eBGP on every uplink, EVPN, BFD; where its packages have files, and who may read. Pure.

Lines are explicit where FRR's profiles differ, so that the same text means the same with ``-F datacenter`` or without.
`no zebra nexthop kernel enable`: with kernel nexthop objects FRR 8.4 leaves a group shrunk after a carrier flap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from typing import Final

from services.fabric.model import Bfd, Bgp, HostFile, Uplink

BFD_PROFILE: Final = "turnbuckle"
PEER_GROUP: Final = "FABRIC"
MOST_PATHS: Final = 8
DAEMON_PRIORITIES: Final = {"zebra": 15, "bgpd": 15, "bfdd": 30}
"""SCHED_RR. BFD above what can keep the processor for long, or a busy bgpd makes BFD report faults (measured)."""

VTY_GROUP: Final = "frrvty"
"""The group that may use vtysh, as in Debian's and FRR's own packages (``--enable-vty-group``)."""


def access_text(mode: int, owner: str, group: str) -> str:
    """Mode, owner and group of a directory: such as ``0750 frr:frrvty``."""
    return f"{mode & 0o7777:04o} {owner}:{group}"


SOCKETS_ACCESS: Final = access_text(0o750, "frr", VTY_GROUP)
"""Of a directory of sockets: FRR's daemons run as frr, and vtysh's users are members of the group."""


@dataclass(frozen=True, slots=True)
class FrrPaths:
    """FRR's directories, as Debian's and FRR's own packages have them."""

    configuration: str = "/etc/frr"
    runtime: str = "/var/run/frr"
    binaries: str = "/usr/lib/frr"


@dataclass(frozen=True, slots=True)
class FrrConfiguration:
    """One text per daemon."""

    zebra: str
    bgpd: str
    bfdd: str
    """Without BFD: only the host's name."""

    @property
    def integrated(self) -> str:
        """All in one, as ``vtysh -f`` and frr.conf take it."""
        return f"{self.zebra}!\n{self.bfdd}!\n{self.bgpd}"


@dataclass(frozen=True, slots=True)
class TorSwitch:
    """A top-of-rack switch: unnumbered eBGP to hosts and to other switches."""

    name: str
    asn: int
    loopback: str
    ports: tuple[str, ...]
    """Devices with a session: to hosts, and the inter-switch link."""
    bfd: Bfd | None = field(default_factory=Bfd)
    bgp: Bgp = field(default_factory=Bgp)


@dataclass(frozen=True, slots=True)
class _Speaker:
    name: str
    asn: int
    router_id: IPv4Address
    uplinks: tuple[Uplink, ...]
    bfd: Bfd | None
    bgp: Bgp
    has_vni: bool
    """Announces and learns MACs: a host. A switch only passes them on."""
    transit: bool


def host_configuration(host: HostFile) -> FrrConfiguration:
    """What FRR on a host runs with."""
    router_id = host.router_id or host.vtep
    speaker = _Speaker(host.name, host.asn, router_id, host.uplinks, host.bfd, host.bgp, True, host.transit)  # noqa: FBT003 - two fields
    return _configuration(speaker, host.vtep)


def tor_configuration(switch: TorSwitch) -> FrrConfiguration:
    """What FRR on a top-of-rack switch runs with (the lab's switches; a model for real ones)."""
    loopback = IPv4Address(switch.loopback)
    uplinks = tuple(Uplink(name=port) for port in switch.ports)
    speaker = _Speaker(switch.name, switch.asn, loopback, uplinks, switch.bfd, switch.bgp, False, True)  # noqa: FBT003 - two fields
    return _configuration(speaker, loopback)


def _configuration(speaker: _Speaker, source: IPv4Address) -> FrrConfiguration:
    head = ["frr defaults datacenter", f"hostname {speaker.name}"]
    zebra = [
        "no zebra nexthop kernel enable",
        "route-map SOURCE permit 10",
        f" set src {source}",
        "exit",
        "ip protocol bgp route-map SOURCE",
    ]
    return FrrConfiguration(
        _text([*head, *zebra]), _text([*head, *_bgpd(speaker)]), _text([*head, *_bfdd(speaker.bfd)])
    )


def _bfdd(bfd: Bfd | None) -> list[str]:
    if bfd is None:
        return []
    return [
        "bfd",
        f" profile {BFD_PROFILE}",
        f"  detect-multiplier {bfd.multiplier}",
        f"  transmit-interval {bfd.interval_ms}",
        f"  receive-interval {bfd.interval_ms}",
        " exit",
        "exit",
    ]


def _bgpd(speaker: _Speaker) -> list[str]:
    lines = ["route-map LOOPBACK permit 10", " match interface lo", "exit"]
    if not speaker.transit:
        # A host announces what is its own: no switch may take it for a way to another host.
        lines += [
            "bgp as-path access-list OWN seq 5 permit ^$",
            "route-map OWN permit 10",
            " match as-path OWN",
            "exit",
        ]
    lines += [
        f"router bgp {speaker.asn}",
        f" bgp router-id {speaker.router_id}",
        " no bgp ebgp-requires-policy",
        " no bgp default ipv4-unicast",
        " bgp bestpath as-path multipath-relax",
        f" timers bgp {speaker.bgp.keepalive_s} {speaker.bgp.hold_s}",
        f" neighbor {PEER_GROUP} peer-group",
        f" neighbor {PEER_GROUP} advertisement-interval 0",
        f" neighbor {PEER_GROUP} timers connect 1",
    ]
    if speaker.bfd is not None:
        lines += [f" neighbor {PEER_GROUP} bfd", f" neighbor {PEER_GROUP} bfd profile {BFD_PROFILE}"]
    for uplink in speaker.uplinks:
        lines += _neighbour(uplink)
    return [*lines, *_families(speaker), "exit"]


def _neighbour(uplink: Uplink) -> list[str]:
    # Here and not in the peer group: a member cannot have another than its group.
    asn = uplink.peer_asn or "external"
    interface = " interface" if uplink.peer is None else ""
    return [
        f" neighbor {uplink.neighbour}{interface} remote-as {asn}",
        f" neighbor {uplink.neighbour}{interface} peer-group {PEER_GROUP}",
    ]


def _families(speaker: _Speaker) -> list[str]:
    own = [] if speaker.transit else [f"  neighbor {PEER_GROUP} route-map OWN out"]
    return [
        " address-family ipv4 unicast",
        "  redistribute connected route-map LOOPBACK",
        f"  neighbor {PEER_GROUP} activate",
        *own,
        f"  maximum-paths {MOST_PATHS}",
        " exit-address-family",
        " address-family l2vpn evpn",
        f"  neighbor {PEER_GROUP} activate",
        *own,
        *(["  advertise-all-vni"] if speaker.has_vni else []),
        " exit-address-family",
    ]


def _text(lines: Sequence[str]) -> str:
    return "\n".join(lines) + "\n"

"""One managed bridge: MACs by VTEP, and ambiguous MACs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address

from services._host.netlink.objects import FdbEntry, Filter, Link, Snapshot, Tunnel, Vxlan
from services.reconciler.core.config import ForwardingConfig, is_unicast
from services.reconciler.core.problems import Problem, ProblemKind, problem


@dataclass(slots=True)
class View:
    """A snapshot, indexed."""

    links: dict[int, Link] = field(default_factory=dict)
    by_name: dict[str, Link] = field(default_factory=dict)
    bridged: dict[int, list[FdbEntry]] = field(default_factory=lambda: defaultdict(list))
    """By bridge: rows of its forwarding database."""
    remote: dict[int, list[FdbEntry]] = field(default_factory=lambda: defaultdict(list))
    """By VXLAN device: rows of its own."""
    filters: dict[int, list[Filter]] = field(default_factory=lambda: defaultdict(list))
    """By device."""

    @classmethod
    def of(cls, snapshot: Snapshot) -> View:
        """Index a snapshot."""
        view = cls()
        for link in sorted(snapshot.links, key=lambda link: (link.ifindex, link.name)):
            # A duplicate name belongs to the newer device: the other vanished during the dump.
            view.links[link.ifindex] = link
            view.by_name[link.name] = link
        for row in snapshot.fdb:
            device = view.links.get(row.ifindex)
            if device is None:
                continue  # vanished between two dumps
            if not row.own:
                view.bridged[device.master or device.ifindex].append(row)
            elif device.vxlan is not None:
                view.remote[row.ifindex].append(row)
        for rule in snapshot.filters:
            view.filters[rule.ifindex].append(rule)
        return view


@dataclass(frozen=True, slots=True)
class Segment:
    """MACs of one bridge."""

    remote: Mapping[str, Tunnel]
    """MACs behind exactly one VTEP, in order."""
    elsewhere: frozenset[str]
    """MACs that are local, or ambiguous."""
    problems: tuple[Problem, ...]


def vtep_of(view: View, bridge: Link) -> Link | Problem:
    """The bridge's one ordinary VXLAN port, or why there is none to be used."""
    ports = [link for link in view.links.values() if link.master == bridge.ifindex and link.vxlan is not None]
    names = sorted(link.name for link in ports)
    if not ports:
        return problem(
            ProblemKind.VTEP_MISSING,
            bridge.name,
            "the bridge has no VXLAN port",
            f"ip link set dev VXLAN master {bridge.name}, or turnbuckle fabric up",
        )
    if len(ports) > 1:
        return problem(
            ProblemKind.VTEP_AMBIGUOUS,
            bridge.name,
            "the bridge has several VXLAN ports, so a MAC's VNI is in doubt",
            "use one bridge for each VNI",
            names,
        )
    vxlan = ports[0].vxlan
    if vxlan is None or vxlan.external or vxlan.local is None:
        return problem(
            ProblemKind.VTEP_ADDRESS,
            ports[0].name,
            "the VTEP has no VNI or no local address of its own",
            "create it with `id VNI local ADDRESS`; the external device stays outside of the bridge",
        )
    return ports[0]


@dataclass(slots=True)
class _Rows:
    """Forwarding rows of one bridge, classified."""

    local: set[str]
    behind: set[str] = field(default_factory=set)
    """MACs with a permanent entry to the VTEP."""
    destinations: dict[str, set[tuple[str, int, int]]] = field(default_factory=lambda: defaultdict(set))
    multihomed: set[str] = field(default_factory=set)


def _classified(view: View, bridge: Link, vtep: Link, local: frozenset[str]) -> _Rows:
    rows = _Rows(set(local))
    for row in view.bridged[bridge.ifindex]:
        if row.ifindex != vtep.ifindex or row.local:
            rows.local.add(row.mac)
        elif (row.extern_learn or row.static) and is_unicast(row.mac):
            rows.behind.add(row.mac)
    for row in view.remote[vtep.ifindex]:
        if row.nexthop_id:
            rows.multihomed.add(row.mac)
        elif row.destination is not None:
            rows.destinations[row.mac].add((row.destination, row.vni, row.port))
    return rows


def segment_of(view: View, bridge: Link, vtep: Link, local: frozenset[str], config: ForwardingConfig) -> Segment:
    """Which MACs of a bridge are behind which VTEP.

    Args:
        view: The snapshot.
        bridge: The bridge.
        vtep: Its VXLAN port, as `vtep_of` found it.
        local: MACs of applications behind its ports, whatever the tables contain.
        config: For the checksum.
    """
    rows = _classified(view, bridge, vtep, local)
    tunnels = _Tunnels(vtep.vxlan, config)
    remote: dict[str, Tunnel] = {}
    ambiguous: dict[ProblemKind, list[str]] = defaultdict(list)
    for mac in sorted(rows.behind):
        destinations = rows.destinations.get(mac, set())
        if mac in rows.local:
            ambiguous[ProblemKind.TWO_PLACES].append(mac)
        elif mac in rows.multihomed:
            ambiguous[ProblemKind.MULTIHOMED].append(mac)
        elif len(destinations) > 1:
            ambiguous[ProblemKind.TWO_DESTINATIONS].append(mac)
        elif destinations:
            tunnel = tunnels.to(*next(iter(destinations)))
            if tunnel is None:
                ambiguous[ProblemKind.UNUSABLE_DESTINATION].append(mac)
            else:
                remote[mac] = tunnel
    elsewhere = rows.local.union(*ambiguous.values())
    return Segment(remote, frozenset(elsewhere), _segment_problems(vtep, ambiguous, local))


@dataclass(slots=True)
class _Tunnels:
    """Tunnels from one VTEP, cached by destination."""

    vxlan: Vxlan | None
    config: ForwardingConfig
    known: dict[tuple[str, int, int], Tunnel | None] = field(default_factory=dict)

    def to(self, destination: str, vni: int, port: int) -> Tunnel | None:
        """The tunnel, or None where the address cannot be a remote VTEP's."""
        key = (destination, vni, port)
        if key not in self.known:
            self.known[key] = self._tunnel(destination, vni, port)
        return self.known[key]

    def _tunnel(self, destination: str, vni: int, port: int) -> Tunnel | None:
        if self.vxlan is None or self.vxlan.local is None:
            return None
        source, remote = ip_address(self.vxlan.local), ip_address(destination)
        if remote.is_multicast or remote.is_unspecified or remote == source or remote.version != source.version:
            return None
        return Tunnel(
            source=self.vxlan.local,
            destination=destination,
            vni=vni or self.vxlan.vni,
            port=port or self.vxlan.port,
            checksum=self.config.checksum or remote.version == 6,
        )


_TEXT: Mapping[ProblemKind, tuple[str, str]] = {
    ProblemKind.TWO_PLACES: (
        "MACs are on a local port and behind a VTEP at once, so they go by the bridge",
        "see `bridge fdb show br BRIDGE`: VLANs that differ, or a machine that exists twice",
    ),
    ProblemKind.MULTIHOMED: (
        "MACs are behind a nexthop group (EVPN multihoming), which has no single VTEP; they go by the bridge",
        "announce them from one VTEP, or leave them to the bridge",
    ),
    ProblemKind.TWO_DESTINATIONS: (
        "MACs have several VTEPs, so they go by the bridge",
        "delete the wrong entry: bridge fdb del MAC dev VXLAN dst VTEP",
    ),
    ProblemKind.UNUSABLE_DESTINATION: (
        "MACs are behind an address that is no remote VTEP (this host's own, a group's, or of the other IP version)",
        "delete the entry: bridge fdb del MAC dev VXLAN dst VTEP",
    ),
}


def _segment_problems(
    vtep: Link, ambiguous: Mapping[ProblemKind, list[str]], applications: frozenset[str]
) -> tuple[Problem, ...]:
    problems = []
    for kind, macs in ambiguous.items():
        # An application's own MAC has a problem of its own, see `desired`.
        subjects = [mac for mac in macs if kind is not ProblemKind.TWO_PLACES or mac not in applications]
        if subjects:
            problems.append(problem(kind, vtep.name, *_TEXT[kind], subjects))
    return tuple(problems)

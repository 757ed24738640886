"""Desired rules, from the state that zebra installed: a pure function of one snapshot (thesis 3.4)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from services._host.netlink.objects import FdbEntry, Link, Snapshot, Tunnel
from services.reconciler.core.config import ForwardingConfig
from services.reconciler.core.problems import Problem, ProblemKind, problem
from services.reconciler.core.segment import Segment, View, segment_of, vtep_of
from services.reconciler.core.unmanaged import Conflicts, conflicts_on, ingress_conflict


@dataclass(frozen=True, slots=True, order=True)
class Rule:
    """Packets for `mac` that enter at the port are put into the tunnel (one flower filter)."""

    ifindex: int
    mac: str
    tunnel: Tunnel


@dataclass(frozen=True, slots=True)
class Desired:
    """The desired state. Sorted, so that equal content compares equal."""

    config: ForwardingConfig
    rules: tuple[Rule, ...] = ()
    tunnels: tuple[Tunnel, ...] = ()
    """One tunnel_key action each: as many as there are distinct VTEPs (I9)."""
    redirect_to: int = 0
    """Ifindex of the encapsulation device, for the one mirred action; 0: none can be used, so there is no rule."""
    clsact: frozenset[int] = frozenset()
    static: tuple[FdbEntry, ...] = ()
    """Applications' own MACs, which must not age out: rules bypass the bridge, which then learns nothing from them."""
    elsewhere: Mapping[int, frozenset[str]] = field(default_factory=dict)
    """By port: MACs that are not behind a single VTEP (local or ambiguous). A rule for one is wrong, not only stale."""
    problems: tuple[Problem, ...] = ()


def desired(snapshot: Snapshot, config: ForwardingConfig) -> Desired:
    """The desired state. It does not depend on routes: an edge fault changes nothing (I11)."""
    view = View.of(snapshot)
    problems: list[Problem] = []
    ports = _ports(view, config, problems)
    # Without ports there is nothing to redirect: a host that only has its paths audited needs no such device.
    encapsulation = _encapsulation(view, config, problems) if config.application_macs else 0
    static = _static(view, config, ports, problems)
    segments = _segments(view, config, ports, problems)
    rules: list[Rule] = []
    for port in sorted(ports, key=lambda link: link.ifindex):
        segment = segments.get(port.master)
        if segment is None or not encapsulation:
            continue
        if port.ifindex in snapshot.ingress - snapshot.clsact:
            conflicts = ingress_conflict(port)
        else:
            conflicts = conflicts_on(port, view.filters[port.ifindex], segment.remote, config.pref)
        problems.extend(conflicts.problems)
        rules.extend(_rules(port, segment, conflicts))
    return Desired(
        config=config,
        rules=tuple(rules),
        tunnels=tuple(sorted({rule.tunnel for rule in rules})),
        redirect_to=encapsulation,
        clsact=frozenset(rule.ifindex for rule in rules),
        static=tuple(static),
        elsewhere={port.ifindex: segments[port.master].elsewhere for port in ports if port.master in segments},
        problems=tuple(sorted(problems)),
    )


def _rules(port: Link, segment: Segment, conflicts: Conflicts) -> Iterable[Rule]:
    if conflicts.closed:
        return ()
    return (Rule(port.ifindex, mac, tunnel) for mac, tunnel in segment.remote.items() if mac not in conflicts.taken)


def _ports(view: View, config: ForwardingConfig, problems: list[Problem]) -> list[Link]:
    """Managed ports that exist and are in a bridge, by name."""
    found: list[Link] = []
    for name in sorted(config.application_macs):
        link = view.by_name.get(name)
        master = view.links.get(link.master) if link is not None else None
        if link is None:
            problems.append(
                problem(ProblemKind.PORT_MISSING, name, "there is no such port", "turnbuckle fabric up, or correct it")
            )
        elif master is None or master.kind != "bridge":
            problems.append(
                problem(
                    ProblemKind.PORT_UNBRIDGED,
                    name,
                    "the port is in no bridge",
                    f"ip link set dev {name} master BRIDGE, or turnbuckle fabric up",
                )
            )
        else:
            found.append(link)
    return found


def _encapsulation(view: View, config: ForwardingConfig, problems: list[Problem]) -> int:
    """Ifindex of the device that packets are redirected to, 0 where a redirect would lose them."""
    name = config.encapsulation_device
    link = view.by_name.get(name)
    if link is None:
        what = "there is no such encapsulation device"
    elif link.vxlan is None or not link.vxlan.external:
        what = "the encapsulation device is no external VXLAN device, so it would ignore the tunnel key"
    elif link.master:
        what = "the encapsulation device is a bridge's port, so the bridge would flood to it"
    elif not link.up:
        what = "the encapsulation device is down, so it would drop every packet"
    else:
        return link.ifindex
    remedy = f"ip link add {name} type vxlan external dstport 4790 nolearning; ip link set {name} up nomaster"
    problems.append(problem(ProblemKind.ENCAPSULATION_DEVICE, name, what, remedy))
    return 0


def _segments(view: View, config: ForwardingConfig, ports: list[Link], problems: list[Problem]) -> dict[int, Segment]:
    """Segments by bridge; without the bridges whose VTEP cannot be used."""
    local: dict[int, set[str]] = defaultdict(set)
    for port in ports:
        local[port.master].update(config.application_macs[port.name])
    segments = {}
    for ifindex, macs in sorted(local.items()):
        bridge = view.links[ifindex]
        vtep = vtep_of(view, bridge)
        if isinstance(vtep, Problem):
            problems.append(vtep)
            continue
        segments[ifindex] = segment_of(view, bridge, vtep, frozenset(macs), config)
        problems.extend(segments[ifindex].problems)
    return segments


def _static(view: View, config: ForwardingConfig, ports: list[Link], problems: list[Problem]) -> list[FdbEntry]:
    """Entries for applications' own MACs, except where another entry claims the MAC: the two would alternate."""
    owners: dict[tuple[int, str], list[Link]] = defaultdict(list)
    for port in ports:
        for mac in config.application_macs[port.name]:
            owners[port.master, mac].append(port)
    claims = _claims(view, owners)
    entries = []
    for place, (port, *others) in sorted(owners.items(), key=lambda item: item[0]):
        mac = place[1]
        rows = claims[place]
        insisting = {view.links[row.ifindex].name for row in rows if row.ifindex != port.ifindex}
        insisting.update(other.name for other in others)
        if insisting:
            what = f"an application's MAC is claimed by {', '.join(sorted(insisting))} too"
            remedy = "give every application a MAC of its own, and withdraw the other one"
            problems.append(problem(ProblemKind.CLAIMED_ELSEWHERE, port.name, what, remedy, (mac,)))
        elif any(row.local for row in rows):
            what = "an application's MAC is the port's own, so the bridge keeps its packets for this host"
            remedy = f"ip link set dev {port.name} address another one"
            problems.append(problem(ProblemKind.PORT_MAC, port.name, what, remedy, (mac,)))
        else:
            entries.append(FdbEntry(port.ifindex, mac, own=False, static=True))
    return sorted(entries, key=lambda entry: (entry.ifindex, entry.mac))


def _claims(view: View, owners: Mapping[tuple[int, str], object]) -> dict[tuple[int, str], list[FdbEntry]]:
    """Permanent rows with an application's MAC, by bridge and MAC."""
    claims: dict[tuple[int, str], list[FdbEntry]] = defaultdict(list)
    for bridge in {place[0] for place in owners}:
        for row in view.bridged[bridge]:
            if (bridge, row.mac) in owners and (row.static or row.extern_learn or row.local):
                claims[bridge, row.mac].append(row)
    return claims

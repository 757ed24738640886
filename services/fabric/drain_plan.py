"""Order of the steps that drain uplinks, without transient forwarding loops. Pure.

Two switches that learn at the same time that their direct path to a host has become less preferred each choose the path
over the other: a forwarding loop until both have exchanged updates (measured in the lab with FRR 8.4: 50 ms, 150
packets of 3,000 a second, ended by their TTL). A single switch that learns it chooses a neighbour whose path is still
direct. So routes become less preferred on one uplink at a time, with time to converge in between, and never on all of
them: the VTEP of a host with all uplinks drained keeps its route as it is. Routes that become more preferred do so
together: the chosen neighbour has a direct path already.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from services._edge.frr_drain import DRAIN_IN, DRAIN_NODE, DRAIN_OUT, NODE_MAPS, UPLINK_MAPS
from services.fabric.model import HostFile, Uplink

PREPENDED: Final = 2
"""Longer than the path over the inter-switch link, which is one AS longer."""
VTEP_PREFIXES: Final = "TURNBUCKLE-VTEP"
_NONE: Final[frozenset[str]] = frozenset()
_DIRECTIONS: Final = {DRAIN_IN: "in", DRAIN_OUT: "out", DRAIN_NODE: "out"}


def drain_steps(host: HostFile, held: Mapping[str, frozenset[str]], drained: Iterable[str]) -> list[tuple[str, ...]]:
    """From the route maps that are attached to those that drain these uplinks and no others.

    Returns:
        Commands for vtysh, step by step: other routers are given time to converge after each.

    Args:
        host: Which host.
        held: Neighbour -> our route maps on its session now.
        drained: Names of the uplinks that are to be drained in the end.
    """
    wanted = _wanted(host, frozenset(drained))
    changes = [
        (uplink, held.get(uplink.neighbour, _NONE), wanted[uplink.name])
        for uplink in host.uplinks
        if held.get(uplink.neighbour, _NONE) != wanted[uplink.name]
    ]
    improved = [change for change in changes if _improves(change[1], change[2])]
    first = [_commands(host, improved)] if improved else []
    worsened = [change for change in changes if not _improves(change[1], change[2])]
    return first + [_commands(host, [change]) for change in worsened]


def _wanted(host: HostFile, drained: frozenset[str]) -> dict[str, frozenset[str]]:
    """Uplink -> our route maps on its session."""
    maps = NODE_MAPS if drained >= {uplink.name for uplink in host.uplinks} else UPLINK_MAPS
    return {uplink.name: maps if uplink.name in drained else _NONE for uplink in host.uplinks}


def _improves(before: frozenset[str], after: frozenset[str]) -> bool:
    return after == _NONE or (before, after) == (UPLINK_MAPS, NODE_MAPS)


def _commands(host: HostFile, changes: Iterable[tuple[Uplink, frozenset[str], frozenset[str]]]) -> tuple[str, ...]:
    sessions: list[str] = []
    for uplink, before, after in changes:
        replaced = {_DIRECTIONS[name] for name in after}
        sessions += [f"neighbor {uplink.neighbour} route-map {name} {_DIRECTIONS[name]}" for name in sorted(after)]
        # The session takes its group's route map again; the drain's route maps stay in FRR, unused.
        sessions += [
            f"no neighbor {uplink.neighbour} route-map {name} {_DIRECTIONS[name]}"
            for name in sorted(before)
            if _DIRECTIONS[name] not in replaced
        ]
    family = [f"router bgp {host.asn}", "address-family ipv4 unicast"]
    return ("configure terminal", *_route_maps(host), *family, *sessions)


def _route_maps(host: HostFile) -> list[str]:
    own = [] if host.transit else ["match as-path OWN"]
    less_preferred = [
        *own,
        "set community graceful-shutdown additive",
        f"set as-path prepend {' '.join([str(host.asn)] * PREPENDED)}",
        "exit",
    ]
    return [
        f"ip prefix-list {VTEP_PREFIXES} seq 5 permit {host.vtep}/32",
        f"route-map {DRAIN_IN} permit 10",
        "set local-preference 0",
        "exit",
        f"route-map {DRAIN_OUT} permit 10",
        *less_preferred,
        f"route-map {DRAIN_NODE} permit 10",
        f"match ip address prefix-list {VTEP_PREFIXES}",
        "exit",
        f"route-map {DRAIN_NODE} permit 20",
        *less_preferred,
    ]

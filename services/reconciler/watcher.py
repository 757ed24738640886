"""Changes of links, routes and remote MACs between snapshots: level-triggered, so a lost event costs no change.

Pure; `Watcher` keeps the last published state.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from schemas.network import RouteKind
from services._host.netlink.objects import Link, NextHop, Snapshot

MAX_SEPARATE_CHANGES: Final = 16
"""More changes of one kind than this in one snapshot are merged where they are equal."""
MAX_DESTINATIONS: Final = 500
MULTIPATH_PROTOCOLS: Final = frozenset({186})
"""Routes of BGP (RTPROT_BGP) are paths of the fabric; others are ignored."""
_NO_MAC: Final = "00:00:00:00:00:00"
_States = Mapping[tuple[str, str], tuple[str, ...]]
"""By (destination, interface): next hops, or the state of a link."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one or several destinations."""

    kind: RouteKind
    destinations: tuple[str, ...]
    """() for a link."""
    interface: str
    before: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ObservedState:
    """The published part of a snapshot."""

    links: _States
    routes: _States
    remote: _States

    @staticmethod
    def of(snapshot: Snapshot, ignored_tables: frozenset[int] = frozenset()) -> ObservedState:
        """Extract it from a snapshot."""
        names = {link.ifindex: link.name for link in snapshot.links}
        routes: dict[tuple[str, str], tuple[str, ...]] = {}
        for route in snapshot.routes:
            if route.protocol in MULTIPATH_PROTOCOLS and route.table not in ignored_tables:
                routes[route.destination, ""] = hops_text(route.next_hops, names)
        remote: dict[tuple[str, str], list[str]] = defaultdict(list)
        for row in snapshot.fdb:
            if row.own and row.destination is not None and row.mac != _NO_MAC:
                remote[row.mac, names.get(row.ifindex, "")].append(row.destination)
        return ObservedState(
            {("", link.name): _link_state(link) for link in snapshot.links},
            routes,
            {key: tuple(sorted(vteps)) for key, vteps in remote.items()},
        )


def hops_text(hops: Iterable[NextHop], names: Mapping[int, str]) -> tuple[str, ...]:
    """Live next hops, as ``interface`` or ``gateway@interface``."""
    return tuple(
        sorted(
            f"{hop.gateway}@{names.get(hop.ifindex, hop.ifindex)}" if hop.gateway else str(names.get(hop.ifindex, "?"))
            for hop in hops
            if not hop.dead
        )
    )


def changes(before: ObservedState, after: ObservedState) -> list[Change]:
    """Every difference."""
    return [
        *_differences(RouteKind.LINK, before.links, after.links),
        *_differences(RouteKind.ROUTE, before.routes, after.routes),
        *_differences(RouteKind.FDB, before.remote, after.remote),
    ]


class Watcher:
    """Keeps the published state. Changes of MACs are deferred while the bus has a backlog."""

    def __init__(self, ignored_tables: frozenset[int] = frozenset()) -> None:
        self._ignored_tables = ignored_tables
        self._published: ObservedState | None = None

    def update(self, snapshot: Snapshot, *, defer_macs: bool = False, defer_all: bool = False) -> list[Change]:
        """Changes since the published state; a deferred one appears in a later difference."""
        observed = ObservedState.of(snapshot, self._ignored_tables)
        published = self._published
        if published is None:
            self._published = observed
            return []
        if defer_all:
            return []
        if defer_macs:
            observed = ObservedState(observed.links, observed.routes, published.remote)
        self._published = observed
        return changes(published, observed)


def _link_state(link: Link) -> tuple[str, ...]:
    return ("up" if link.up else "down", "carrier" if link.carrier else "no carrier")


def _differences(kind: RouteKind, before: _States, after: _States) -> list[Change]:
    if before == after:
        return []
    keys = sorted({key for key in before.keys() | after.keys() if before.get(key) != after.get(key)})
    if kind is RouteKind.LINK or len(keys) <= MAX_SEPARATE_CHANGES:
        return [
            Change(kind, (destination,) if destination else (), interface, before.get(key, ()), after.get(key, ()))
            for key in keys
            for destination, interface in [key]
        ]
    groups: dict[tuple[str, tuple[str, ...], tuple[str, ...]], list[str]] = defaultdict(list)
    for key in keys:
        groups[key[1], before.get(key, ()), after.get(key, ())].append(key[0])
    return [
        Change(kind, tuple(destinations[start : start + MAX_DESTINATIONS]), interface, was, now)
        for (interface, was, now), destinations in groups.items()
        for start in range(0, len(destinations), MAX_DESTINATIONS)
    ]

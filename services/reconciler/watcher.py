"""What changed between two looks: links, routes, remote MACs. Differences of states, so no lost event is missed.

Pure but for `Watcher`, which remembers what was told last.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from schemas.network import RouteKind
from services._host.netlink.objects import Link, NextHop, Snapshot

TOGETHER: Final = 16
"""More changes of one kind than this in one look are put together where the very same happened to several."""
MOST_TOGETHER: Final = 500
MULTIPATH_PROTOCOLS: Final = frozenset({186})
"""Routes of BGP (RTPROT_BGP): paths of the fabric. Others are somebody else's."""
_NO_MAC: Final = "00:00:00:00:00:00"
_States = Mapping[tuple[str, str], tuple[str, ...]]
"""By (destination, interface): next hops, or the state of a link."""


@dataclass(frozen=True, slots=True)
class Change:
    """One change, that befell one or several."""

    kind: RouteKind
    destinations: tuple[str, ...]
    """() for a link."""
    interface: str
    before: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """What of a look is told of."""

    links: _States
    routes: _States
    remote: _States

    @staticmethod
    def of(snapshot: Snapshot, ignored_tables: frozenset[int] = frozenset()) -> Seen:
        """Reduce a look."""
        names = {link.ifindex: link.name for link in snapshot.links}
        routes: dict[tuple[str, str], tuple[str, ...]] = {}
        for route in snapshot.routes:
            if route.protocol in MULTIPATH_PROTOCOLS and route.table not in ignored_tables:
                routes[route.destination, ""] = hops_text(route.next_hops, names)
        remote: dict[tuple[str, str], list[str]] = defaultdict(list)
        for row in snapshot.fdb:
            if row.own and row.destination is not None and row.mac != _NO_MAC:
                remote[row.mac, names.get(row.ifindex, "")].append(row.destination)
        return Seen(
            {("", link.name): _link_state(link) for link in snapshot.links},
            routes,
            {key: tuple(sorted(vteps)) for key, vteps in remote.items()},
        )


def hops_text(hops: Iterable[NextHop], names: Mapping[int, str]) -> tuple[str, ...]:
    """Next hops that are used, as ``interface`` or ``gateway@interface``."""
    return tuple(
        sorted(
            f"{hop.gateway}@{names.get(hop.ifindex, hop.ifindex)}" if hop.gateway else str(names.get(hop.ifindex, "?"))
            for hop in hops
            if not hop.dead
        )
    )


def changes(before: Seen, after: Seen) -> list[Change]:
    """Every difference."""
    return [
        *_differences(RouteKind.LINK, before.links, after.links),
        *_differences(RouteKind.ROUTE, before.routes, after.routes),
        *_differences(RouteKind.FDB, before.remote, after.remote),
    ]


class Watcher:
    """Remembers what was told. Links and routes are told of at each look, MACs too unless the bus is behind."""

    def __init__(self, ignored_tables: frozenset[int] = frozenset()) -> None:
        self._ignored_tables = ignored_tables
        self._told: Seen | None = None

    def look(self, snapshot: Snapshot, *, hold_back_macs: bool = False, hold_back_all: bool = False) -> list[Change]:
        """What is new since what was told; what is held back stands in a later difference."""
        seen = Seen.of(snapshot, self._ignored_tables)
        told = self._told
        if told is None:
            self._told = seen
            return []
        if hold_back_all:
            return []
        if hold_back_macs:
            seen = Seen(seen.links, seen.routes, told.remote)
        self._told = seen
        return changes(told, seen)


def _link_state(link: Link) -> tuple[str, ...]:
    return ("up" if link.up else "down", "carrier" if link.carrier else "no carrier")


def _differences(kind: RouteKind, before: _States, after: _States) -> list[Change]:
    if before == after:
        return []
    keys = sorted({key for key in before.keys() | after.keys() if before.get(key) != after.get(key)})
    if kind is RouteKind.LINK or len(keys) <= TOGETHER:
        return [
            Change(kind, (destination,) if destination else (), interface, before.get(key, ()), after.get(key, ()))
            for key in keys
            for destination, interface in [key]
        ]
    groups: dict[tuple[str, tuple[str, ...], tuple[str, ...]], list[str]] = defaultdict(list)
    for key in keys:
        groups[key[1], before.get(key, ()), after.get(key, ())].append(key[0])
    return [
        Change(kind, tuple(destinations[start : start + MOST_TOGETHER]), interface, was, now)
        for (interface, was, now), destinations in groups.items()
        for start in range(0, len(destinations), MOST_TOGETHER)
    ]

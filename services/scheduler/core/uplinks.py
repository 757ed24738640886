"""Which uplinks of a node carry traffic, by the path events of its reconciler and fast path. Pure.

An uplink is an interface that a next hop names. It is down while its link is, while the fast path routes around it,
while an operator has drained it, and while routes have lost it that go on over another one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from schemas.network import RouteEvent, RouteKind

MOST_INTERFACES: Final = 64
"""Of a node, that are kept in mind."""
_CARRIES: Final = ("up", "carrier")


@dataclass(slots=True)
class Uplinks:
    """Of one node, as of the latest event of its reconciler's latest run."""

    incarnations: dict[str, int] = field(default_factory=dict)
    """Of each sender on the node."""
    named: set[str] = field(default_factory=set)
    """By next hops."""
    links_down: set[str] = field(default_factory=set)
    drained: set[str] = field(default_factory=set)
    without_route: set[str] = field(default_factory=set)

    def fold(self, event: RouteEvent) -> None:
        """One more event."""
        if event.incarnation > self.incarnations.get(event.source, 0):
            self._forget(event)
        before, after = _interfaces(event.before), _interfaces(event.after)
        match event.kind:
            case RouteKind.LINK:
                _mark(self.links_down, event.interface, down=event.after != _CARRIES)
            case RouteKind.DRAIN | RouteKind.UNDRAIN:
                _mark(self.drained, event.interface, down=event.kind is RouteKind.DRAIN)
            case RouteKind.OVERRIDE:
                self._name({event.interface} | after)
                _mark(self.without_route, event.interface, down=True)
            case RouteKind.ROUTE:
                self._name(before | after)
                self.without_route -= after
                if after:  # else the destination may be gone, and not the way to it
                    self.without_route |= (before - after) & self.named

    @property
    def up(self) -> set[str]:
        """Uplinks that carry traffic."""
        return self.named - self.links_down - self.drained - self.without_route

    @property
    def cut_off(self) -> bool:
        """Whether it has uplinks, and none carries traffic."""
        return bool(self.named) and not self.up

    @property
    def halved(self) -> bool:
        """Whether some of several uplinks carry traffic, and others do not."""
        return bool(self.up) and len(self.up) < len(self.named)

    def _forget(self, event: RouteEvent) -> None:
        """A sender has started anew: it reports what has changed since, not what it has found."""
        restarted = event.source in self.incarnations
        self.incarnations[event.source] = event.incarnation
        if restarted and event.source == "watcher":
            self.links_down.clear()
            self.without_route.clear()

    def _name(self, interfaces: Iterable[str]) -> None:
        self.named |= set(sorted(set(interfaces) - {""})[: MOST_INTERFACES - len(self.named)])


def _mark(interfaces: set[str], name: str, *, down: bool) -> None:
    if not down:
        interfaces.discard(name)
    elif name and len(interfaces) < MOST_INTERFACES:
        interfaces.add(name)


def _interfaces(hops: Iterable[str]) -> set[str]:
    """Of next hops such as ``gateway@interface`` or ``interface``."""
    return {hop.rpartition("@")[2] for hop in hops}

"""Mirror of FRR's host routes in the kernel's main table. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from services.fastpath.values import FrrRoute

BGP: Final = 186
"""RTPROT_BGP, which zebra gives to what bgpd installs."""


class Row(NamedTuple):
    """A route of any protocol in the main table, to a single host."""

    destination: str
    protocol: int
    metric: int
    tos: int
    route: FrrRoute | None
    """None: it has an attribute that an override cannot copy, such as an encapsulation."""


class RouteMirror:
    """Updated by netlink events; returns FRR's route to a destination."""

    def __init__(self, wanted: Callable[[str], bool]) -> None:
        """Start empty.

        Args:
            wanted: whether a destination is mirrored; called once for each.
        """
        self._ask = wanted
        self._wanted: dict[str, bool] = {}
        self._rows: dict[str, dict[tuple[int, int], Row]] = {}

    def _is_wanted(self, destination: str) -> bool:
        found = self._wanted.get(destination)
        if found is None:
            if len(self._wanted) > 100_000:  # host routes come and go
                self._wanted.clear()
            found = self._wanted[destination] = self._ask(destination)
        return found

    def clear(self) -> None:
        """Remove all, before a new dump."""
        self._rows.clear()

    def add(self, row: Row) -> bool:
        """Add a route, or replace that with the same metric; False: not mirrored."""
        if not self._is_wanted(row.destination):
            return False
        self._rows.setdefault(row.destination, {})[row.metric, row.tos] = row
        return True

    def remove(self, row: Row) -> bool:
        """Remove a route; IPv6 may name only some of its hops. False: not mirrored."""
        rows = self._rows.get(row.destination)
        if not rows or (row.metric, row.tos) not in rows:
            return False
        known = rows.pop((row.metric, row.tos))
        if known.protocol != row.protocol:  # an older route that was replaced meanwhile
            rows[row.metric, row.tos] = known
        elif ":" in row.destination and known.route is not None and row.route is not None:
            rest = tuple(hop for hop in known.route.hops if hop not in row.route.hops)
            if rest:
                rows[row.metric, row.tos] = known._replace(route=known.route._replace(hops=rest))
        if not rows:
            del self._rows[row.destination]
        return True

    def of(self, destination: str) -> FrrRoute | None:
        """FRR's route, if the kernel uses it: another with a lower metric takes precedence."""
        rows = self._rows.get(destination)
        if not rows:
            return None
        best = min(rows.values(), key=lambda row: row.metric)
        return best.route if best.protocol == BGP else None

    def all(self) -> dict[str, FrrRoute]:
        """`of` for every destination that has one."""
        return {name: route for name in self._rows if (route := self.of(name)) is not None}

    def uses(self, ifindex: int) -> bool:
        """Whether any route uses this link."""
        return any(
            hop.ifindex == ifindex
            for rows in self._rows.values()
            for row in rows.values()
            if row.route is not None
            for hop in row.route.hops
        )

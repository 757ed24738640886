"""Routing tables and rules of the fast path's overrides: the fast path writes them, the reconciler may delete them.

Standard library only, for the fast path's processes.
"""

from __future__ import annotations

import errno
from typing import Final, NamedTuple, Self

from services._host.netlink import route_codec
from services._host.netlink.constants import AF_INET, AF_INET6
from services._host.netlink.messages import Message, Request
from services._host.netlink.route_codec import Rule
from services._host.netlink.socket import NetlinkSocket

PROTOCOL: Final = 200
"""RTPROT_* of the fast path's routes and rules: no others are ever deleted."""
BACKUP_TABLES: Final = 8
"""Maximum number of uplinks, each with a backup table; see `services.fastpath.backup_tables`."""
FAMILIES: Final = (AF_INET, AF_INET6)
NO_FAMILY: Final = frozenset({errno.EAFNOSUPPORT, errno.EOPNOTSUPP})
"""Errors of a kernel without the address family."""
_TIMEOUT_S: Final = 1.0


class OverrideTables(NamedTuple):
    """The fast path's rule and tables in a network namespace: one for overrides, and a backup table per uplink."""

    table: int = 100
    priority: int = 90
    """Of the rule; before that of the main table, 32766. Rules of backup tables have the next one."""

    @property
    def numbers(self) -> range:
        """Of all tables, the table of overrides first."""
        return range(self.table, self.table + 1 + BACKUP_TABLES)


class OverrideSocket:
    """Netlink socket that dumps and deletes overrides. Every method raises OSError or NetlinkError if it fails."""

    def __init__(self, netns: str | None, tables: OverrideTables) -> None:
        self.tables = tables
        self._netlink = NetlinkSocket(netns, within_s=_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._netlink.close()

    def clear(self) -> int:
        """Delete all rules, which ends every override, then all routes. Returns the number of routes.

        Only rules and routes of `PROTOCOL` in the fast path's tables are deleted.
        """
        for rule in self._rules():
            self._netlink.write_one(route_codec.delete_rule(rule))
        return sum(self._clear_table(table) for table in self.tables.numbers)

    def active_destinations(self) -> list[str]:
        """Destinations with an override in force, also of an earlier process."""
        tables = {rule.table for rule in self._rules()}
        return sorted({destination for table in tables for destination in self._destinations(table)})

    def _clear_table(self, table: int) -> int:
        requests = [route_codec.delete_host_route(name, table, PROTOCOL) for name in self._destinations(table)]
        self._netlink.write(requests)
        return len(requests)

    def _rules(self) -> list[Rule]:
        messages = [message for family in FAMILIES for message in self._dump(route_codec.dump_rules(family))]
        rules = [route_codec.decode_rule(message.payload) for message in messages]
        return [rule for rule in rules if rule.protocol == PROTOCOL and rule.table in self.tables.numbers]

    def _destinations(self, table: int) -> list[str]:
        routes = [route_codec.decode_route(message.payload) for message in self._routes(table)]
        return [
            route.destination.partition("/")[0]
            for route in routes
            if route is not None and route.is_host and (route.protocol, route.table) == (PROTOCOL, table)
        ]

    def _routes(self, table: int) -> list[Message]:
        requests = [route_codec.dump_routes(family, table=table) for family in FAMILIES]
        return [message for request in requests for message in self._dump(request)]

    def _dump(self, request: Request) -> list[Message]:
        """Dump; empty if the table or family does not exist."""
        try:
            return self._netlink.dump(request)
        except OSError as error:
            if error.errno in NO_FAMILY | {errno.ENOENT}:
                return []
            raise

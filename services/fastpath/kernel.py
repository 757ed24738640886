"""Netlink access of the fast path: writes its tables and rules, dumps links and routes."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import NamedTuple

from services._edge.override_tables import FAMILIES, NO_FAMILY, PROTOCOL, OverrideSocket
from services._host.netlink import route_codec
from services._host.netlink.constants import AF_INET6, RT_TABLE_MAIN
from services._host.netlink.messages import Request
from services._host.netlink.route_codec import Rule
from services.fastpath.mirror import Row
from services.fastpath.routes import LinkRow, all_links, override_request, read_link, read_route
from services.fastpath.values import BackupRule, Write

_ABSENT = frozenset({errno.ESRCH, errno.ENOENT})


class Failure(NamedTuple):
    """A write that the kernel rejected."""

    write: Write | BackupRule
    reason: str


class FastPathKernel(OverrideSocket):
    """Netlink socket of the fast path. Every method raises OSError or NetlinkError if the socket fails."""

    @property
    def port_id(self) -> int:
        """`Message.port_id` of events of own writes."""
        return self._netlink.port_id

    def write(self, writes: Sequence[Write | BackupRule]) -> list[Failure]:
        """Write in order; deleting an absent object is no failure."""
        requests: list[Request] = []
        owners: list[Write | BackupRule] = []
        for write in writes:
            made = [self._route(write)] if isinstance(write, Write) else self._backup_rules(write)
            requests += made
            owners += [write] * len(made)
        failures = []
        for write, ack in zip(owners, self._netlink.write(requests), strict=True):
            if ack.errno and not _harmless(write, ack.errno):
                failures.append(Failure(write, f"{os.strerror(ack.errno)} {ack.reason}".rstrip()))
        return failures

    def _route(self, write: Write) -> Request:
        return override_request(write, self.tables.table + write.table)

    def _backup_rules(self, rule: BackupRule) -> list[Request]:
        table, priority = self.tables.table + rule.table, self.tables.priority + 1
        encode = route_codec.add_rule if rule.on else route_codec.delete_rule
        return [encode(Rule(family, table, priority, PROTOCOL)) for family in FAMILIES]

    def add_rules(self) -> None:
        """Add the rule of the table of overrides. An existing rule is no failure."""
        for family in FAMILIES:
            rule = Rule(family, self.tables.table, self.tables.priority, PROTOCOL)
            ack = self._netlink.write_one(route_codec.add_rule(rule))
            if ack.errno in NO_FAMILY and family == AF_INET6:
                continue  # the kernel lacks IPv6
            if ack.errno not in {0, errno.EEXIST}:
                raise OSError(ack.errno, f"cannot add the rule: {os.strerror(ack.errno)} {ack.reason}".rstrip())

    def links(self) -> list[LinkRow]:
        """All links."""
        rows = (read_link(message) for message in self._netlink.dump(all_links()))
        return [row for row in rows if row is not None]

    def routes(self) -> list[Row]:
        """All host routes of the main table."""
        rows = (read_route(message, self.tables) for message in self._routes(RT_TABLE_MAIN))
        return [row for row in rows if isinstance(row, Row)]


def _harmless(write: Write | BackupRule, number: int) -> bool:
    if isinstance(write, Write):
        return write.route is None and number in _ABSENT
    return number in (NO_FAMILY | ({errno.EEXIST} if write.on else _ABSENT))

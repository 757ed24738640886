"""Netlink access of the fast path: writes its tables and rules, dumps links and routes."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import NamedTuple, Self

from services._host.netlink import route_codec, rule_codec
from services._host.netlink.constants import AF_INET6, RT_TABLE_MAIN
from services._host.netlink.rule_codec import Rule
from services._host.netlink.socket import Message, NetlinkSocket, Request
from services.fastpath.mirror import Row
from services.fastpath.routes import (
    FAMILIES,
    LinkRow,
    OverrideRow,
    all_links,
    override_request,
    read_link,
    read_route,
)
from services.fastpath.values import PROTOCOL, BackupRule, Ownership, Write

_ABSENT = frozenset({errno.ESRCH, errno.ENOENT})
_NO_FAMILY = frozenset({errno.EAFNOSUPPORT, errno.EOPNOTSUPP})


class Failure(NamedTuple):
    """A write that the kernel rejected."""

    write: Write | BackupRule
    reason: str


class FastPathKernel:
    """Netlink socket in one namespace. Every method raises OSError or NetlinkError if the socket fails."""

    def __init__(self, netns: str | None, own: Ownership) -> None:
        self.own = own
        self._netlink = NetlinkSocket(netns, within_s=1.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._netlink.close()

    @property
    def port_id(self) -> int:
        """`Message.port_id` of events of own writes."""
        return self._netlink.port_id

    def write(self, writes: Sequence[Write | BackupRule]) -> list[Failure]:
        """Write in order; deleting an absent object is no failure."""
        requests: list[Request] = []
        owners: list[Write | BackupRule] = []
        for write in writes:
            made = [self._route(write)] if isinstance(write, Write) else self._rules(write)
            requests += made
            owners += [write] * len(made)
        failures = []
        for write, ack in zip(owners, self._netlink.write(requests), strict=True):
            if ack.errno and not _harmless(write, ack.errno):
                failures.append(Failure(write, f"{os.strerror(ack.errno)} {ack.reason}".rstrip()))
        return failures

    def _route(self, write: Write) -> Request:
        return override_request(write, self.own.table + write.table)

    def _rules(self, rule: BackupRule) -> list[Request]:
        table, priority = self.own.table + rule.table, self.own.priority + 1
        encode = rule_codec.add_rule if rule.on else rule_codec.delete_rule
        return [encode(Rule(family, table, priority, PROTOCOL)) for family in FAMILIES]

    def clear(self) -> int:
        """Delete all rules, which ends every override, then all routes. Returns the number of routes.

        Only rules and routes of `PROTOCOL` in the fast path's tables are deleted.
        """
        for family in FAMILIES:
            for message in self._dump(rule_codec.dump_rules(family)):
                rule = rule_codec.decode_rule(message.payload)
                if rule.protocol == PROTOCOL and rule.table in self.own.tables:
                    self._netlink.write_one(rule_codec.delete_rule(rule))
        return sum(self._clear_table(table) for table in self.own.tables)

    def active_destinations(self) -> list[str]:
        """Destinations with an override in force, also of an earlier process."""
        tables = {
            rule.table
            for family in FAMILIES
            for message in self._dump(rule_codec.dump_rules(family))
            if (rule := rule_codec.decode_rule(message.payload)).protocol == PROTOCOL and rule.table in self.own.tables
        }
        return sorted({row.destination for table in tables for row in self._own_rows(table)})

    def _own_rows(self, table: int) -> list[OverrideRow]:
        rows = (read_route(message, self.own) for message in self._routes(table))
        return [row for row in rows if isinstance(row, OverrideRow)]

    def _clear_table(self, table: int) -> int:
        writes = [override_request(Write(row.destination, None), table) for row in self._own_rows(table)]
        self._netlink.write(writes)
        return len(writes)

    def add_rules(self) -> None:
        """Add the rule of the table of overrides. An existing rule is no failure."""
        for family in FAMILIES:
            rule = Rule(family, self.own.table, self.own.priority, PROTOCOL)
            ack = self._netlink.write_one(rule_codec.add_rule(rule))
            if ack.errno in _NO_FAMILY and family == AF_INET6:
                continue  # the kernel lacks IPv6
            if ack.errno not in {0, errno.EEXIST}:
                raise OSError(ack.errno, f"cannot add the rule: {os.strerror(ack.errno)} {ack.reason}".rstrip())

    def links(self) -> list[LinkRow]:
        """All links."""
        rows = (read_link(message) for message in self._netlink.dump(all_links()))
        return [row for row in rows if row is not None]

    def routes(self) -> list[Row]:
        """All host routes of the main table."""
        rows = (read_route(message, self.own) for message in self._routes(RT_TABLE_MAIN))
        return [row for row in rows if isinstance(row, Row)]

    def _routes(self, table: int) -> list[Message]:
        requests = (route_codec.dump_routes(family, table=table) for family in FAMILIES)
        return [message for request in requests for message in self._dump(request)]

    def _dump(self, request: Request) -> list[Message]:
        """Dump; empty if the table or family does not exist."""
        try:
            return self._netlink.dump(request)
        except OSError as error:
            if error.errno in _NO_FAMILY | {errno.ENOENT}:
                return []
            raise


def _harmless(write: Write | BackupRule, number: int) -> bool:
    if isinstance(write, Write):
        return write.route is None and number in _ABSENT
    return number in (_NO_FAMILY | ({errno.EEXIST} if write.on else _ABSENT))

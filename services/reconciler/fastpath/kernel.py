"""The kernel's side of the fast path: writes to our tables and rules, looks at links and routes."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import NamedTuple

from services.reconciler.adapters.netlink import NetlinkSocket, Request
from services.reconciler.adapters.rtnetlink import RT_TABLE_MAIN
from services.reconciler.adapters.rule_codec import Rule, add_rule, delete_rule
from services.reconciler.fastpath.flush import flush
from services.reconciler.fastpath.mirror import Row
from services.reconciler.fastpath.routes import (
    FAMILIES,
    LinkRow,
    add_rules,
    all_links,
    dump_routes,
    override_request,
    read_link,
    read_route,
)
from services.reconciler.fastpath.values import PROTOCOL, Ownership, Switch, Write

_ABSENT = frozenset({errno.ESRCH, errno.ENOENT})
_NO_FAMILY = frozenset({errno.EAFNOSUPPORT, errno.EOPNOTSUPP})


class Failure(NamedTuple):
    """A write that the kernel did not take."""

    write: Write | Switch
    reason: str


class FastPathKernel:
    """One namespace. Every method raises OSError or NetlinkError where the kernel cannot be talked to."""

    def __init__(self, netns: str | None, own: Ownership) -> None:
        self.own = own
        self._netlink = NetlinkSocket(netns, within_s=1.0)

    @property
    def port_id(self) -> int:
        """What events that we caused carry."""
        return self._netlink.port_id

    def write(self, writes: Sequence[Write | Switch]) -> list[Failure]:
        """Carry out in order; what was to be deleted and is not there is fine."""
        requests: list[Request] = []
        owners: list[Write | Switch] = []
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

    def _rules(self, switch: Switch) -> list[Request]:
        table, priority = self.own.table + switch.table, self.own.priority + 1
        rules = (Rule(family, table, priority, PROTOCOL) for family in FAMILIES)
        return [add_rule(rule) if switch.on else delete_rule(rule) for rule in rules]

    def clear(self) -> None:
        """Delete everything of ours."""
        flush(self._netlink, self.own)

    def add_rules(self) -> None:
        """Let packets look into the table of overrides."""
        add_rules(self._netlink, self.own)

    def links(self) -> list[LinkRow]:
        """All links."""
        rows = (read_link(message) for message in self._netlink.dump(all_links()))
        return [row for row in rows if row is not None]

    def routes(self) -> list[Row]:
        """All host routes of the main table."""
        messages = [message for family in FAMILIES for message in dump_routes(self._netlink, family, RT_TABLE_MAIN)]
        rows = (read_route(message, self.own) for message in messages)
        return [row for row in rows if isinstance(row, Row)]


def _harmless(write: Write | Switch, number: int) -> bool:
    if isinstance(write, Write):
        return write.route is None and number in _ABSENT
    return number in (_NO_FAMILY | ({errno.EEXIST} if write.on else _ABSENT))

"""Leave nothing of the fast path behind: rule first, which ends every override in one write, then the routes.

``python -m services.reconciler.fastpath.flush [NETNS [TABLE [PRIORITY]]]`` does it by hand, and for systemd's
ExecStartPre and ExecStopPost. Standard library only.
"""

from __future__ import annotations

import sys

from services.reconciler.adapters.netlink import NetlinkError, NetlinkSocket
from services.reconciler.adapters.rule_codec import delete_rule
from services.reconciler.fastpath.routes import (
    FAMILIES,
    OwnRow,
    dump_routes,
    dump_rules,
    override_request,
    read_route,
)
from services.reconciler.fastpath.values import PROTOCOL, Ownership, Write


def flush(netlink: NetlinkSocket, own: Ownership) -> int:
    """Delete our rules and every route of our protocol in our tables; returns how many routes there were.

    Raises:
        OSError, NetlinkError: the kernel cannot be talked to.
    """
    for family in FAMILIES:
        for rule in dump_rules(netlink, family):
            if rule.protocol == PROTOCOL and rule.table in own.tables:
                netlink.write_one(delete_rule(rule))
    return sum(flush_table(netlink, own, table) for table in own.tables)


def flush_table(netlink: NetlinkSocket, own: Ownership, table: int) -> int:
    """Delete every route of our protocol in a table; returns how many there were.

    Raises:
        OSError, NetlinkError: the kernel cannot be talked to.
    """
    found = 0
    for family in FAMILIES:
        rows = [read_route(message, own) for message in dump_routes(netlink, family, table)]
        writes = [override_request(Write(row.destination, None), table) for row in rows if isinstance(row, OwnRow)]
        netlink.write(writes)
        found += len(writes)
    return found


def main(arguments: list[str]) -> int:
    """Run with: namespace (``-``: this one), table, priority of the rule."""
    default = Ownership()
    netns = arguments[0] if arguments and arguments[0] != "-" else None
    own = Ownership(*(int(text) for text in arguments[1:3]), *default[len(arguments[1:3]) :])
    try:
        with NetlinkSocket(netns) as netlink:
            found = flush(netlink, own)
    except (OSError, NetlinkError) as error:
        print(f"cannot flush: {error}; run as root", file=sys.stderr)  # noqa: T201 - a command's answer
        return 69
    if found:
        print(f"{found} overrides deleted")  # noqa: T201 - as above
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Deletes all routes and rules of the fast path: ``python -m services.fastpath.flush``.

Arguments: [NETNS [TABLE [PRIORITY]]]. For systemd's ExecStartPre and ExecStopPost as well. Standard library only.
"""

from __future__ import annotations

import sys

from services._edge.override_tables import OverrideSocket, OverrideTables
from services._host.netlink.attributes import NetlinkError


def main(arguments: list[str]) -> int:
    """Run with: namespace (``-``: this one), table, priority of the rule."""
    default = OverrideTables()
    netns = arguments[0] if arguments and arguments[0] != "-" else None
    tables = OverrideTables(*(int(text) for text in arguments[1:3]), *default[len(arguments[1:3]) :])
    try:
        with OverrideSocket(netns, tables) as kernel:
            found = kernel.clear()
    except (OSError, NetlinkError) as error:
        print(f"cannot flush: {error}; run as root", file=sys.stderr)  # noqa: T201 - a command's answer
        return 69
    if found:
        print(f"{found} overrides deleted")  # noqa: T201 - as above
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

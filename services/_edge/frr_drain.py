"""A drained uplink in FRR's configuration: generated route maps on its BGP session. Pure.

One uplink: inwards every route gets local preference 0, so this host sends over its other uplinks. Outwards routes get
the graceful-shutdown community (RFC 8326), which FRR's receivers turn into local preference 0, and a longer AS path for
those that do not: so the others send over the other uplinks too. Routes are replaced, none is withdrawn.

All uplinks: there is no other way to this host's VTEP. Its route stays as it is; what else the host announces is made
less preferred.
"""

from __future__ import annotations

import re
from typing import Final

DRAIN_IN: Final = "TURNBUCKLE-DRAIN-IN"
DRAIN_OUT: Final = "TURNBUCKLE-DRAIN-OUT"
DRAIN_NODE: Final = "TURNBUCKLE-DRAIN-NODE"
UPLINK_MAPS: Final = frozenset({DRAIN_IN, DRAIN_OUT})
"""On the session of a drained uplink, while another uplink of the host is not drained."""
NODE_MAPS: Final = frozenset({DRAIN_NODE})
"""On every session of a host all of whose uplinks are drained."""
RUNNING: Final = "show running-config"
_ATTACHED: Final = re.compile(
    rf"^\s*neighbor (\S+) route-map ({DRAIN_IN}|{DRAIN_OUT}|{DRAIN_NODE}) (?:in|out)\s*$", re.MULTILINE
)


def attached(running: str) -> dict[str, frozenset[str]]:
    """Neighbour (uplink, where unnumbered) -> our route maps on its session.

    Args:
        running: bgpd's answer to `RUNNING`.
    """
    found: dict[str, set[str]] = {}
    for neighbour, name in _ATTACHED.findall(running):
        found.setdefault(neighbour, set()).add(name)
    return {neighbour: frozenset(names) for neighbour, names in found.items()}


def drained(running: str) -> frozenset[str]:
    """Neighbours (uplinks, where unnumbered) that are drained in both directions.

    Args:
        running: bgpd's answer to `RUNNING`.
    """
    return frozenset(neighbour for neighbour, names in attached(running).items() if names in {UPLINK_MAPS, NODE_MAPS})

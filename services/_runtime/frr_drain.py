"""How a drained uplink looks in FRR's configuration: route maps of ours on its BGP session. Pure.

Inwards they give every route local preference 0, so this host sends over its other uplinks. Outwards they add the
graceful-shutdown community (RFC 8326), which FRR's receivers turn into local preference 0, and prepend the AS path for
those that do not: so the others send over the other uplinks too. Routes are replaced, none is withdrawn.
"""

from __future__ import annotations

import re
from typing import Final

DRAIN_IN: Final = "TURNBUCKLE-DRAIN-IN"
DRAIN_OUT: Final = "TURNBUCKLE-DRAIN-OUT"
RUNNING: Final = "show running-config"
_ATTACHED: Final = re.compile(rf"^\s*neighbor (\S+) route-map ({DRAIN_IN}|{DRAIN_OUT}) (in|out)\s*$", re.MULTILINE)


def drained(running: str) -> frozenset[str]:
    """Neighbours (uplinks, where unnumbered) that are drained in both directions.

    Args:
        running: bgpd's answer to `RUNNING`.
    """
    found: dict[str, set[str]] = {}
    for neighbour, name, _ in _ATTACHED.findall(running):
        found.setdefault(neighbour, set()).add(name)
    return frozenset(neighbour for neighbour, names in found.items() if names == {DRAIN_IN, DRAIN_OUT})

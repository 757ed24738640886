"""Which switch is at the other end of each uplink, from bgpd's ``show bgp neighbors json``. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Mapping
from typing import Any

_UNKNOWN = "0.0.0.0"  # noqa: S104 - bgpd's word for a neighbour that has not spoken yet


def router_ids(neighbours: Any, uplinks: Collection[str], sessions: Mapping[str, str]) -> dict[str, str]:
    """Router id by uplink, as far as known.

    Args:
        neighbours: the parsed answer: an object by neighbour, named by interface (unnumbered) or address.
        uplinks: names of the links.
        sessions: uplink by the address of a BFD peer, which numbered neighbours are known by.
    """
    found: dict[str, str] = {}
    if not isinstance(neighbours, dict):
        return found
    for name, neighbour in neighbours.items():
        uplink = name if name in uplinks else sessions.get(name)
        router_id = neighbour.get("remoteRouterId") if isinstance(neighbour, dict) else None
        if uplink is None or not isinstance(router_id, str) or router_id == _UNKNOWN:
            continue
        try:
            found[uplink] = str(ipaddress.IPv4Address(router_id))
        except ValueError:
            continue
    return found

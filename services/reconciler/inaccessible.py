"""BGP paths that bgpd does not use because it considers their next hop inaccessible. Pure.

While the session that announced such a path is established and BFD on its uplink is up, the path works and only bgpd's
next-hop tracking is wrong: FRR before 10.7 stays so after a flap of less than a millisecond (FRR issues 21769 and
22780), until the session is reset. Zebra and the kernel agree on the fewer next hops, so neither shows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from services.reconciler.ports import MalformedReplyError

MAX_QUERIES: Final = 64
"""Queries to bgpd per check, 0.3 ms each: a next hop is inaccessible for all destinations at once."""


def show_bgp_command(destination: str) -> str:
    """Bgpd's show command for one destination."""
    family, length = ("ipv6", 128) if ":" in destination else ("ipv4", 32)
    return f"show bgp {family} unicast {destination}/{length} json"


def destinations_to_query(
    vteps: Iterable[str], before: Iterable[str], routes: Mapping[str, tuple[str, ...]], bfd_up: Iterable[str]
) -> tuple[str, ...]:
    """Destinations to query, `MAX_QUERIES` at most.

    Args:
        vteps: current destinations.
        before: former destinations: with its last path a VTEP leaves the forwarding table too.
        routes: of zebra, by prefix.
        bfd_up: uplinks, or peers, whose BFD session is up.
    """
    up = set(bfd_up)
    if not up:
        return ()
    found = {vtep for vtep in vteps if not up <= _ends(routes.get(f"{vtep}/{128 if ':' in vtep else 32}", ()))}
    return tuple(sorted(found | set(before))[:MAX_QUERIES])


def read_inaccessible(answer: Any, bfd_up: Iterable[str]) -> tuple[str, ...]:
    """Uplinks of the paths of one destination that bgpd calls inaccessible although BFD is up there.

    A missing path, and a stale one of a session that has ended, is normal operation of BGP and not counted.

    Args:
        answer: of `show_bgp_command`.
        bfd_up: uplinks, or peers, whose BFD session is up.

    Raises:
        MalformedReplyError: it is no such answer.
    """
    if not isinstance(answer, dict):
        raise MalformedReplyError("bgpd's paths are no map")
    up, found = set(bfd_up), set()
    paths = answer.get("paths")
    for path in paths if isinstance(paths, list) else ():
        if not isinstance(path, dict) or path.get("stale") or not isinstance(peer := path.get("peer"), dict):
            continue
        names = {str(peer[key]) for key in ("interface", "peerId") if key in peer}
        if names & up and _is_inaccessible(path.get("nexthops")):
            found.add(str(peer.get("interface") or peer.get("peerId")))
    return tuple(sorted(found))


def _is_inaccessible(nexthops: Any) -> bool:
    accessible = (
        [hop.get("accessible") for hop in nexthops if isinstance(hop, dict)] if isinstance(nexthops, list) else []
    )
    return bool(accessible) and all(each is False for each in accessible)


def _ends(hops: Iterable[str]) -> set[str]:
    """Names of a next hop, ``interface`` or ``gateway@interface``, that BFD may use for it."""
    return {part for hop in hops for part in hop.split("@")}

"""Paths that bgpd holds and does not use, because it calls their next hop inaccessible. Pure.

While the session that announced such a path is established and BFD on its uplink is up, the packet's way is whole and
only bgpd's next-hop tracking is wrong: FRR before 10.7 stays so after a flap of less than a millisecond (FRR issues
21769 and 22780), until the session is reset. Zebra and the kernel agree on the fewer next hops, so neither shows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from services._host.frr import FrrError

MOST_ASKED: Final = 64
"""Destinations for which bgpd is asked at one look, of 0.3 ms each: a next hop is inaccessible for all at once."""


def question(destination: str) -> str:
    """The command for bgpd."""
    family, length = ("ipv6", 128) if ":" in destination else ("ipv4", 32)
    return f"show bgp {family} unicast {destination}/{length} json"


def suspects(
    vteps: Iterable[str], before: Iterable[str], routes: Mapping[str, tuple[str, ...]], bfd_up: Iterable[str]
) -> tuple[str, ...]:
    """Destinations worth a question, `MOST_ASKED` at most.

    Args:
        vteps: destinations of now.
        before: others that were destinations before: with its last path a VTEP leaves the forwarding table too.
        routes: of zebra, by prefix.
        bfd_up: uplinks, or peers, whose BFD session is up.
    """
    up = set(bfd_up)
    if not up:
        return ()
    found = {vtep for vtep in vteps if not up <= _ends(routes.get(f"{vtep}/{128 if ':' in vtep else 32}", ()))}
    return tuple(sorted(found | set(before))[:MOST_ASKED])


def read_inaccessible(answer: Any, bfd_up: Iterable[str]) -> tuple[str, ...]:
    """Uplinks of the paths of one destination that bgpd calls inaccessible although BFD is up there.

    A path that bgpd has not got, or keeps from a session that has ended (stale), is none: that is what BGP is for.

    Args:
        answer: to `question`.
        bfd_up: uplinks, or peers, whose BFD session is up.

    Raises:
        FrrError: it is no such answer.
    """
    if not isinstance(answer, dict):
        raise FrrError("bgpd's paths are no map")
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
    told = [hop.get("accessible") for hop in nexthops if isinstance(hop, dict)] if isinstance(nexthops, list) else []
    return bool(told) and all(each is False for each in told)


def _ends(hops: Iterable[str]) -> set[str]:
    """Names of a next hop, ``interface`` or ``gateway@interface``, by which BFD may know it."""
    return {part for hop in hops for part in hop.split("@")}

"""BGP sessions of one FRR: how often each was closed, and the wait until it was closed and is open again."""

from __future__ import annotations

import json
from typing import Any

from tests.support.cgroup_lab import wait_until
from tests.support.fast_path_lab import run


def bgp_sessions(netns: str) -> dict[str, dict[str, Any]]:
    """By neighbor, as bgpd shows them."""
    shown = json.loads(run("vtysh", "-N", netns, "-c", "show bgp neighbors json"))
    return {name: session for name, session in shown.items() if isinstance(session, dict)}


def bgp_drops(netns: str) -> dict[str, int]:
    """How often each session has been closed."""
    return {name: session["connectionsDropped"] for name, session in bgp_sessions(netns).items()}


def bfd_guards(netns: str) -> bool:
    """Whether every session is open, and bgpd knows that of BFD beside it as up."""
    return all(
        session["bgpState"] == "Established" and session.get("peerBfdInfo", {}).get("status") == "Up"
        for session in bgp_sessions(netns).values()
    )


def wait_reopened(netns: str, before: dict[str, int], uplinks: set[str]) -> None:
    """Until these sessions were closed and are open again. Routes alone do not show it: they outlast the closing."""

    def reopened() -> bool:
        shown = bgp_sessions(netns)
        return all(
            shown[name]["connectionsDropped"] > before[name] and shown[name]["bgpState"] == "Established"
            for name in uplinks
        )

    wait_until(reopened, within_s=60, what=f"BGP closed and open again on {sorted(uplinks)}")

"""Compares the next hops of each destination in the kernel, in FRR and in BFD. Pure.

FRR 8.4 leaves a kernel nexthop group shrunk after a carrier flap while it shows both next hops as installed (thorn.md):
a second fault is then a total loss, and nothing else reports it. A next hop whose BFD session is down is a black hole.
The reverse, an uplink with BFD up that is no next hop, is normal while bgpd has no path over it: the far end may have
lost its link to that switch. If bgpd has a path and calls its next hop inaccessible, FRR is wrong (see `inaccessible`).
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from services._host.netlink.objects import NextHop, Snapshot
from services.reconciler.ports import MalformedReplyError
from services.reconciler.watcher import hops_text

MAIN_TABLE: Final = 254
UNNUMBERED_GATEWAY: Final = "169.254.0.1"
"""What FRR writes to the kernel for an IPv6 next hop of an IPv4 route (RFC 5549)."""


@dataclass(frozen=True, slots=True)
class Sessions:
    """Single-hop BFD sessions; multihop sessions monitor no uplink."""

    up: frozenset[str] = frozenset()
    """Interfaces, and addresses of peers."""
    down: frozenset[str] = frozenset()
    admin_down: tuple[str, ...] = ()
    """One sentence per session in AdminDown, which says nothing about the path (RFC 5882, 4.2)."""

    @property
    def uplinks(self) -> tuple[str, ...]:
        """Names in order, for display."""
        return tuple(sorted(self.up))


@dataclass(frozen=True, slots=True)
class FrrState:
    """FRR's state. None: FRR did not answer."""

    routes: Mapping[str, tuple[str, ...]] | None = None
    """Installed next hops by prefix, as ``interface`` or ``gateway@interface``."""
    sessions: Sessions | None = None
    inaccessible: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By destination: uplinks where BGP and BFD are up, and bgpd uses no path because of its next hop."""
    error: str = ""
    """Which daemon did not answer, and why."""


@dataclass(frozen=True, slots=True)
class Path:
    """Next hops of one destination in the kernel, in FRR and in BFD."""

    destination: str
    kernel: tuple[str, ...]
    frr: tuple[str, ...] | None
    bfd_up: tuple[str, ...] | None
    reason: str = ""
    """The mismatch; empty: they agree, as far as they are known."""
    override: tuple[str, ...] = ()


def destinations_of(snapshot: Snapshot) -> tuple[str, ...]:
    """VTEPs of the forwarding table."""
    return tuple(sorted({row.destination for row in snapshot.fdb if row.own and row.destination is not None}))


def own_vtep(snapshot: Snapshot) -> str:
    """This host's VTEP: the source address of the VXLAN device that is in a bridge; empty: there is none."""
    found = sorted({link.vxlan.local for link in snapshot.links if link.vxlan and link.master and link.vxlan.local})
    return found[0] if found else ""


def read_routes(answer: Any) -> dict[str, tuple[str, ...]]:
    """``show ip route json`` of zebra: the selected, installed route of each prefix.

    Raises:
        MalformedReplyError: it is no such answer.
    """
    if not isinstance(answer, dict):
        raise MalformedReplyError("zebra's routes are no map")
    found: dict[str, tuple[str, ...]] = {}
    for prefix, routes in answer.items():
        for route in routes if isinstance(routes, list) else ():
            if isinstance(route, dict) and route.get("selected"):
                found[str(prefix)] = tuple(sorted(_frr_hops(route.get("nexthops"))))
    return found


def _frr_hops(nexthops: Any) -> Iterable[str]:
    for hop in nexthops if isinstance(nexthops, list) else ():
        # `fib`: installed in the kernel; a recursive next hop is installed as those that it resolves to.
        if isinstance(hop, dict) and hop.get("fib") and not hop.get("recursive"):
            name, gateway = str(hop.get("interfaceName", "?")), hop.get("ip")
            yield f"{gateway}@{name}" if gateway and hop.get("afi") == "ipv4" else name


_NEIGHBOR_DOWN: Final = "neighbor signaled session down"
_NO_FAILURE: Final = frozenset({"ok", "administratively down"})
"""Diagnostic of a neighbour that closed the session (FRR 8.4: "ok"); one that detected a failure sends its code."""


def read_sessions(answer: Any) -> Sessions:
    """``show bfd peers json`` of bfdd.

    Raises:
        MalformedReplyError: it is no such answer.
    """
    if not isinstance(answer, list):
        raise MalformedReplyError("bfdd's peers are no list")
    up: set[str] = set()
    down: set[str] = set()
    closed: dict[str, str] = {}
    for peer in answer:
        if not isinstance(peer, dict) or peer.get("multihop"):
            continue
        where, status = str(peer.get("interface") or peer.get("peer")), peer.get("status")
        if status == "shutdown":
            closed[where] = "here"
        elif (
            status != "up" and peer.get("diagnostic") == _NEIGHBOR_DOWN and peer.get("remote-diagnostic") in _NO_FAILURE
        ):
            closed[where] = "by the switch"
        else:
            (up if status == "up" else down).add(where)
    admin_down = tuple(f"BFD on {where} was closed administratively {who}" for where, who in sorted(closed.items()))
    return Sessions(frozenset(up - down), frozenset(down), admin_down)


@dataclass(frozen=True, slots=True)
class PathComparison:
    """Inputs of the comparison of paths."""

    snapshot: Snapshot
    state: FrrState
    override_tables: Container[int] = ()
    """Numbers of the fast path's tables, which rules put before FRR's."""
    vteps: tuple[str, ...] | None = None
    """`destinations_of` of this forwarding table, where already computed: it takes 6 ms for 10,000 MACs."""
    _names: dict[int, str] = field(default_factory=dict)

    def paths(self) -> list[Path]:
        """All destinations, in order."""
        self._names.update({link.ifindex: link.name for link in self.snapshot.links})
        vteps = {*self._vteps(), *self.state.inaccessible}
        wanted = {f"{vtep}/{128 if ':' in vtep else 32}": vtep for vtep in vteps}
        kernel = self._routes(MAIN_TABLE, wanted)
        override: dict[str, tuple[NextHop, ...]] = {}
        for table in self._override_tables():
            override = self._routes(table, wanted) | override
        return [
            self._path(vtep, prefix, kernel.get(prefix, ()), override.get(prefix, ()))
            for prefix, vtep in sorted(wanted.items())
        ]

    def _override_tables(self) -> list[int]:
        """Override tables that a rule refers to, in order; a backup table without a rule is not in force."""
        return [table for table in self.snapshot.lookups if table in self.override_tables]

    def _vteps(self) -> tuple[str, ...]:
        return destinations_of(self.snapshot) if self.vteps is None else self.vteps

    def _routes(self, table: int, wanted: Mapping[str, str]) -> dict[str, tuple[NextHop, ...]]:
        best: dict[str, tuple[int, tuple[NextHop, ...]]] = {}
        for route in self.snapshot.routes:
            if route.table == table and route.destination in wanted:
                known = best.get(route.destination)
                if known is None or route.metric < known[0]:
                    best[route.destination] = (route.metric, route.next_hops)
        return {prefix: hops for prefix, (_, hops) in best.items()}

    def _path(self, vtep: str, prefix: str, hops: tuple[NextHop, ...], override: tuple[NextHop, ...]) -> Path:
        kernel = hops_text(hops, self._names)
        frr = None if self.state.routes is None else self.state.routes.get(prefix, ())
        sessions = self.state.sessions
        return Path(
            vtep,
            kernel,
            frr,
            None if sessions is None else sessions.uplinks,
            self._difference(kernel, frr, sessions) or _unused(self.state.inaccessible.get(vtep, ())),
            hops_text(override, self._names),
        )

    def _difference(self, kernel: tuple[str, ...], frr: tuple[str, ...] | None, sessions: Sessions | None) -> str:
        if frr is not None and not _same(kernel, frr):
            return f"the kernel forwards over {_listed(kernel)}, FRR says {_listed(frr)}"
        dead = [hop for hop in kernel if sessions is not None and _is_down(hop, sessions)]
        return f"the kernel forwards over {_listed(dead)}, where BFD is down" if dead else ""


def _unused(uplinks: tuple[str, ...]) -> str:
    if not uplinks:
        return ""
    reset = ", ".join(f"clear bgp {uplink}" for uplink in uplinks)
    return (
        f"BGP and BFD are up over {_listed(uplinks)}, but bgpd calls the next hop inaccessible and does not use it; "
        f"reset the session in vtysh: {reset}"
    )


def _same(kernel: tuple[str, ...], frr: tuple[str, ...]) -> bool:
    if kernel == frr:
        return True
    return sorted(map(_normal, kernel)) == sorted(map(_normal, frr))


def _normal(hop: str) -> str:
    """Drop the gateways of unnumbered links, which the kernel and FRR write differently."""
    gateway, _, interface = hop.rpartition("@")
    return interface if not gateway or gateway == UNNUMBERED_GATEWAY or ":" in gateway else hop


def _is_down(hop: str, sessions: Sessions) -> bool:
    gateway, _, interface = hop.rpartition("@")
    return bool({gateway, interface} & sessions.down) and not {gateway, interface} & sessions.up


def _listed(hops: Iterable[str]) -> str:
    return " and ".join(hops) or "nothing"

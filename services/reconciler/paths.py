"""Do kernel, FRR and BFD agree on the next hops of a destination? Pure.

FRR 8.4 leaves a kernel nexthop group shrunk after a carrier flap while it shows both next hops as installed (thorn.md):
the second fault is a total loss then, and nothing else tells. A next hop whose BFD session is down is a black hole. The
reverse, an uplink with BFD up that is no next hop, is ordinary while bgpd has no path over it: the far end may have
lost its link to that switch. If bgpd has one and calls its next hop inaccessible, FRR is wrong (see `inaccessible`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from services._host.frr import FrrError
from services._host.netlink.objects import NextHop, Snapshot
from services.fastpath.values import Ownership
from services.reconciler.watcher import hops_text

MAIN_TABLE: Final = 254
UNNUMBERED_GATEWAY: Final = "169.254.0.1"
"""What FRR writes to the kernel for an IPv6 next hop of an IPv4 route (RFC 5549)."""


@dataclass(frozen=True, slots=True)
class Sessions:
    """BFD sessions of one hop; those over several hops watch no uplink."""

    up: frozenset[str] = frozenset()
    """Interfaces, and addresses of peers."""
    down: frozenset[str] = frozenset()
    admin_down: tuple[str, ...] = ()
    """Sentences on sessions that were closed administratively, which says nothing of the path (RFC 5882, 4.2)."""

    @property
    def uplinks(self) -> tuple[str, ...]:
        """For people."""
        return tuple(sorted(self.up))


@dataclass(frozen=True, slots=True)
class FrrView:
    """What FRR said. None: it did not answer."""

    routes: Mapping[str, tuple[str, ...]] | None = None
    """Installed next hops by prefix, as ``interface`` or ``gateway@interface``."""
    sessions: Sessions | None = None
    inaccessible: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By destination: uplinks where BGP and BFD are up, and bgpd uses no path because of its next hop."""
    trouble: str = ""
    """Who did not answer, and why."""


@dataclass(frozen=True, slots=True)
class Path:
    """One destination in three eyes."""

    destination: str
    kernel: tuple[str, ...]
    frr: tuple[str, ...] | None
    bfd_up: tuple[str, ...] | None
    reason: str = ""
    """How they differ; empty: they agree, as far as they can be asked."""
    override: tuple[str, ...] = ()


def destinations_of(snapshot: Snapshot) -> tuple[str, ...]:
    """VTEPs that packets are sent to."""
    return tuple(sorted({row.destination for row in snapshot.fdb if row.own and row.destination is not None}))


def own_vtep(snapshot: Snapshot) -> str:
    """What others send to: the source address of the VXLAN device that is in a bridge; empty: there is none."""
    found = sorted({link.vxlan.local for link in snapshot.links if link.vxlan and link.master and link.vxlan.local})
    return found[0] if found else ""


def read_routes(answer: Any) -> dict[str, tuple[str, ...]]:
    """``show ip route json`` of zebra: the selected, installed route of each prefix.

    Raises:
        FrrError: it is no such answer.
    """
    if not isinstance(answer, dict):
        raise FrrError("zebra's routes are no map")
    found: dict[str, tuple[str, ...]] = {}
    for prefix, routes in answer.items():
        for route in routes if isinstance(routes, list) else ():
            if isinstance(route, dict) and route.get("selected"):
                found[str(prefix)] = tuple(sorted(_frr_hops(route.get("nexthops"))))
    return found


def _frr_hops(nexthops: Any) -> Iterable[str]:
    for hop in nexthops if isinstance(nexthops, list) else ():
        # `fib`: it was given to the kernel; a recursive one was given as those that it resolves to.
        if isinstance(hop, dict) and hop.get("fib") and not hop.get("recursive"):
            name, gateway = str(hop.get("interfaceName", "?")), hop.get("ip")
            yield f"{gateway}@{name}" if gateway and hop.get("afi") == "ipv4" else name


_TOLD_TO: Final = "neighbor signaled session down"
_NO_FAILURE: Final = frozenset({"ok", "administratively down"})
"""What a neighbour that has closed the session says (FRR 8.4: "ok"); one that detected a failure says which."""


def read_sessions(answer: Any) -> Sessions:
    """``show bfd peers json`` of bfdd.

    Raises:
        FrrError: it is no such answer.
    """
    if not isinstance(answer, list):
        raise FrrError("bfdd's peers are no list")
    up: set[str] = set()
    down: set[str] = set()
    closed: dict[str, str] = {}
    for peer in answer:
        if not isinstance(peer, dict) or peer.get("multihop"):
            continue
        where, status = str(peer.get("interface") or peer.get("peer")), peer.get("status")
        if status == "shutdown":
            closed[where] = "here"
        elif status != "up" and peer.get("diagnostic") == _TOLD_TO and peer.get("remote-diagnostic") in _NO_FAILURE:
            closed[where] = "by the switch"
        else:
            (up if status == "up" else down).add(where)
    told = tuple(f"BFD on {where} was closed administratively {who}" for where, who in sorted(closed.items()))
    return Sessions(frozenset(up - down), frozenset(down), told)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that paths are judged by."""

    snapshot: Snapshot
    view: FrrView
    fast_path: Ownership | None = None
    """Whose tables are looked into before FRR's."""
    vteps: tuple[str, ...] | None = None
    """What `destinations_of` gave for this very table, where that is known: it takes 6 ms for 10,000 MACs."""
    _names: dict[int, str] = field(default_factory=dict)

    def paths(self) -> list[Path]:
        """All destinations, in order."""
        self._names.update({link.ifindex: link.name for link in self.snapshot.links})
        vteps = {*self._vteps(), *self.view.inaccessible}
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
        """Those that packets look into now, the first one first: a table that is kept ready counts by its rule."""
        ours = self.fast_path.tables if self.fast_path is not None else ()
        return [table for table in self.snapshot.lookups if table in ours]

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
        frr = None if self.view.routes is None else self.view.routes.get(prefix, ())
        sessions = self.view.sessions
        return Path(
            vtep,
            kernel,
            frr,
            None if sessions is None else sessions.uplinks,
            self._difference(kernel, frr, sessions) or _unused(self.view.inaccessible.get(vtep, ())),
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
    """Without the gateways of unnumbered links, that kernel and FRR write differently."""
    gateway, _, interface = hop.rpartition("@")
    return interface if not gateway or gateway == UNNUMBERED_GATEWAY or ":" in gateway else hop


def _is_down(hop: str, sessions: Sessions) -> bool:
    gateway, _, interface = hop.rpartition("@")
    return bool({gateway, interface} & sessions.down) and not {gateway, interface} & sessions.up


def _listed(hops: Iterable[str]) -> str:
    return " and ".join(hops) or "nothing"

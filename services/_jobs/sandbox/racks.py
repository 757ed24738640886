"""Racks of emulated nodes: a network namespace for each node, a bridge for each rack, and uplinks that jobs share.

An uplink joins a rack's bridge to a core bridge, with its rate in each direction behind a short queue, as a switch's
port has; nodes of one rack reach each other without a limit. Segments are not put together on the way (GSO), so that
the queue holds packets and TCP sees losses of single ones. Namespaces are as in `network`: without names, kept by
descriptors and processes only.

Sources: tc-tbf(8), ip-link(8); the sizes of burst and queue are those of the MLTCP prototype's dumbbell.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from services._jobs.sandbox.network import DEVICE, PREFIX_LENGTH, NetworkNamespace, address_of, check_rate, make_bridge

MAX_RACKS: Final = 16
_CORE: Final = "core"
_BURST_S: Final = 1.28e-3
"""16 kB at 100 Mbit/s."""
_QUEUE_S: Final = 3.68e-3
"""46 kB."""
_LEAST_BYTES: Final = 16_000
"""Ten packets: with less than that a slow uplink drops most of each window."""
_TBF_HANDLE: Final = 0x10000


class TokenBucket(NamedTuple):
    """What keeps an uplink's rate, in bytes."""

    rate_bytes_per_s: int
    burst_bytes: int
    queue_bytes: int

    @classmethod
    def of(cls, bits_per_s: int) -> Self:
        """The bucket of an uplink.

        Raises:
            ValueError: tbf cannot keep the rate.
        """
        rate = check_rate(bits_per_s) // 8
        return cls(rate, max(_LEAST_BYTES, round(rate * _BURST_S)), max(_LEAST_BYTES, round(rate * _QUEUE_S)))


class Uplink(NamedTuple):
    """A link that jobs share which have workers on both sides of it."""

    name: str
    bits_per_s: int
    nodes: tuple[str, ...]
    """Of its rack."""


@dataclass(frozen=True, slots=True)
class RackPlan:
    """Which node is in which rack, and its address."""

    racks: tuple[tuple[str, ...], ...]
    """Names of nodes, by rack."""
    bits_per_s: int
    """Of each uplink, in each direction."""

    @classmethod
    def of(cls, nodes: Sequence[str], racks: int, bits_per_s: int) -> Self:
        """As many nodes in each rack, in order; the first racks have one more where that does not come out even.

        Raises:
            ValueError: there are too few nodes for so many racks, or the rate cannot be kept.
        """
        if not 2 <= racks <= min(MAX_RACKS, len(nodes)):
            raise ValueError(f"{len(nodes)} nodes make 2 to {min(MAX_RACKS, len(nodes))} racks, not {racks}")
        TokenBucket.of(bits_per_s)
        bounds = [-(-len(nodes) * number // racks) for number in range(racks + 1)]
        return cls(tuple(tuple(nodes[a:b]) for a, b in pairwise(bounds)), bits_per_s)

    @property
    def nodes(self) -> tuple[str, ...]:
        """All of them, in order."""
        return tuple(node for rack in self.racks for node in rack)

    @property
    def uplinks(self) -> tuple[Uplink, ...]:
        """Of each rack: ``rack-1-up`` and so on."""
        return tuple(Uplink(f"{_rack(n)}-up", self.bits_per_s, nodes) for n, nodes in enumerate(self.racks, 1))

    def rack_of(self, node: str) -> str:
        """The rack that a node is in: ``rack-1`` and so on."""
        return next(_rack(number) for number, nodes in enumerate(self.racks, 1) if node in nodes)

    def address(self, node: str) -> str:
        """A node's address, reached from all others."""
        return address_of(self.nodes.index(node))


@dataclass(frozen=True, slots=True)
class RackNetwork:
    """The nodes' namespaces, and that of the bridges; they live as long as it is open, or a process in them."""

    plan: RackPlan
    nodes: Mapping[str, NetworkNamespace]
    switches: NetworkNamespace
    """Of the bridges and uplinks."""

    @classmethod
    def create(cls, plan: RackPlan) -> Self:
        """Make it.

        Raises:
            NetworkUnavailableError: the kernel refuses, with the reason.
        """
        with ExitStack() as undo:

            def make() -> NetworkNamespace:
                namespace = NetworkNamespace.create()
                undo.callback(namespace.close)
                return namespace

            switches, nodes = make(), {node: make() for node in plan.nodes}
            connect(plan, switches, nodes)
            undo.pop_all()
        return cls(plan, nodes, switches)

    def path(self, node: str) -> Path:
        """Where other processes of root find a node's namespace, as long as this one lives."""
        return Path(f"/proc/{os.getpid()}/fd/{self.nodes[node].descriptor}")

    def close(self) -> None:
        """Let go of all of it."""
        for namespace in (*self.nodes.values(), self.switches):
            namespace.close()


def connect(plan: RackPlan, switches: NetworkNamespace, nodes: Mapping[str, NetworkNamespace]) -> None:
    """Bridges and uplinks in `switches`, and a device `DEVICE` with an address in each node's namespace.

    Raises:
        NetworkUnavailableError: the kernel refuses.
    """
    switches.run(lambda route: _make_switches(route, plan, nodes))
    for name, namespace in nodes.items():
        namespace.run(partial(_set_address, address=plan.address(name)))


def _make_switches(route: Any, plan: RackPlan, nodes: Mapping[str, NetworkNamespace]) -> None:
    bucket, core = TokenBucket.of(plan.bits_per_s), make_bridge(route, _CORE)
    for number, (names, uplink) in enumerate(zip(plan.racks, plan.uplinks, strict=True), 1):
        bridge = make_bridge(route, _rack(number))
        down = f"{_rack(number)}-down"
        route.link("add", ifname=uplink.name, kind="veth", peer={"ifname": down})
        for end, side in ((uplink.name, bridge), (down, core)):
            index = _plug(route, end, side)
            rate, burst, limit = bucket
            route.tc("add", kind="tbf", index=index, handle=_TBF_HANDLE, rate=rate, burst=burst, limit=limit)
        for name in names:
            peer = {"ifname": DEVICE, "net_ns_fd": nodes[name].descriptor}
            route.link("add", ifname=name, kind="veth", peer=peer)
            _plug(route, name, bridge)


def _plug(route: Any, name: str, bridge: int) -> int:
    index = int(route.link_lookup(ifname=name)[0])
    route.link("set", index=index, gso_max_segs=1, master=bridge, state="up")
    return index


def _set_address(route: Any, address: str) -> None:
    index = route.link_lookup(ifname=DEVICE)[0]
    route.addr("add", index=index, address=address, prefixlen=PREFIX_LENGTH)
    route.link("set", index=index, gso_max_segs=1, state="up")


def _rack(number: int) -> str:
    return f"rack-{number}"

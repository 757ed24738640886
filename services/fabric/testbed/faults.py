"""Faults at the switch side, as thesis 3.5.2 makes them, and the state of each port that follows from them. Pure.

Faults may be combined: what a port does follows from the whole set, so each can be restored in any order.
`Lab.inject`, `Lab.restore` and `Lab.fault` carry them out.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from enum import StrEnum

from pydantic import BaseModel, ConfigDict

from services.fabric.testbed.topology import INTER_SWITCH_LINK, CableEnd, DualTor, PortState


class FaultKind(StrEnum):
    """What breaks."""

    LINK_DOWN = "link-down"
    """The switch's port of one host goes down: the host sees the carrier vanish."""
    BLACKHOLE = "blackhole"
    """The switch's port of one host drops silently, without a carrier change."""
    SWITCH_DEAD = "switch-dead"
    """All processes of a switch are killed and all its links go down."""
    ISL_LOST = "isl-lost"
    """The link between the switches goes down."""


class Direction(StrEnum):
    """Which packets a blackhole swallows."""

    BOTH = "both"
    TO_HOST = "to-host"
    FROM_HOST = "from-host"


class Fault(BaseModel):
    """One fault. Fields that a kind does not need are ignored."""

    model_config = ConfigDict(frozen=True)

    kind: FaultKind
    host: int = 1
    """Whose link (LINK_DOWN, BLACKHOLE)."""
    switch: int = 1
    """At which switch; its number is also that of the host's uplink."""
    direction: Direction = Direction.BOTH

    @property
    def stops_sending(self) -> bool:
        """Whether what the host sends there is lost."""
        return self.kind is not FaultKind.BLACKHOLE or self.direction is not Direction.TO_HOST

    @property
    def stops_receiving(self) -> bool:
        """Whether what the host would receive from there is lost."""
        return self.kind is not FaultKind.BLACKHOLE or self.direction is not Direction.FROM_HOST

    def __str__(self) -> str:
        if self.kind is FaultKind.SWITCH_DEAD:
            return f"{self.kind} s{self.switch}"
        if self.kind is FaultKind.ISL_LOST:
            return str(self.kind)
        way = "" if self.kind is FaultKind.LINK_DOWN or self.direction is Direction.BOTH else f" {self.direction}"
        return f"{self.kind}{way} h{self.host}-s{self.switch}"


def check(fault: Fault, topology: DualTor) -> None:
    """Whether the topology has what is to break.

    Raises:
        ValueError: it has not.
    """
    topology.switch(fault.switch)
    if fault.kind in {FaultKind.LINK_DOWN, FaultKind.BLACKHOLE}:
        topology.host(fault.host)


def port_states(topology: DualTor, faults: Iterable[Fault]) -> dict[CableEnd, PortState]:
    """What each switch port does under a set of faults."""
    given = tuple(faults)
    return {
        CableEnd(switch.netns, port): _state([fault for fault in given if _affects(fault, switch.number, port)])
        for switch in topology.switches
        for port in switch.ports
    }


def changed_ports(
    topology: DualTor, before: Iterable[Fault], after: Iterable[Fault]
) -> dict[str, dict[str, tuple[PortState, PortState]]]:
    """Namespace -> port -> (state before, state after), only where they differ."""
    was, becomes = port_states(topology, before), port_states(topology, after)
    changes: dict[str, dict[str, tuple[PortState, PortState]]] = {}
    for end, state in becomes.items():
        if state != was[end]:
            changes.setdefault(end.netns, {})[end.port] = (was[end], state)
    return changes


def dead_switches(faults: Iterable[Fault]) -> frozenset[int]:
    """Switches without living processes."""
    return frozenset(fault.switch for fault in faults if fault.kind is FaultKind.SWITCH_DEAD)


def alternating(fault: Fault) -> Iterator[Fault]:
    """The same fault at both switches in turn, for ever, the given one first."""
    return itertools.cycle((fault, fault.model_copy(update={"switch": 3 - fault.switch})))


def _affects(fault: Fault, switch: int, port: str) -> bool:
    if fault.kind is FaultKind.ISL_LOST:
        return port == INTER_SWITCH_LINK and switch == fault.switch
    if fault.kind is FaultKind.SWITCH_DEAD:
        return switch == fault.switch
    return switch == fault.switch and port == f"d{fault.host}"


def _state(faults: list[Fault]) -> PortState:
    holes = [fault for fault in faults if fault.kind is FaultKind.BLACKHOLE]
    return PortState(
        up=all(fault.kind is FaultKind.BLACKHOLE for fault in faults),
        drops_from_cable=any(hole.stops_sending for hole in holes),
        drops_to_cable=any(hole.stops_receiving for hole in holes),
    )

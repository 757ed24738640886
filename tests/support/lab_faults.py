"""Faults of the fabric's testbed, by their names."""

from __future__ import annotations

from services.fabric.testbed import build, frr_daemons, state_file
from services.fabric.testbed.faults import Direction, Fault, FaultKind
from services.fabric.testbed.lab import Lab


def link_down(host: int, switch: int) -> Fault:
    """Carrier loss."""
    return Fault(kind=FaultKind.LINK_DOWN, host=host, switch=switch)


def blackhole(host: int, switch: int, direction: Direction = Direction.BOTH) -> Fault:
    """Silent loss."""
    return Fault(kind=FaultKind.BLACKHOLE, host=host, switch=switch, direction=direction)


def switch_dead(switch: int) -> Fault:
    """A whole switch is gone."""
    return Fault(kind=FaultKind.SWITCH_DEAD, host=0, switch=switch)


def isl_lost() -> Fault:
    """The switches no longer reach each other directly."""
    return Fault(kind=FaultKind.ISL_LOST, host=0, switch=1)


def restart_frr(lab: Lab, netns: str, *, at_once: bool = False) -> None:
    """Stop one router's FRR (`at_once`: kill -9) and start it again with the same configuration."""
    state = state_file.load(lab.settings.prefix)
    assert state is not None
    frr_daemons.stop([netns], at_once=at_once)
    build.start_router(lab.topology, state, netns)

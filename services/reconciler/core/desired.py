"""What should be in the kernel, from what zebra put there: a pure function of one snapshot (thesis 3.4)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from services.reconciler.core.config import ForwardingConfig
from services.reconciler.core.problems import Problem
from services.reconciler.core.state import FdbEntry, Snapshot, Tunnel


@dataclass(frozen=True, slots=True, order=True)
class Rule:
    """Packets for `mac` that enter at the port are put into the tunnel (one flower filter)."""

    ifindex: int
    mac: str
    tunnel: Tunnel


@dataclass(frozen=True, slots=True)
class Desired:
    """What should be there. Sorted, so that equal content is equal."""

    config: ForwardingConfig
    rules: tuple[Rule, ...] = ()
    tunnels: tuple[Tunnel, ...] = ()
    """One tunnel_key action each: as many as there are distinct VTEPs (I9)."""
    redirect_to: int = 0
    """Ifindex of the encapsulation device, for the one mirred action; 0: there is none to be used, so no rule either."""
    clsact: frozenset[int] = frozenset()
    static: tuple[FdbEntry, ...] = ()
    """Applications' own MACs, that must not age out: rules bypass the bridge, which then hears nothing of them."""
    elsewhere: Mapping[int, frozenset[str]] = field(default_factory=dict)
    """By port: MACs that are known to be no single VTEP's (local, or in doubt). A rule for one is wrong, not just stale."""
    problems: tuple[Problem, ...] = ()


def desired(snapshot: Snapshot, config: ForwardingConfig) -> Desired:
    """What should be in the kernel. Routes play no part: an edge fault changes nothing here (I11)."""
    raise NotImplementedError

"""What is known of each uplink, and the damper. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from services.reconciler.fastpath.values import Limits

UP: Final = "up"
DOWN: Final = frozenset({"down", "init"})
"""States of a BFD session that is not up. ``adm-down`` is none: somebody switched it off, the path may be fine."""


@dataclass(slots=True)
class FaultCount:
    """Faults of one source within the damper's window."""

    times_s: deque[float] = field(default_factory=deque)

    def add(self, now_s: float, limits: Limits) -> bool:
        """Count one; whether there are too many."""
        times = self.times_s
        times.append(now_s)
        while times[0] <= now_s - limits.damper_window_s:
            times.popleft()
        return len(times) > limits.damper_triggers


@dataclass(slots=True)
class Uplink:
    """One link to a ToR."""

    name: str
    ifindex: int = 0
    """0: there is no such link now."""
    carrier: bool | None = None
    """IFF_UP and IFF_LOWER_UP; None: not known yet."""
    bfd: str | None = None
    """State of its session; None: not known."""
    tor: str = ""
    """The ToR's router id."""
    faults: FaultCount = field(default_factory=FaultCount)

    @property
    def dead(self) -> bool:
        """Whether it is known not to carry packets, since whenever."""
        return self.carrier is False or self.bfd in DOWN

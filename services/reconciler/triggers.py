"""When to look: events that come in bursts, timers that cost little, a backoff after failures. No I/O, no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

QUIET_S: Final = 0.005
"""A burst has ended when nothing came for so long ..."""
BURST_S: Final = 0.050
"""... or is old enough."""
FIRST_BACKOFF_S: Final = 0.010
LAST_BACKOFF_S: Final = 1.0
LONGEST_WAIT_S: Final = 120.0
"""Between looks at everything, however dear they are."""
PATHS_ONLY: Final = frozenset({"route", "rule", "nexthop", "hint"})
"""tc rules do not follow from these (I11): only what says which way packets go is looked at."""


@dataclass(slots=True)
class Burst:
    """Events since the last look."""

    causes: Counter[str] = field(default_factory=Counter)
    first_s: float = 0.0
    last_s: float = 0.0

    def note(self, causes: Mapping[str, int], now_s: float) -> None:
        """Events have come."""
        if not causes:
            return
        if not self.causes:
            self.first_s = now_s
        self.causes.update(causes)
        self.last_s = now_s

    def due_s(self) -> float | None:
        """When to look; None: nothing has come."""
        return min(self.last_s + QUIET_S, self.first_s + BURST_S) if self.causes else None

    def take(self) -> Burst:
        """What has come; afterwards nothing has."""
        taken = Burst(self.causes, self.first_s, self.last_s)
        self.causes = Counter()
        return taken

    @property
    def only_paths(self) -> bool:
        """Nothing in it can change a rule."""
        return self.causes.keys() <= PATHS_ONLY


@dataclass(slots=True)
class Timers:
    """Looks without an event. Each kind is as rare as its share of a core demands."""

    timer_s: float
    idle_share: float
    look_s: float = 0.0
    """When to look at everything."""
    probe_s: float = 0.0
    """When to look at what is cheap."""
    retry_s: float | None = None
    _backoff_s: float = FIRST_BACKOFF_S

    def started(self, now_s: float) -> None:
        """The first look is due by itself."""
        self.look_s = self.probe_s = now_s + self.timer_s

    def looked(self, now_s: float, cost_s: float, *, failed: bool) -> None:
        """Everything was looked at, which has cost so much processor time; or it failed and is due again."""
        self.look_s = now_s + self._wait_s(cost_s)
        self.probe_s = max(self.probe_s, now_s + self.timer_s)
        if not failed:
            self.retry_s, self._backoff_s = None, FIRST_BACKOFF_S
            return
        # At most half of a core, also where each attempt is dear.
        self.retry_s = now_s + max(self._backoff_s, cost_s)
        self._backoff_s = min(2 * self._backoff_s, LAST_BACKOFF_S)

    def probed(self, now_s: float, cost_s: float) -> None:
        """The cheap part was looked at."""
        self.probe_s = now_s + self._wait_s(cost_s)

    def next_s(self) -> float:
        """When the first of them is due."""
        due_s = min(self.look_s, self.probe_s)
        return due_s if self.retry_s is None else min(due_s, self.retry_s)

    def _wait_s(self, cost_s: float) -> float:
        # Half of the share for each of the two kinds.
        return min(max(self.timer_s, 2 * cost_s / self.idle_share), max(self.timer_s, LONGEST_WAIT_S))

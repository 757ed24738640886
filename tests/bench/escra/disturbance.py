"""What else the machine did while a cell was measured: a cell that others disturbed is measured again."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
_BUSY: Final = (1, 2, 3, 6, 7)
"""user, nice, system, irq, softirq of the line ``cpu`` in /proc/stat (proc(5)); guests are in user."""
_STEAL: Final = 8
MOST_FOREIGN_CORES: Final = 0.2
"""Above it a cell is disturbed. On a quiet machine it is below 0.1 (17 cells: -0.1 to 0.1)."""
MOST_FOREIGN_CORES_STARTING: Final = 0.6
"""The same while containers start: those of a batch take the Docker Engine and the kernel 0.4, those that were killed
up to 0.44, with what the killed had used since their last sample."""
MOST_STEAL_SHARE: Final = 0.05
"""Of all processors: time that the hypervisor gave to other machines."""

MOST_OFF_S: Final = 0.15


@dataclass(frozen=True, slots=True)
class MachineTime:
    """Time so far, seconds, all processors together."""

    busy_s: float
    steal_s: float
    wall_s: float = 0.0
    """When it was read, on the monotonic clock."""


def machine_time(stat: str | None = None) -> MachineTime:
    """From /proc/stat, in steps of 10 ms."""
    text = Path("/proc/stat").read_text(encoding="ascii") if stat is None else stat
    fields = text.partition("\n")[0].split()
    busy = sum(int(fields[index]) for index in _BUSY)
    return MachineTime(busy / _TICKS_PER_S, int(fields[_STEAL]) / _TICKS_PER_S, time.monotonic())


@dataclass(frozen=True, slots=True)
class Disturbance:
    """Of one measured window."""

    foreign_cores: float
    """Used by none of the application, its controller, the client and the runner; interrupts included."""
    steal_share: float
    off_s: float = 0.0
    """By how much the runner missed the window's begin and end: it did not get the processor either."""

    @classmethod
    def between(cls, before: MachineTime, after: MachineTime, ours_s: float, seconds: float) -> Disturbance:
        """What was not ours.

        Args:
            before: when the window began.
            after: when it ended.
            ours_s: CPU time of everything that belongs to the measurement.
            seconds: of the window.
        """
        foreign_s = after.busy_s - before.busy_s - ours_s
        stolen_s = (after.steal_s - before.steal_s) / (os.cpu_count() or 1)
        return cls(foreign_s / seconds, stolen_s / seconds, abs(after.wall_s - before.wall_s - seconds))

    @property
    def disturbed(self) -> bool:
        """Whether the figures say more about others than about us."""
        return self.exceeds(MOST_FOREIGN_CORES)

    def exceeds(self, foreign_cores: float) -> bool:
        """As `disturbed`, with so much allowed to others."""
        return self.foreign_cores > foreign_cores or self.steal_share > MOST_STEAL_SHARE or self.off_s > MOST_OFF_S

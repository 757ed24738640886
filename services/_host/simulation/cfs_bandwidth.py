"""The kernel's CFS bandwidth control and memory limit as arithmetic, for the simulated host.

Source: kernel/sched/fair.c (do_sched_cfs_period_timer, start_cfs_bandwidth) and tg_set_cfs_bandwidth in
kernel/sched/core.c, Linux 6.x.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

from schemas.apps import PERIOD_US
from services._host.simulation.load_schedule import Schedule

UNLIMITED: Final = -1
STEP_US: Final = 1_000
RESTART_US: Final = 1_000_000
"""How long a container that was killed for memory stays away before its init is back."""
_DEMAND_US: Final = 10_000
"""Demand is looked up once for this long, like the load worker's slices."""
_BASE_BYTES: Final = 8 << 20
"""What an interpreter holds beside its load."""


@dataclass(slots=True)
class SimulatedContainer:
    """One container. Times are microseconds of simulated time."""

    schedule: Schedule
    threads: int
    next_boundary_us: int
    """Its own phase: each group's period timer keeps a grid of its own."""
    quota_us: int = UNLIMITED
    limit_bytes: int = UNLIMITED
    nr_periods: int = 0
    nr_throttled: int = 0
    throttled_us: int = 0
    usage_us: float = 0.0
    memory_bytes: int = 0
    oom_kills: int = 0
    throttled: bool = False
    active: bool = False
    """Whether the period timer runs."""
    idle: bool = True
    """Whether nothing has run since the last refill."""
    runtime_us: float = 0.0
    """Left in this period."""
    dead_until_us: int = 0
    _demand: float = field(default=0.0, init=False)
    _demand_until_us: int = field(default=0, init=False)

    def wanted_us(self, now_us: int) -> float:
        """CPU time wanted in the step that begins now; its memory follows, and may get it killed."""
        if now_us >= self._demand_until_us:
            self._demand_until_us = now_us + _DEMAND_US
            self._demand = self._follow_load(now_us)
        return self._demand * STEP_US

    def _follow_load(self, now_us: int) -> float:
        if now_us < self.dead_until_us:
            return 0.0
        time_s = now_us / 1e6
        self.memory_bytes = _BASE_BYTES + self.schedule.memory_bytes(time_s)
        if self.limit_bytes != UNLIMITED and self.memory_bytes > self.limit_bytes:
            self.oom_kills += 1
            self.memory_bytes = 0
            self.dead_until_us = now_us + RESTART_US
            return 0.0
        return self.schedule.demand_cores(time_s)

    def end_periods(self, now_us: int) -> None:
        """Fire the period timer as often as it is due.

        nr_periods counts every firing, nr_throttled those at which the group was throttled. After a period in which
        nothing ran the timer stops, so the counters of an idle group stand still.
        """
        while self.next_boundary_us <= now_us:
            if not self.active:  # only the grid goes on
                self.next_boundary_us += (now_us - self.next_boundary_us) // PERIOD_US * PERIOD_US + PERIOD_US
                return
            self.next_boundary_us += PERIOD_US
            self.nr_periods += 1
            if self.idle and not self.throttled:
                self.active = False
                continue
            self.runtime_us = self.quota_us
            if self.throttled:
                self.nr_throttled += 1
                self.throttled = False
            else:
                self.idle = True

    def run(self, wanted_us: float) -> None:
        """Use CPU time for one step, as far as the runtime reaches."""
        if self.quota_us == UNLIMITED:
            self.usage_us += wanted_us
            return
        if wanted_us <= 0 and not self.throttled:
            return
        self.active = True
        self.idle = False
        used_us = min(wanted_us, self.runtime_us)
        self.usage_us += used_us
        self.runtime_us -= used_us
        if used_us < wanted_us or self.throttled:
            # Each CPU's queue of the group counts its own time
            queues = max(1, min(self.threads, math.ceil(self._demand)))
            self.throttled_us += int(STEP_US * (1 - used_us / wanted_us) if wanted_us > 0 else STEP_US) * queues
            self.throttled = True

    def set_quota(self, quota_us: int) -> None:
        """As the kernel: every write refills, ends throttling and starts the timer, also one of the same value."""
        self.quota_us = quota_us
        self.throttled = False
        if quota_us != UNLIMITED:
            self.runtime_us = quota_us
            self.active = True

"""Which containers have used up their quota, between two samples: from the kernel's table, or from their usage."""

from __future__ import annotations

from typing import Final

import numpy as np

from services.agent.containers import Containers
from services.agent.ports import Host
from services.agent.sampling.counters import BoolArray, IntArray
from services.agent.sampling.quota_use import VANISHED, Budget, sudden, used_up
from services.agent.sampling.throttling import Look
from services.agent.sampling.usage import PeriodSample

CHEAP_READS: Final = 256
"""Usage of so many containers is read between two samples also while none was throttled lately: at 2 to 5 us, four
times a period, that is 2 to 5 per cent of a processor. With more, only for a while after one was throttled."""
_NR_PERIODS, _USAGE_US = 0, 3
"""Columns of `services.agent.ports.Counters`."""


class QuotaWatch:
    """Keeps, in the columns of `Rows`, what each container's usage is compared with."""

    def __init__(self, host: Host, containers: Containers) -> None:
        self._host = host
        self._containers = containers
        self._usage_us: IntArray = np.zeros(0, dtype=np.int64)

    @property
    def is_cheap(self) -> bool:
        """Whether looking by usage costs little enough to be done all the time."""
        rows = self._containers.rows
        return self._host.shows_usage and 0 < int(np.count_nonzero(rows.sudden)) <= CHEAP_READS

    def look(self) -> Look | None:
        """Between two samples, of the containers sampled last. None: nothing shows it."""
        order, rows = self._containers.order, self._containers.rows
        if rows.keys is not order.keys:
            return None
        seen = self._host.look(order.handles)
        if seen is not None or not self._host.shows_usage:
            return seen
        usage_us = np.full(len(order.handles), VANISHED, dtype=np.int64)
        for row in np.flatnonzero(rows.sudden).tolist():
            read_us = order.handles[row].read_usage()
            usage_us[row] = VANISHED if read_us is None else read_us
        quota_us = np.array([limits.quota_us for limits in order.limits], dtype=np.int64)
        spent = self._used_up(usage_us, quota_us)
        nr_periods = rows.counters[:, _NR_PERIODS].copy()
        for row in np.flatnonzero(spent).tolist():
            ended = order.handles[row].read_periods()
            spent[row] = ended is not None
            nr_periods[row] = ended or 0
        return Look(spent, nr_periods, quota_us)

    def at_sample(self, counters: IntArray, quota_us: IntArray) -> Look | None:
        """The same at the moment of a sample, from its counters, shape (N, 5)."""
        if not self._host.shows_usage:
            return None
        watched = self._containers.rows.sudden
        spent = self._used_up(np.where(watched, counters[:, _USAGE_US], VANISHED), quota_us)
        return Look(spent, counters[:, _NR_PERIODS], quota_us)

    def reported(self, new: BoolArray) -> None:
        """The throttling of these was published: a raise follows, which refills their bandwidth."""
        rows = self._containers.rows
        if len(self._usage_us) == len(new):
            rows.budget_usage_us = np.where(new & (self._usage_us >= 0), self._usage_us, rows.budget_usage_us)
        rows.throttled_ns = np.where(new, rows.read_ns, rows.throttled_ns)

    def sampled(self, counters: IntArray, quota_us: IntArray, sample: PeriodSample, now_ns: int) -> None:
        """Begin the next interval: usage is compared with this sample's from now on."""
        if not self._host.shows_usage:
            return
        rows = self._containers.rows
        rows.budget_usage_us, rows.budget_quota_us = counters[:, _USAGE_US].copy(), quota_us.copy()
        rows.throttled_ns = np.where(sample.throttled > 0, now_ns, rows.throttled_ns)
        rows.sudden = sudden(sample.used_us, quota_us, rows.throttled_ns, now_ns) & (sample.periods > 0)

    def _used_up(self, usage_us: IntArray, quota_us: IntArray) -> BoolArray:
        rows = self._containers.rows
        budget = Budget(rows.budget_usage_us, rows.budget_quota_us).where_lowered(usage_us, quota_us)
        rows.budget_usage_us, rows.budget_quota_us = budget.usage_us, budget.quota_us
        self._usage_us = usage_us
        return used_up(usage_us, quota_us, budget)

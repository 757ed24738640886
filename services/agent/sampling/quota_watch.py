"""Which containers have used up their quota, between two samples: from the kernel's table, or from their usage."""

from __future__ import annotations

from typing import Final

import numpy as np

from services._host.cgroup_snapshot import BoolArray, IntArray, ThrottleSnapshot
from services.agent.containers import ContainerSet
from services.agent.ports import Host
from services.agent.sampling.quota_use import VANISHED, Budget, may_burst, used_up
from services.agent.sampling.usage import PeriodSample

CHEAP_READS: Final = 256
"""Usage of so many containers is polled between two samples also while none was throttled lately: at 2 to 5 us, four
times a period, that is 2 to 5 per cent of a processor. With more, only for a while after one was throttled."""
_NR_PERIODS, _USAGE_US = 0, 3
"""Columns of `services.agent.ports.Counters`."""


class QuotaWatch:
    """Keeps, in the columns of `SampleState`, what each container's usage is compared with."""

    def __init__(self, host: Host, containers: ContainerSet) -> None:
        self._host = host
        self._containers = containers
        self._usage_us: IntArray = np.zeros(0, dtype=np.int64)

    @property
    def is_cheap(self) -> bool:
        """Whether polling usage costs little enough to be done all the time."""
        samples = self._containers.samples
        return self._host.shows_usage and 0 < int(np.count_nonzero(samples.may_burst)) <= CHEAP_READS

    def poll(self) -> ThrottleSnapshot | None:
        """Between two samples, of the containers sampled last. None: nothing shows it."""
        order, samples = self._containers.order, self._containers.samples
        if samples.keys is not order.keys:
            return None
        snapshot = self._host.throttle_snapshot(order.handles)
        if snapshot is not None or not self._host.shows_usage:
            return snapshot
        usage_us = np.full(len(order.handles), VANISHED, dtype=np.int64)
        for row in np.flatnonzero(samples.may_burst).tolist():
            read_us = order.handles[row].read_usage()
            usage_us[row] = VANISHED if read_us is None else read_us
        quota_us = np.array([limits.quota_us for limits in order.limits], dtype=np.int64)
        spent = self._used_up(usage_us, quota_us)
        nr_periods = samples.counters[:, _NR_PERIODS].copy()
        for row in np.flatnonzero(spent).tolist():
            ended = order.handles[row].read_periods()
            spent[row] = ended is not None
            nr_periods[row] = ended or 0
        return ThrottleSnapshot(spent, nr_periods, quota_us)

    def at_sample(self, counters: IntArray, quota_us: IntArray) -> ThrottleSnapshot | None:
        """The same at the moment of a sample, from its counters, shape (N, 5)."""
        if not self._host.shows_usage:
            return None
        watched = self._containers.samples.may_burst
        spent = self._used_up(np.where(watched, counters[:, _USAGE_US], VANISHED), quota_us)
        return ThrottleSnapshot(spent, counters[:, _NR_PERIODS], quota_us)

    def reported(self, new: BoolArray) -> None:
        """The throttling of these was published: a raise follows, which refills their bandwidth."""
        samples = self._containers.samples
        if len(self._usage_us) == len(new):
            samples.budget_usage_us = np.where(new & (self._usage_us >= 0), self._usage_us, samples.budget_usage_us)
        samples.throttled_ns = np.where(new, samples.read_ns, samples.throttled_ns)

    def sampled(self, counters: IntArray, quota_us: IntArray, sample: PeriodSample, now_ns: int) -> None:
        """Begin the next interval: usage is compared with this sample's from now on."""
        if not self._host.shows_usage:
            return
        samples = self._containers.samples
        samples.budget_usage_us, samples.budget_quota_us = counters[:, _USAGE_US].copy(), quota_us.copy()
        samples.throttled_ns = np.where(sample.throttled > 0, now_ns, samples.throttled_ns)
        samples.may_burst = may_burst(sample.used_us, quota_us, samples.throttled_ns, now_ns) & (sample.periods > 0)

    def _used_up(self, usage_us: IntArray, quota_us: IntArray) -> BoolArray:
        samples = self._containers.samples
        budget = Budget(samples.budget_usage_us, samples.budget_quota_us).where_lowered(usage_us, quota_us)
        samples.budget_usage_us, samples.budget_quota_us = budget.usage_us, budget.quota_us
        self._usage_us = usage_us
        return used_up(usage_us, quota_us, budget)

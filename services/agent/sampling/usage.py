"""From cumulative counters to what was used per period, and which containers are throttled now.

All but `QuotaWatch`, which reads usage between two samples, are functions of values.

Vectorised over all containers of the node.

Usage per period: the kernel counts a period only while a cgroup runs (measured: +2 in an idle second), a sample never
falls exactly on a boundary, and without a quota nothing is counted. So usage is scaled by the time that really passed;
only where the container was throttled, its bursts belong to counted periods and the larger of both divisors holds: two
periods may end 110 ms apart around one late sample, and none in 99 ms.

Throttled periods in progress: the kernel counts a throttled period when it ends, and the next sample is on average half
a period after that. Where the table of control groups shows that a group is throttled *now*, its period is reported at
once, as one in which all of the quota was used, and not again when the kernel counts it. A raise then reaches waiting
tasks, instead of the period after the next one: every quota write refills the pool and lets them go
(kernel/sched/core.c, ``tg_set_cfs_bandwidth``).

Quotas used up, from usage alone, for hosts that offer nothing but files: ``nr_throttled`` of cpu.stat rises when a
throttled period ends, and ``throttled_time`` when its tasks run again (Documentation/scheduler/sched-bwc.rst), so files
do not show that a container is throttled now. Its usage does: one that has used a whole quota within less than a period
is throttled, or about to be. Two bursts around a boundary of the period can add up to a quota as well, without any
throttling. So only those are watched whose demand has changed:

    sudden    = used at most LOW_USE_SHARE of the quota in the last sampled period, or was throttled within RECENT_NS
    spent_us  = usage now - usage at the last sample, or at the last report: a raise refills the bandwidth
    used up   = sudden and spent_us >= quota - min(SLACK_SHARE * quota, SLICE_US)

A container that works steadily near its limit is left to the kernel's own count.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Final

import numpy as np

from schemas.apps import PERIOD_US
from schemas.cfs import SampleFlag
from services._host.cgroup_snapshot import (
    COUNTER_COLUMNS,
    MEMORY_COLUMN,
    BoolArray,
    ExactPeriods,
    IntArray,
    ThrottleSnapshot,
)
from services.agent.containers import NOTHING_REPORTED, ContainerSet
from services.agent.ports import Host

_NR_PERIODS, _NR_THROTTLED, _THROTTLED_US, _USAGE_US, _ = range(COUNTER_COLUMNS)


@dataclass(frozen=True, slots=True)
class PeriodSample:
    """Columns over containers, each of shape (N,), as `schemas.cfs.CfsBatch` names them."""

    periods: IntArray
    used_us: IntArray
    unused_us: IntArray
    throttled: IntArray
    throttled_us: IntArray
    memory_usage_bytes: IntArray
    flags: IntArray

    def columns(self) -> dict[str, IntArray]:
        """All of them by name."""
        return {column.name: getattr(self, column.name) for column in fields(self)}


def per_period(before: IntArray, after: IntArray, elapsed_us: IntArray, quota_us: IntArray) -> PeriodSample:
    """What happened per period between two readings.

    Args:
        before: counters of the previous reading, shape (N, 5).
        after: counters now, shape (N, 5).
        elapsed_us: time between them, shape (N,); 0 marks a container read for the first time.
        quota_us: quota in force, shape (N,); negative: unlimited.

    Returns:
        Columns of shape (N,). ``periods`` is 0 where this is the first reading.
    """
    delta = np.maximum(after - before, 0)  # a counter that went back belongs to a recreated cgroup
    first = elapsed_us <= 0
    counted = delta[:, _NR_PERIODS]
    wall_periods = np.where(first, 1.0, elapsed_us / PERIOD_US)
    throttled = np.where(first, 0, delta[:, _NR_THROTTLED])
    divisor = np.where(throttled > 0, np.maximum(counted, wall_periods), wall_periods)
    used_us = np.where(first, 0, np.rint(delta[:, _USAGE_US] / divisor)).astype(np.int64)
    throttled_us = np.where(first, 0, np.rint(delta[:, _THROTTLED_US] / divisor)).astype(np.int64)
    limited = quota_us >= 0
    whole_periods = np.maximum(np.where(counted > 0, counted, np.rint(wall_periods)), 1).astype(np.int64)
    idle = ~first & (counted == 0) & (delta[:, _USAGE_US] == 0)
    return PeriodSample(
        periods=np.where(first, 0, whole_periods),
        used_us=used_us,
        unused_us=np.where(limited & ~first, np.maximum(quota_us - used_us, 0), 0),
        throttled=throttled,
        throttled_us=throttled_us,
        memory_usage_bytes=after[:, MEMORY_COLUMN],
        flags=idle * int(SampleFlag.IDLE) + (~limited & ~first) * int(SampleFlag.WALL_CLOCK),
    )


def with_exact_periods(sample: PeriodSample, exact: ExactPeriods, rows: BoolArray) -> PeriodSample:
    """The kernel's own account of the periods that ended, in place of an estimate from two readings.

    Args:
        sample: from two readings, shape (N,).
        exact: from the kernel, shape (N,).
        rows: where its periods are of `PERIOD_US`, shape (N,).
    """
    recorded = rows & (exact.periods > 0) & (sample.periods > 0)
    return PeriodSample(
        periods=np.where(recorded, exact.periods, sample.periods),
        used_us=np.where(recorded, exact.used_us, sample.used_us),
        unused_us=np.where(recorded, exact.unused_us, sample.unused_us),
        throttled=np.where(recorded, exact.throttled, sample.throttled),
        throttled_us=np.where(recorded, exact.throttled_us, sample.throttled_us),
        memory_usage_bytes=sample.memory_usage_bytes,
        flags=np.where(recorded, 0, sample.flags),
    )


LOW_USE_SHARE: Final = 0.5
RECENT_NS: Final = 300_000_000
"""Three periods: a container that grows is raised in several steps."""
SLACK_SHARE: Final = 0.1
SLICE_US: Final = 5_000
"""``sched_cfs_bandwidth_slice_us``: what another CPU may still hold of the quota when the group is throttled."""
VANISHED: Final = -1
"""In a column of usage: not read, or the container is gone."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What each container's usage is compared with, shape (N,) each."""

    usage_us: IntArray
    """Cumulative usage when the budget began."""
    quota_us: IntArray
    """Quota then; negative: none."""

    def where_lowered(self, usage_us: IntArray, quota_us: IntArray) -> Budget:
        """Begins anew where the quota was lowered: what was used before belongs to the larger one."""
        lowered = ((quota_us < self.quota_us) | (self.quota_us < 0)) & (usage_us >= 0)
        return Budget(np.where(lowered, usage_us, self.usage_us), np.where(lowered, quota_us, self.quota_us))


def may_burst(used_us: IntArray, quota_us: IntArray, throttled_ns: IntArray, now_ns: int) -> BoolArray:
    """Containers whose demand may change between two samples, shape (N,).

    Args:
        used_us: in the last sampled period, shape (N,).
        quota_us: in force, shape (N,); negative: none.
        throttled_ns: when each was throttled last, monotonic, shape (N,).
        now_ns: monotonic.
    """
    recent = now_ns - throttled_ns < RECENT_NS
    watched: BoolArray = (quota_us >= 0) & ((used_us <= LOW_USE_SHARE * quota_us) | recent)
    return watched


def used_up(usage_us: IntArray, quota_us: IntArray, budget: Budget) -> BoolArray:
    """Containers that have used their quota since the budget began, shape (N,); False where usage is `VANISHED`."""
    slack_us = np.minimum(SLACK_SHARE * quota_us, SLICE_US)
    spent: BoolArray = (quota_us >= 0) & (usage_us >= 0) & (usage_us - budget.usage_us >= quota_us - slack_us)
    return spent


CHEAP_READS: Final = 256
"""Usage of so many containers is polled between two samples also while none was throttled lately: at 2 to 5 us, four
times a period, that is 2 to 5 per cent of a processor. With more, only for a while after one was throttled."""


class QuotaWatch:
    """Which containers have used up their quota between two samples, from the kernel's table or from their usage.

    What each container's usage is compared with is kept in the columns of `SampleState`.
    """

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


_REPORTED_PERIOD, _REPORTED_QUOTA, _REPORTED_BEFORE = range(3)


def in_progress(snapshot: ThrottleSnapshot, reported: IntArray) -> BoolArray:
    """Which containers are throttled in a period that has not been reported, shape (N,).

    Args:
        snapshot: what the kernel shows.
        reported: shape (N, 3): the period reported last, by `ThrottleSnapshot.nr_periods`; its quota (a new one has
            refilled the pool: a group that has used that up too is throttled anew); periods reported before that, and
            counted since the last sample.
    """
    same = (reported[:, _REPORTED_PERIOD] == snapshot.nr_periods) & (reported[:, _REPORTED_QUOTA] == snapshot.quota_us)
    new: BoolArray = snapshot.throttled & (snapshot.quota_us >= 0) & ~same
    return new


def mark_reported(snapshot: ThrottleSnapshot, new: BoolArray, reported: IntArray) -> IntArray:
    """``reported`` after the periods of ``new`` were reported."""
    now = np.column_stack(
        (snapshot.nr_periods, snapshot.quota_us, reported[:, _REPORTED_BEFORE] + _has_been_counted(snapshot, reported))
    )
    return np.where(new[:, None], now, reported)


def with_in_progress(
    sample: PeriodSample, snapshot: ThrottleSnapshot, reported: IntArray
) -> tuple[PeriodSample, IntArray]:
    """A sample with the throttled periods in progress, and without those reported before; the new ``reported``.

    A period during which the quota was written is counted only if the group was throttled once more: then it is
    reported again, with the new quota.
    """
    again = np.minimum(reported[:, _REPORTED_BEFORE] + _has_been_counted(snapshot, reported), sample.throttled)
    new = in_progress(snapshot, reported) & (sample.periods > 0)  # a first reading has no CPU usage
    used_us = np.where(new, np.maximum(sample.used_us, snapshot.quota_us), sample.used_us)
    unused_us = np.where(new, 0, sample.unused_us)
    after = replace(sample, throttled=sample.throttled - again + new, used_us=used_us, unused_us=unused_us)
    left = np.where((snapshot.nr_periods > reported[:, _REPORTED_PERIOD])[:, None], NOTHING_REPORTED, reported)
    left[:, _REPORTED_BEFORE] = 0
    return after, mark_reported(snapshot, new, left)


def _has_been_counted(snapshot: ThrottleSnapshot, reported: IntArray) -> BoolArray:
    """Whether the period reported last has ended, throttled as it was reported."""
    period = reported[:, _REPORTED_PERIOD]
    counted: BoolArray = (
        (period != NOTHING_REPORTED)
        & (snapshot.nr_periods > period)
        & (reported[:, _REPORTED_QUOTA] == snapshot.quota_us)
    )
    return counted

"""Throttled periods, reported while they are in progress.

The kernel counts a throttled period when it ends, and the next sample is on average half a period after that. Where
the table of control groups shows that a group is throttled *now*, its period is reported at once, as one in which all
of the quota was used, and not again when the kernel counts it. A raise then reaches waiting tasks, instead of
the period after the next one: every quota write refills the pool and lets them go (kernel/sched/core.c,
``tg_set_cfs_bandwidth``).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from services._host.cgroup_snapshot import BoolArray, IntArray, ThrottleSnapshot
from services.agent.containers import NOTHING_REPORTED
from services.agent.sampling.usage import PeriodSample

_PERIOD, _QUOTA, _COUNTED = range(3)


def in_progress(snapshot: ThrottleSnapshot, reported: IntArray) -> BoolArray:
    """Which containers are throttled in a period that has not been reported, shape (N,).

    Args:
        snapshot: what the kernel shows.
        reported: shape (N, 3): the period reported last, by `ThrottleSnapshot.nr_periods`; its quota (a new one has
            refilled the pool: a group that has used that up too is throttled anew); periods reported before that, and
            counted since the last sample.
    """
    same = (reported[:, _PERIOD] == snapshot.nr_periods) & (reported[:, _QUOTA] == snapshot.quota_us)
    new: BoolArray = snapshot.throttled & (snapshot.quota_us >= 0) & ~same
    return new


def mark_reported(snapshot: ThrottleSnapshot, new: BoolArray, reported: IntArray) -> IntArray:
    """``reported`` after the periods of ``new`` were reported."""
    now = np.column_stack(
        (snapshot.nr_periods, snapshot.quota_us, reported[:, _COUNTED] + _has_been_counted(snapshot, reported))
    )
    return np.where(new[:, None], now, reported)


def with_in_progress(
    sample: PeriodSample, snapshot: ThrottleSnapshot, reported: IntArray
) -> tuple[PeriodSample, IntArray]:
    """A sample with the throttled periods in progress, and without those reported before; the new ``reported``.

    A period during which the quota was written is counted only if the group was throttled once more: then it is
    reported again, with the new quota.
    """
    again = np.minimum(reported[:, _COUNTED] + _has_been_counted(snapshot, reported), sample.throttled)
    new = in_progress(snapshot, reported) & (sample.periods > 0)  # a first reading has no CPU usage
    used_us = np.where(new, np.maximum(sample.used_us, snapshot.quota_us), sample.used_us)
    unused_us = np.where(new, 0, sample.unused_us)
    after = replace(sample, throttled=sample.throttled - again + new, used_us=used_us, unused_us=unused_us)
    left = np.where((snapshot.nr_periods > reported[:, _PERIOD])[:, None], NOTHING_REPORTED, reported)
    left[:, _COUNTED] = 0
    return after, mark_reported(snapshot, new, left)


def _has_been_counted(snapshot: ThrottleSnapshot, reported: IntArray) -> BoolArray:
    """Whether the period reported last has ended, throttled as it was reported."""
    period = reported[:, _PERIOD]
    counted: BoolArray = (
        (period != NOTHING_REPORTED) & (snapshot.nr_periods > period) & (reported[:, _QUOTA] == snapshot.quota_us)
    )
    return counted

"""Throttled periods, told while they still run.

The kernel counts a throttled period when it ends, and the next sample is on average half a period after that. Where
the table of control groups shows that a group is throttled *now*, its period is told at once, as one in which all of
the quota was used, and is not told again when the kernel counts it. A raise then reaches tasks that wait, instead of
the period after the next one: every quota write refills the pool and lets them go (kernel/sched/core.c,
``tg_set_cfs_bandwidth``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from services.agent.sampling.counters import BoolArray, IntArray
from services.agent.sampling.usage import PeriodSample

NOTHING_TOLD = -1
_PERIOD, _QUOTA, _COUNTED = range(3)


@dataclass(frozen=True, slots=True)
class Look:
    """Of each container at one moment, shape (N,) each."""

    throttled: BoolArray
    """A CPU of it waits for the period to end."""
    nr_periods: IntArray
    """Periods that have ended: names the one under way."""
    quota_us: IntArray
    """In force; -1: none."""


def unfinished(look: Look, told: IntArray) -> BoolArray:
    """Which containers are throttled in a period of which that has not been told, shape (N,).

    Args:
        look: what the kernel shows.
        told: shape (N, 3): the period told of last, by `Look.nr_periods`; its quota (a new one has refilled the pool:
            who has used that up as well is throttled anew); periods told before that, which the kernel has counted
            since the last sample.
    """
    same = (told[:, _PERIOD] == look.nr_periods) & (told[:, _QUOTA] == look.quota_us)
    new: BoolArray = look.throttled & (look.quota_us >= 0) & ~same
    return new


def remember(look: Look, new: BoolArray, told: IntArray) -> IntArray:
    """``told`` after the periods of ``new`` were told."""
    now = np.column_stack((look.nr_periods, look.quota_us, told[:, _COUNTED] + _has_been_counted(look, told)))
    return np.where(new[:, None], now, told)


def with_unfinished(sample: PeriodSample, look: Look, told: IntArray) -> tuple[PeriodSample, IntArray]:
    """A sample with the throttled periods that still run, and without those that were told before; the new ``told``.

    A period during which the quota was written is counted only if the group was throttled once more: then it is told
    again, with the new quota.
    """
    again = np.minimum(told[:, _COUNTED] + _has_been_counted(look, told), sample.throttled)
    new = unfinished(look, told) & (sample.periods > 0)  # a first reading tells nothing of CPU
    used_us = np.where(new, np.maximum(sample.used_us, look.quota_us), sample.used_us)
    unused_us = np.where(new, 0, sample.unused_us)
    after = replace(sample, throttled=sample.throttled - again + new, used_us=used_us, unused_us=unused_us)
    left = np.where((look.nr_periods > told[:, _PERIOD])[:, None], NOTHING_TOLD, told)
    left[:, _COUNTED] = 0
    return after, remember(look, new, left)


def _has_been_counted(look: Look, told: IntArray) -> BoolArray:
    """Whether the period told of last has ended, throttled as it was told."""
    period = told[:, _PERIOD]
    counted: BoolArray = (period != NOTHING_TOLD) & (look.nr_periods > period) & (told[:, _QUOTA] == look.quota_us)
    return counted

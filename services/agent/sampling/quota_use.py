"""Which containers have used up their quota, from usage counters alone: for hosts that offer nothing but files.

``nr_throttled`` of cpu.stat rises when a throttled period ends, and ``throttled_time`` when its tasks run again
(Documentation/scheduler/sched-bwc.rst), so files do not show that a container is throttled now. Its usage does: one
that has used a whole quota within less than a period is throttled, or about to be. Two bursts around a boundary of the
period can add up to a quota as well, without any throttling. So only those are watched whose demand has changed:

    sudden    = used at most SUDDEN_SHARE of the quota in the last sampled period, or was throttled within RECENT_NS
    spent_us  = usage now - usage at the last sample, or at the last report: a raise refills the bandwidth
    used up   = sudden and spent_us >= quota - min(SLACK_SHARE * quota, SLICE_US)

A container that works steadily near its limit is left to the kernel's own count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from services._host.cgroup_snapshot import BoolArray, IntArray

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

"""What a CPU policy sees and what it answers: structures of arrays over all containers of all applications.

Units are integer microseconds per period (100,000 us) unless a name says otherwise. N is the number of containers
(rows), A the number of applications; `app` maps a row to its application.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from schemas.reasons import Reason
from services.allocator.columns import AppIndex, Bools, Floats, Ints


@dataclass(frozen=True, slots=True)
class CpuParameters:
    """The thesis' parameters per application, shape A (2.4.4.1; design 4.1)."""

    kappa: Floats
    """Share of the mean unused runtime that is taken per period, 0 < kappa <= 1."""
    gamma_us: Ints
    """Unused runtime that is left alone."""
    upsilon_share: Floats
    """Share (0..1, that is percent / 100) of the pool given per period and throttled share."""
    window: Ints
    """Periods in the sliding windows, 1..64."""


@dataclass(frozen=True, slots=True)
class CpuView:
    """One step's CPU observations and holdings."""

    app: AppIndex
    fresh: Bools
    """The row has a new sample in this step: at least one period elapsed, or idleness was synthesised."""
    used_us: Ints
    """Per period; this and the next three are valid where `fresh`."""
    unused_us: Ints
    """Per period, of the quota that was in force."""
    throttled_us: Ints
    """Per period, summed over CPUs: overestimates the missing runtime (measured/policy.md section 2.4)."""
    throttled: Bools
    quota_us: Ints
    """In the kernel now; equal to the cap where it is unlimited."""
    ordered_us: Ints
    """Last ordered: what the kernel will hold when everything has arrived."""
    min_us: Ints
    cap_us: Ints
    """The container's maximum or the host's CPUs, whichever is less. At most 2**25 (335 cores) with 50,000
    containers in one application: products of quotas and sums stay below 2**63."""
    node_idle_percent: Ints
    """Idle share of the time of all processors of the row's node; -1: not known."""
    limit_us: Ints
    """Per application, shape A."""
    params: CpuParameters


@dataclass(frozen=True, slots=True)
class CpuTargets:
    """Quotas that the policy wants, with reasons, shape N. Where nothing changes the target is `ordered_us`."""

    target_us: Ints
    reason: NDArray[np.uint8]
    """`schemas.reasons.Reason`; NONE exactly where the target equals `ordered_us`."""
    measured: Floats
    threshold: Floats

    def give(self, rows: Bools, reason: Reason, measured: Ints | Floats, threshold: Ints) -> None:
        """Set the reason of the flagged rows, in place; all arguments of shape N."""
        i = np.flatnonzero(rows)
        self.reason[i], self.measured[i], self.threshold[i] = reason, measured[i], threshold[i]


def unchanged(target_us: Ints) -> CpuTargets:
    """Targets to which no reason has been given yet."""
    count = len(target_us)
    return CpuTargets(target_us, np.zeros(count, np.uint8), np.zeros(count), np.zeros(count))

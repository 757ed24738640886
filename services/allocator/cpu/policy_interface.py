"""What a CPU policy sees and answers: its view of one step, its targets with reasons, and its estimates.

Structures of arrays over all containers of all applications. Units are integer microseconds per period (100,000 us)
unless a name says otherwise. N is the number of containers (rows), A the number of applications; `app` maps a row to
its application. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from services.allocator.arrays.array_types import AppIndex, Bools, Floats, Ints
from services.allocator.arrays.reasons import Reasons
from services.allocator.arrays.slot_arrays import SlotArrays


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
    """The least of the container's maximum, the host's CPUs, what its node's CPU budget leaves, and what the kernel
    accepts; but never below what it refuses to go below, which is a `min_us`. At most 2**25 (335
    cores) with 50,000 containers in one application: products of quotas and sums stay below 2**63."""
    node_idle_percent: Ints
    """Idle share of the time of all processors of the row's node; -1: not known, or the node is short of CPU budget."""
    limit_us: Ints
    """Per application, shape A."""
    params: CpuParameters


@dataclass(frozen=True, slots=True)
class CpuTargets(Reasons):
    """Quotas that the policy wants, with reasons, shape N; a reason exactly where the target is not `ordered_us`."""

    target_us: Ints


class CpuStep(Protocol):
    """A policy's function."""

    def __call__(self, state: Any, view: CpuView) -> tuple[CpuTargets, Any]:
        """From what the slots of a view's rows hold, and the view: targets, and what the slots hold afterwards."""


@dataclass(frozen=True, slots=True)
class CpuPolicy:
    """A policy with its estimates per container."""

    state: SlotArrays
    step: CpuStep

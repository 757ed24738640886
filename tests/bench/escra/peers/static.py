"""Static limits: a factor times the profiled maximum, chosen once (thesis 2.6.2: 0.75, 1.0 and 1.5).

CPU: the largest use over one second, as monitoring shows it; memory: the largest usage. A container that the profile
does not know keeps what it was given when it joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from services.allocator.arrays.array_types import Floats, Ints
from services.allocator.arrays.slot_arrays import SlotArrays
from services.allocator.cpu.policy_interface import CpuTargets, CpuView
from services.allocator.memory.policy import MemoryTargets
from tests.bench.escra.peers.fitting import MemorySample, fit_cpu, fit_memory
from tests.bench.escra.profile import ContainerProfile


@dataclass(frozen=True, slots=True)
class Static:
    """Constants."""

    factor: float


class StaticState(SlotArrays):
    """Per slot: both limits, before they are fitted; 0: none."""

    _columns: ClassVar[dict[str, tuple[type[np.generic], int]]] = {
        "quota_us": (np.float64, 0),
        "limit_bytes": (np.float64, 0),
    }
    quota_us: Floats
    limit_bytes: Floats


def start(state: StaticState, slots: Ints, profiles: Sequence[ContainerProfile], setting: Static) -> None:
    """Choose containers' limits; one profile for each slot."""
    state.quota_us[slots] = [setting.factor * one.max_second_used_us for one in profiles]
    state.limit_bytes[slots] = [setting.factor * one.max_memory_bytes for one in profiles]


def decide(state: StaticState, view: CpuView, rows: Ints) -> CpuTargets:
    """Always the same, as far as the application's limit allows. ``rows``: slot of every row of the view."""
    return fit_cpu(view, state.quota_us[rows])[0]


def decide_memory(state: StaticState, sample: MemorySample, rows: Ints) -> MemoryTargets:
    """As `decide`, for memory."""
    return fit_memory(sample, state.limit_bytes[rows])

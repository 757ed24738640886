"""Application parameters as arrays, one element per application index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from schemas.apps import PERIOD_US, AppSpec
from services.allocator.arrays.array_types import BoolArray, IntArray
from services.allocator.arrays.limit_values import PAGE_BYTES

FloatArray = np.ndarray[tuple[int], np.dtype[np.float64]]


@dataclass(frozen=True, slots=True)
class AppTable:
    """Columns of shape (A,); ``known``: announced and owned by this replica."""

    known: BoolArray
    observe_only: BoolArray
    """Mode `observe`: targets are published, no update is sent."""
    waterfill: BoolArray
    cpu_limit_us: IntArray
    memory_limit_bytes: IntArray
    withheld_bytes: IntArray
    """Sigma x limit, withheld for the nodes' reserves."""
    announced: IntArray
    initial_quota_us: IntArray
    """Equation 2.1 for the announced containers; 0 without an announcement."""
    initial_memory_bytes: IntArray
    min_quota_us: IntArray
    max_quota_us: IntArray
    min_memory_bytes: IntArray
    max_memory_bytes: IntArray
    floor_quota_us: IntArray
    """Of a container for which there is no more."""
    floor_memory_bytes: IntArray
    delta_bytes: IntArray
    kappa: FloatArray
    gamma_us: IntArray
    upsilon_share: FloatArray
    window: IntArray


_NO_MAXIMUM = 1 << 40
"""Far above any host, and safe in sums."""


def build_table(apps: Sequence[str], specs: Mapping[str, AppSpec]) -> AppTable:
    """Parameters by application index; applications without a spec get zeros."""
    known = [specs.get(app) for app in apps]

    def ints(values: list[int]) -> IntArray:
        return np.array(values, dtype=np.int64)

    def floats(values: list[float]) -> FloatArray:
        return np.array(values, dtype=np.float64)

    def initial(spec: AppSpec | None) -> tuple[int, int]:
        if spec is None or not spec.announced_containers:
            return 0, 0
        count = spec.announced_containers
        return spec.initial_quota_us(count), spec.initial_memory_bytes(count)

    return AppTable(
        known=np.array([spec is not None for spec in known], dtype=np.bool_),
        observe_only=np.array([spec is not None and spec.mode == "observe" for spec in known], dtype=np.bool_),
        waterfill=np.array([spec is not None and spec.policy == "waterfill" for spec in known], dtype=np.bool_),
        cpu_limit_us=ints([spec.cpu_limit_us if spec else 0 for spec in known]),
        memory_limit_bytes=ints([int(spec.memory_limit) if spec else 0 for spec in known]),
        withheld_bytes=ints([int(spec.memory_limit * spec.sigma) if spec else 0 for spec in known]),
        announced=ints([spec.announced_containers if spec else 0 for spec in known]),
        initial_quota_us=ints([initial(spec)[0] for spec in known]),
        initial_memory_bytes=ints([initial(spec)[1] for spec in known]),
        min_quota_us=ints([spec.min_quota_us if spec else 0 for spec in known]),
        max_quota_us=ints([_maximum_us(spec) for spec in known]),
        min_memory_bytes=ints([int(spec.container_min_memory) if spec else 0 for spec in known]),
        max_memory_bytes=ints([_maximum_bytes(spec) for spec in known]),
        floor_quota_us=ints([spec.floor_quota_us if spec else 0 for spec in known]),
        floor_memory_bytes=ints([int(spec.container_floor_memory) if spec else 0 for spec in known]),
        delta_bytes=ints([int(spec.delta) if spec else 0 for spec in known]),
        kappa=floats([spec.kappa if spec else 0.0 for spec in known]),
        gamma_us=ints([round(spec.gamma * PERIOD_US) if spec else 0 for spec in known]),
        upsilon_share=floats([spec.upsilon / 100 if spec else 0.0 for spec in known]),
        window=ints([spec.window if spec else 1 for spec in known]),
    )


def _maximum_us(spec: AppSpec | None) -> int:
    if spec is None or spec.container_max_cpu is None:
        return _NO_MAXIMUM
    return int(spec.container_max_cpu * PERIOD_US)


def _maximum_bytes(spec: AppSpec | None) -> int:
    if spec is None or spec.container_max_memory is None:
        return _NO_MAXIMUM
    return int(spec.container_max_memory) // PAGE_BYTES * PAGE_BYTES

"""Metrics per application, computed when they are read; only of the applications with the largest CPU limits."""

from __future__ import annotations

from typing import Final

import numpy as np

from schemas.apps import PERIOD_US
from services.allocator.arrays.grouping import per_app
from services.allocator.cycle import AllocationCycle

NAMES: Final = tuple(
    f"turnbuckle_app_{name}"
    for name in (
        *("containers", "refused_containers", "cpu_limit_cores", "cpu_allocated_cores"),
        *("memory_limit_bytes", "memory_allocated_bytes", "memory_reserve_bytes", "memory_usage_bytes"),
        *("cpu_usage_seconds_total", "cpu_unused_seconds_total", "cpu_throttled_seconds_total"),
        *("cpu_periods_total", "cpu_throttled_periods_total", "oom_kills_total"),
        *("cpu_excess_seconds_total", "savings_covered_seconds_total"),
        *("cpu_baseline_seconds_total", "cpu_held_seconds_total"),
        *("memory_baseline_byte_seconds_total", "memory_held_byte_seconds_total"),
    )
)
"""In the order of `app_metrics`' values."""


def largest_apps(cpu_limits: dict[str, float], count: int) -> list[str]:
    """The ``count`` applications with the largest CPU limits, largest first; of equal ones the first by name.

    The limit, and not the usage, so that the same applications are there from one reading to the next.
    """
    return sorted(cpu_limits, key=lambda app: (-cpu_limits[app], app))[:count]


def app_metrics(allocation: AllocationCycle, count: int) -> dict[str, tuple[float, ...]]:
    """Values of `NAMES` by application, of at most ``count`` that this replica owns."""
    cluster, table = allocation.cluster, allocation.table
    owned = {app: cluster.specs[app].cpu_limit for app in allocation.owned.owned_apps() if app in cluster.specs}
    chosen = largest_apps(owned, count)
    if not chosen:
        return {}
    rows, pools, apps = cluster.rows, allocation.pools(), len(cluster.apps)
    containers = np.bincount(rows.app, minlength=apps)
    used_bytes = per_app(rows.app, rows.memory_usage_bytes, apps)
    refused = per_app(rows.app, rows.short, apps)

    def values(app: str) -> tuple[float, ...]:
        at, totals = cluster.app_index(app), cluster.usage.of(cluster.app_index(app))
        now = np.array(
            (
                containers[at],
                refused[at],
                table.cpu_limit_us[at] / PERIOD_US,
                pools.quota_committed_us[at] / PERIOD_US,
                table.memory_limit_bytes[at],
                pools.limit_committed_bytes[at],
                pools.reserved_bytes[at],
                used_bytes[at],
            ),
            dtype=np.float64,
        )
        seconds = (totals[name] / 1e6 for name in ("used_us", "unused_us", "throttled_us"))
        counts = (totals[name] for name in ("periods", "throttled_periods", "oom_kills"))
        covered_s, *cpu_s, baseline_gib_s, held_gib_s = allocation.savings.since_acquired(at).values()
        memory = (baseline_gib_s * (1 << 30), held_gib_s * (1 << 30))
        return (*now.tolist(), *seconds, *counts, totals["excess_us"] / 1e6, covered_s, *cpu_s, *memory)

    return {app: values(app) for app in chosen}

"""Synthetic observations and decisions for folds: every column has a plain default."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from schemas.cfs import CfsBatch
from schemas.limits import LimitDecisions
from schemas.reasons import Reason

START_NS = 1_700_000_000_000_000_000
PERIOD_NS = 100_000_000


@dataclass(frozen=True)
class Row:
    """One container in one batch."""

    container: str = "web-0123456789ab"
    periods: int = 1
    quota_us: int = 20_000
    used_us: int = 10_000
    throttled: int = 0
    memory_usage_bytes: int = 50 << 20
    memory_limit_bytes: int = 100 << 20
    oom_kills: int = 0
    flags: int = 0


def batch(tick: int, rows: Sequence[Row] = (Row(),), **fields: Any) -> CfsBatch:
    """The batch of one tick; ticks are one period apart."""
    columns: dict[str, list[int]] = {
        name: [getattr(row, name) for row in rows] for name in Row.__dataclass_fields__ if name != "container"
    }
    count = len(rows)
    columns |= {
        "unused_us": [max(0, row.quota_us - row.used_us) for row in rows],
        "throttled_us": [0] * count,
        "limit_update_seq": [0] * count,
        "memory_reclaimable_bytes": [0] * count,
    }
    head: dict[str, Any] = {
        "app": "shop",
        "node": "n1",
        "incarnation": 1,
        "report_seq": tick + 1,
        "time_ns": START_NS + tick * PERIOD_NS,
        "period_us": 100_000,
        "host_cpus": 2,
    }
    return CfsBatch.build([row.container for row in rows], columns, **(head | fields))


def decisions(tick: int, containers: Sequence[str] = ("web-0123456789ab",), **fields: Any) -> LimitDecisions:
    """One CPU decision for each container."""
    count = len(containers)
    columns: dict[str, list[Any]] = {name: [0] * count for name in LimitDecisions.column_types}
    columns |= {
        "quota_from_us": [20_000] * count,
        "quota_to_us": [40_000] * count,
        "quota_reason": [Reason.THROTTLED] * count,
        "quota_measured": [30_000.0] * count,
        "quota_threshold": [20_000.0] * count,
    }
    head: dict[str, Any] = {
        "app": "shop",
        "mode": "enforce",
        "policy": "waterfill",
        "epoch": 1,
        "step": tick,
        "time_ns": START_NS + tick * PERIOD_NS,
        "container_count": count,
        "cpu_limit_us": 200_000,
        "cpu_allocated_us": 80_000,
        "memory_limit_bytes": 1 << 30,
        "memory_allocated_bytes": 1 << 29,
    }
    return LimitDecisions.build(containers, columns, **(head | fields))


__all__ = ["PERIOD_NS", "START_NS", "Row", "batch", "decisions", "replace"]

"""Savings events: an hour in which an application came with 2 cores and 4 GiB, and held half of both."""

from __future__ import annotations

from datetime import date
from typing import Any

from schemas.savings import Baseline, Savings, SavingsPart


def savings_part(**fields: Any) -> SavingsPart:
    """One part."""
    plain: dict[str, Any] = {
        "mode": "observe",
        "cpu_baseline": Baseline.CONFIGURED,
        "memory_baseline": Baseline.CONFIGURED,
        "covered_s": 3_600.0,
        "cpu_baseline_core_s": 7_200.0,
        "cpu_held_core_s": 3_600.0,
        "memory_baseline_gib_s": 14_400.0,
        "memory_held_gib_s": 7_200.0,
        "periods": 9_000,
        "throttled_periods": 0,
        "throttled_s": 0.0,
        "excess_periods": 36,
        "excess_core_s": 1.5,
    }
    return SavingsPart(**(plain | fields))


def savings(**fields: Any) -> Savings:
    """One event."""
    plain: dict[str, Any] = {
        "app": "shop",
        "day": date(2026, 11, 25),
        "record": "a-1",
        "time_ns": 1,
        "parts": (savings_part(),),
    }
    return Savings(**(plain | fields))

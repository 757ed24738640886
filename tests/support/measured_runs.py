"""Measured runs of plans, by the ratio of measured by predicted."""

from __future__ import annotations

from typing import Any

from schemas.measured_runs import MeasuredRun
from schemas.plans import Engine


def measured_run(ratio: float, **changes: Any) -> MeasuredRun:
    """One on devices of kind ``fast`` whose steps were predicted to take 10 ms."""
    fields: dict[str, Any] = {
        "plan": "p",
        "job": "train",
        "engine": Engine.LAYERED,
        "kinds": ("fast",),
        "predicted_step_us": 10_000.0,
        "step_us": 10_000.0 * ratio,
        "step_p10_us": 9_000.0 * ratio,
        "step_p90_us": 12_000.0 * ratio,
        "steps": 50,
        "ended_ns": 1,
    }
    return MeasuredRun(**(fields | changes))

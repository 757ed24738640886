"""Requests that would take too long to plan are refused before any work is done. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from schemas.plans import PlanRequest
from services.planner.core.inputs import units_of


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of one request."""

    devices: int
    """The time for cutting their graph grows with the third power."""
    work: int
    """Devices times parts of the batch (`units_of`): as many cells a row of the dynamic programme has."""


def too_large(request: PlanRequest, bounds: Bounds) -> str:
    """Why a request is not planned, in a sentence; empty: it is."""
    devices, batch = len(request.cluster.devices), request.batch
    if devices > bounds.devices:
        return f"{devices} devices are more than the {bounds.devices} that this planner takes"
    unit = units_of(batch, devices)
    parts = 0 if unit is None else batch // unit
    if devices * parts > bounds.work:
        return (
            f"{devices} devices times a batch of {batch}, which divides into {parts} parts, are {devices * parts}, "
            f"more than the {bounds.work} that this planner takes: a power of two has fewer parts"
        )
    return ""

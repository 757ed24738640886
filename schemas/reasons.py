"""Reasons of limit changes: codes on the wire, and sentences."""

from __future__ import annotations

from enum import IntEnum
from typing import Final, Literal

from schemas.apps import PERIOD_US


class Reason(IntEnum):
    """Why a limit was changed. Each comes with a measured value and a threshold, in the resource's own unit."""

    NONE = 0
    ADMITTED = 1
    THROTTLED = 2
    UNUSED = 3
    DEMAND_ROSE = 4
    SHARED_SCARCITY = 5
    OVER_LIMIT = 6
    MEMORY_GROWTH = 7
    MEMORY_RECLAIM = 8
    RESYNC = 9


Resource = Literal["cpu", "memory"]

_TEXT: Final[dict[Reason, str]] = {
    Reason.NONE: "no reason recorded",
    Reason.ADMITTED: "admitted: requested {measured}, {threshold} were free",
    Reason.THROTTLED: "throttled: demand about {measured}, quota was {threshold}",
    Reason.UNUSED: "{measured} unused, headroom is {threshold}",
    Reason.DEMAND_ROSE: "demand with headroom rose to {measured}, quota was {threshold}",
    Reason.SHARED_SCARCITY: "scarce: the containers demand {measured}, {threshold} are available",
    Reason.OVER_LIMIT: "over limit: the containers hold {measured}, they may hold {threshold}",
    Reason.MEMORY_GROWTH: "usage {measured} came within {threshold} of the limit",
    Reason.MEMORY_RECLAIM: "limit was {measured} above usage, {threshold} are kept",
    Reason.RESYNC: "the kernel held {measured}, the limit update was {threshold}",
}


def sentence(resource: Resource, reason: int, measured: float, threshold: float) -> str:
    """The reason with its numbers, CPU in cores (from us per period) and memory in MiB, GiB or TiB (from bytes).

    A reason of a newer sender is named by its number.
    """
    numbers = {"measured": quantity(resource, measured), "threshold": quantity(resource, threshold)}
    try:
        return _TEXT[Reason(reason)].format(**numbers)
    except ValueError:
        return "reason {reason}, measured {measured}, threshold {threshold}".format(reason=reason, **numbers)


def quantity(resource: Resource, value: float) -> str:
    """A limit as text: us per period in cores, bytes in MiB, GiB or TiB; negative: unlimited."""
    if value < 0:
        return "unlimited"
    if resource == "cpu":
        return f"{value / PERIOD_US:.2f} cores"
    if value < 1 << 30:
        return f"{value / (1 << 20):.1f} MiB"
    return f"{value / (1 << 30):.4g} GiB" if value < 1 << 40 else f"{value / (1 << 40):.4g} TiB"

"""Simpler divisions of a batch, which a plan is compared with: even, by speed, in one micro-batch each. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from services.planner.core.cephalo import Problem, Split, device_ms, limits
from services.planner.core.profile import Infeasible, total


def split_even(devices: int, batch: int) -> list[int]:
    """As many samples for each device; what does not divide, one each for the first."""
    base, rest = divmod(batch, devices)
    return [base + (place < rest) for place in range(devices)]


def split_by_speed(slopes_ms: Sequence[float], batch: int) -> list[int]:
    """In proportion to speed, from milliseconds per sample (Cephalo's ``greedy``).

    What rounding left over goes to the device with the fewest samples, or comes off that with the most.
    """
    rates = [1 / slope for slope in slopes_ms]
    whole = total(rates)
    parts = [round(batch * (rate / whole)) for rate in rates]
    while (left := batch - sum(parts)) != 0:
        where = parts.index(min(parts)) if left > 0 else parts.index(max(parts))
        parts[where] += 1 if left > 0 else -1
    return parts


def split_whole(problem: Problem) -> Split | Infeasible:
    """The fastest division in one micro-batch each (Cephalo's ``dp``); of equal times the smaller micro-batch."""
    units, unit = problem.batch // problem.unit, problem.unit
    best = np.full(units + 1, np.inf)
    best[0] = 0.0
    choices = []
    for device, limit in enumerate(limits(problem)):
        longer, taken = np.full_like(best, np.inf), np.full(units + 1, -1, np.int32)
        for size in range(1, min(limit.alone, problem.max_microbatch, problem.batch) // unit + 1):
            cost_ms = device_ms(problem, device, size * unit, 1, uneven=size * unit > limit.even)
            candidate = np.maximum(best[: units + 1 - size], cost_ms)
            better = candidate < longer[size:]
            longer[size:][better] = candidate[better]
            taken[size:][better] = size
        best = longer
        choices.append(taken)
    if not math.isfinite(best[units]):
        return Infeasible("a device has no room for its samples in one micro-batch")
    sizes: list[int] = []
    for taken in reversed(choices):
        sizes.append(int(taken[units]))
        units -= sizes[-1]
    samples = tuple(size * unit for size in reversed(sizes))
    return Split(samples, (1,) * len(samples))

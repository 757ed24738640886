"""How long one call takes, from blocks of calls that are timed as a whole. Pure: the clock is given.

Under a CPU quota a short call meets no pause of the kernel's period or a whole one, and its median says nothing of the
quota. A block that is many periods long meets its share of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import median, quantiles
from typing import Final

LEAST_US: Final = 1e-3
"""What takes no time that the clock sees takes this: a profile has no zeros."""
_US_PER_S: Final = 1e6


@dataclass(frozen=True, slots=True)
class Repetitions:
    """How often is measured."""

    warm_up: int = 3
    """Blocks that do not count; by them the calls of a block are chosen."""
    counted: int = 15
    least_block_s: float = 0.002
    most_calls: int = 10_000
    """In one block."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Microseconds of one call."""

    median_us: float
    p10_us: float
    p90_us: float


NOTHING: Final = Spread(LEAST_US, LEAST_US, LEAST_US)
"""Of what there is not to do."""


def timed(run: Callable[[int], None], clock: Callable[[], float], repetitions: Repetitions) -> Spread:
    """Measure.

    Args:
        run: makes so many calls.
        clock: seconds since any moment; once it returns, the calls made before have been carried out.
        repetitions: how often.
    """

    def block_s(calls: int) -> float:
        began = clock()
        run(calls)
        return clock() - began

    calls = 1
    for _ in range(repetitions.warm_up):
        calls = calls_of_block(block_s(calls) / calls, repetitions)
    return spread_of([block_s(calls) / calls for _ in range(repetitions.counted)])


def extra_us(
    run: Callable[[int], None], part: Callable[[int], None], clock: Callable[[], float], repetitions: Repetitions
) -> float:
    """By how much a call takes longer than a call of a part of it; 0: not measurably.

    Blocks of both take turns, and the median of their differences counts: what else the machine does meets both.

    Args:
        run: makes so many calls.
        part: the same of the part.
        clock: as for `timed`.
        repetitions: how often.
    """

    def call_us(calls: int, one: Callable[[int], None]) -> float:
        began = clock()
        one(calls)
        return (clock() - began) / calls * _US_PER_S

    calls = 1
    for _ in range(repetitions.warm_up):
        call_us(calls, part)
        calls = calls_of_block(call_us(calls, run) / _US_PER_S, repetitions)
    return max(0.0, median(call_us(calls, run) - call_us(calls, part) for _ in range(repetitions.counted)))


def calls_of_block(call_s: float, repetitions: Repetitions) -> int:
    """As few as last long enough, by the duration of one."""
    if call_s * repetitions.most_calls <= repetitions.least_block_s:
        return repetitions.most_calls
    return max(1, ceil(repetitions.least_block_s / call_s))


def spread_of(calls_s: Sequence[float]) -> Spread:
    """Median and first and ninth decile of at least two durations, between values where they do not hit one."""
    calls_us = [max(LEAST_US, call_s * _US_PER_S) for call_s in calls_s]
    deciles = quantiles(calls_us, n=10, method="inclusive")
    return Spread(median(calls_us), deciles[0], deciles[-1])

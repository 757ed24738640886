"""One period for several jobs: whole numbers of each one's iterations fit into it, none of them much longer. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, lcm
from typing import Final

import numpy as np
import numpy.typing as npt

MOST_PADDING: Final = 0.05
"""An iteration may become longer by this share."""
CANDIDATES: Final = 20_000
"""Lengths that are tried, one unit apart: a millisecond where the longest iteration has 5 s at most."""
_LONGEST_OF_MOST: Final = 4
"""The last length that is tried is so many times the longest iteration."""
_STEPS: Final = 500
"""Of a circle: the finest is a millisecond."""
_MOST_STEPS: Final = 5_000
"""Of one with iterations whose numbers have few common divisors."""
_TRIES: Final = 8

_Bools = npt.NDArray[np.bool_]
_Filled = tuple[int, dict[int, int]]
"""Length, ms, and the number of iterations by period."""


@dataclass(frozen=True, slots=True)
class CommonPeriod:
    """A circle that whole numbers of iterations of several jobs fill."""

    length_ms: int
    steps: int
    """Its resolution: a multiple of each job's number of iterations."""
    counts: Mapping[str, int]
    """Iterations of each job on it."""

    @property
    def step_ms(self) -> float:
        """Length of a step."""
        return self.length_ms / self.steps

    def period_ms(self, job: str) -> int:
        """Of a job, so that it keeps step with the others: its own, or up to `MOST_PADDING` longer."""
        return self.length_ms // self.counts[job]

    def period_steps(self, job: str) -> int:
        """The same, in steps."""
        return self.steps // self.counts[job]


def common_period(periods_ms: Mapping[str, int]) -> CommonPeriod | None:
    """The smallest period into which whole numbers of iterations of jobs fit.

    A job is included if there still is one with it; those of one period come together.

    Args:
        periods_ms: of each job alone, those that matter most first.

    Returns:
        that of the jobs that are included, at least two; None: no two jobs have one.
    """
    unit_ms = ceil(_LONGEST_OF_MOST * max(periods_ms.values(), default=1) / CANDIDATES)
    lengths_ms = np.arange(1, CANDIDATES + 1, dtype=np.int64) * unit_ms
    common: _Bools = np.ones(CANDIDATES, dtype=np.bool_)
    included: list[int] = []
    found: _Filled | None = None
    for period_ms in dict.fromkeys(periods_ms.values()):
        both = common & _fits(lengths_ms, period_ms)
        tries = (_filled(int(length_ms), [*included, period_ms]) for length_ms in lengths_ms[both][:_TRIES])
        if (better := next(filter(None, tries), None)) is not None:
            found, common = better, both
            included.append(period_ms)
    jobs = {job: period_ms for job, period_ms in periods_ms.items() if period_ms in included}
    if found is None or len(jobs) < 2:
        return None
    length_ms, counts = found
    every = lcm(*counts.values())
    steps = every * max(1, min(_STEPS, length_ms) // every)
    return CommonPeriod(length_ms, steps, {job: counts[period_ms] for job, period_ms in jobs.items()})


def _fits(lengths_ms: npt.NDArray[np.int64], period_ms: int) -> _Bools:
    """Into which lengths a whole number of iterations fits, none shorter than alone or much longer."""
    count = lengths_ms // period_ms
    fits: _Bools = (count > 0) & (lengths_ms <= (1 + MOST_PADDING) * count * period_ms)
    return fits


def _filled(length_ms: int, periods_ms: Sequence[int]) -> _Filled | None:
    """The length rounded up, so that each job's period is a whole number of milliseconds, and the iterations of each.

    None: one becomes too long by that, or the circle too fine.
    """
    counts = {period_ms: length_ms // period_ms for period_ms in periods_ms}
    every = lcm(*counts.values())
    length_ms = ceil(length_ms / every) * every
    if every > _MOST_STEPS or any(length_ms > (1 + MOST_PADDING) * count * each for each, count in counts.items()):
        return None
    return length_ms, counts


def connected(groups: Sequence[frozenset[str]]) -> list[frozenset[str]]:
    """Names that are connected by groups, directly or by way of others, in the order of their first names."""
    parts: list[frozenset[str]] = []
    for group in groups:
        touching = [part for part in parts if part & group]
        parts = [part for part in parts if not part & group]
        parts.append(group.union(*touching))
    return sorted(parts, key=min)

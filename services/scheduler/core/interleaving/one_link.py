"""The best shifts of the jobs on one link: exact for three jobs, by coordinate descent for more. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd, lcm
from typing import Final

import numpy as np
import numpy.typing as npt

from services.scheduler.core.interleaving.circle import Floats, Iteration, scores_beside, scores_of

EXACT: Final = 3
"""Jobs."""
STARTS: Final = 8
"""Of the descent."""
ROUNDS: Final = 20
DIGITS: Final = 9
"""Scores that are equal to so many digits are equal."""
_GOLDEN: Final = 0.618033988749895
_VALUES_AT_ONCE: Final = 1 << 15
"""Of all ways that are looked at beside each other, so that they fit into a processor's cache."""

_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Best:
    """Shifts in steps, and the score with them."""

    score: float
    shifts: Mapping[str, int]


def best_shifts(iterations: Mapping[str, Iteration], bits_per_s: float) -> Best:
    """The shifts with the highest score. The first job's is 0; of equal ones, small shifts are taken.

    Args:
        iterations: of each job, at least one.
        bits_per_s: that the link carries.
    """
    jobs = list(iterations.values())
    starts = [[0] * len(jobs)]
    if len(jobs) == EXACT:
        starts = [[0, shift, 0] for shift in _aligned(*jobs)]
    elif len(jobs) > EXACT:
        starts = _starts(jobs)
    moved = range(2 if len(jobs) == EXACT else 1, len(jobs))
    at_once = max(1, _VALUES_AT_ONCE // lcm(*(each.period for each in jobs)))
    score, shifts = -math.inf, starts[0]
    for first in range(0, len(starts), at_once):
        ways = _Ways(jobs, bits_per_s, starts[first : first + at_once])
        ways.descend(moved)
        for way, found in enumerate(ways.scores.tolist()):
            if found > score + 10**-DIGITS:
                score, shifts = found, ways.shifts[way].tolist()
        if score >= 1.0:
            break
    return Best(score, dict(zip(iterations, shifts, strict=True)))


class _Ways:
    """Several ways to shift the same jobs, improved beside each other: each as if it was alone."""

    def __init__(self, jobs: Sequence[Iteration], bits_per_s: float, starts: Sequence[Sequence[int]]) -> None:
        """Args: jobs: on the link. bits_per_s: that it carries. starts: the shift of each job, in each way."""
        self._jobs = jobs
        self._capacity = bits_per_s
        steps = lcm(*(each.period for each in jobs))
        self._turned = [each.turned(steps) for each in jobs]
        self.shifts: _Ints = np.array(starts, dtype=np.int64)
        """By way and job."""
        self.scores: Floats = scores_of(self._total(self.shifts), bits_per_s)
        """By way."""

    def descend(self, moved: Sequence[int]) -> None:
        """Move one job after another to where it fits best, until no move is any better.

        Args:
            moved: places of these jobs.
        """
        going: _Ints = np.arange(len(self.scores))
        for _ in range(ROUNDS if moved else 0):
            before = self.scores[going]
            self._move_each(moved, going)
            better = self.scores[going] > before + 10**-DIGITS
            going = self._still_of_use(going[better], going[~better])
            if len(moved) < 2 or not len(going):
                return

    def _move_each(self, moved: Sequence[int], going: _Ints) -> None:
        total = self._total(self.shifts[going])
        for job in moved:
            others = total - self._turned[job][self.shifts[going, job]]
            scores = scores_beside(others, self._jobs[job], self._capacity).round(DIGITS)
            shifts = scores.argmax(axis=-1)
            total = others + self._turned[job][shifts]
            self.shifts[going, job] = shifts
        self.scores[going] = scores.max(axis=-1)

    def _still_of_use(self, going: _Ints, over: _Ints) -> _Ints:
        """Of those that go on; none is better than a perfect one before it."""
        perfect = over[self.scores[over] >= 1.0]
        return going[going < perfect[0]] if len(perfect) else going

    def _total(self, shifts: _Ints) -> Floats:
        total = self._turned[0][shifts[:, 0]]
        for job, turned in enumerate(self._turned[1:], 1):
            total += turned[shifts[:, job]]
        return total


def _aligned(first: Iteration, second: Iteration, third: Iteration) -> list[int]:
    """Shifts of the second of three jobs, one of which is part of a best solution.

    The score is linear in the shifts between those at which an edge of one job's sending meets one of another's. So it
    is highest where two such pairs meet: the second job's with the first's, or by way of the third's. Turns by a
    multiple of the greatest common divisor of two periods leave these two jobs as they are.
    """
    direct = gcd(first.period, second.period)
    by_third = gcd(direct, third.period)
    aligned = {(one - two) % by_third for one in first.edges() for two in second.edges()}
    aligned |= {
        (one - three + other - two) % by_third
        for one in first.edges()
        for two in second.edges()
        for three in third.edges()
        for other in third.edges()
    }
    return [shift for shift in range(direct) if shift % by_third in aligned] or [0]


def _starts(jobs: Sequence[Iteration]) -> list[list[int]]:
    """All together, then spread over their periods in other ways: the same at every replay."""
    return [
        [int(each.period * (start * place * _GOLDEN % 1)) for place, each in enumerate(jobs)] for start in range(STARTS)
    ]

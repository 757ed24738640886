"""The unified circle of one link: what its jobs send together around it, and how much of that it can carry. Pure.

Rates in bit/s; times in steps of the circle, whose perimeter is the least common multiple of the jobs' periods.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import lcm

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Sending:
    """A part of an iteration in which a job sends; it may reach into the next iteration."""

    begin: int
    length: int
    """At most the period."""
    bits_per_s: float


@dataclass(frozen=True, slots=True)
class Iteration:
    """What a job sends in each of its periods; its sendings do not overlap."""

    period: int
    sendings: tuple[Sending, ...]

    def turned(self, steps: int) -> Floats:
        """Its rate at each step of a circle, a multiple of the period: a row for each shift. Not to be written."""
        around: Floats = np.empty(steps + self.period)
        around.reshape(-1, self.period)[:] = self._once()
        size = around.itemsize  # each row begins one step before that of the shift before
        return np.ndarray((self.period, steps), float, around, self.period * size, (-size, size))

    def _once(self) -> Floats:
        once: Floats = np.zeros(self.period)
        for sending in self.sendings:
            begin = sending.begin % self.period
            end = begin + sending.length
            once[begin:end] += sending.bits_per_s
            once[: max(0, end - self.period)] += sending.bits_per_s
        return once

    def edges(self) -> list[int]:
        """Where its rate changes."""
        return [edge for sending in self.sendings for edge in (sending.begin, sending.begin + sending.length)]


class Circle:
    """Jobs on one link, each turned by a shift."""

    def __init__(self, iterations: Mapping[str, Iteration], bits_per_s: float, shifts: Mapping[str, int]) -> None:
        """Args: iterations: of each job. bits_per_s: that the link carries. shifts: of jobs; of others 0."""
        self._capacity = bits_per_s
        self._total: Floats = np.zeros(lcm(*(each.period for each in iterations.values())))
        for job, each in iterations.items():
            self._total += each.turned(len(self._total))[shifts.get(job, 0) % each.period]

    def score(self) -> float:
        """1 less what is sent beyond the link's rate, as a share of what it carries; 1: never too much."""
        return float(scores_of(self._total, self._capacity))


def scores_of(total: Floats, bits_per_s: float | Floats) -> Floats:
    """The score of what jobs send together around a circle, or around each of several: steps are the last axis.

    Args:
        total: of all jobs at each step.
        bits_per_s: that the link carries; of several links with an axis of length 1 for the steps.
    """
    excess = _beyond(total, bits_per_s).mean(axis=-1, keepdims=True)
    scores: Floats = 1.0 - excess / bits_per_s
    return scores[..., 0]


def scores_beside(others: Floats, iteration: Iteration, bits_per_s: float | Floats) -> Floats:
    """The score with each shift of one job, from 0 to its period, without trying each of them: on the last axis.

    Args:
        others: what the others send together at each step of a circle, or of each of several.
        iteration: of the job, which sends.
        bits_per_s: as of `scores_of`.
    """
    steps = others.shape[-1]
    excess = _beyond(others, bits_per_s)
    found: Floats = np.add.reduce(excess, axis=-1, keepdims=True)
    for sending in iteration.sendings:
        # What it adds at each step of its period, over the whole circle; then sums over all windows of its length.
        added = _beyond(others, bits_per_s - sending.bits_per_s)
        added -= excess
        if iteration.period != steps:
            added = np.add.reduce(added.reshape(*others.shape[:-1], -1, iteration.period), axis=-2)
        found = found + _window_sums(added, sending.begin % iteration.period, sending.length)
    scores: Floats = 1.0 - found / (steps * bits_per_s)
    return scores


def _beyond(rates: Floats, bits_per_s: float | Floats) -> Floats:
    beyond: Floats = rates - bits_per_s
    return np.maximum(beyond, 0.0, out=beyond)


def _window_sums(values: Floats, begin: int, length: int) -> Floats:
    """Sums of so many values around the last axis, from each value on, `begin` first."""
    period = values.shape[-1]
    sums: Floats = np.empty((*values.shape[:-1], 2 * period + 1))
    sums[..., 0] = 0.0
    once = sums[..., 1 : period + 1]
    np.add.accumulate(values, axis=-1, out=once)
    np.add(once, once[..., -1:], out=sums[..., period + 1 :])
    found: Floats = sums[..., length : length + period] - sums[..., :period]
    return np.concatenate((found[..., begin:], found[..., :begin]), axis=-1) if begin else found

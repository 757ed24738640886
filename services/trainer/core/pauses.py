"""How long steps rest at a change of workers: from the end of the last one to the beginning of the next. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Pause:
    """Between two generations of workers."""

    generation: int
    """That goes on."""
    step: int
    """Its first, from 0."""
    pause_us: int
    after_failure: bool
    """A member was lost, or the group failed: noticing that, and forming anew, are part of the pause."""


@dataclass(frozen=True, slots=True)
class PauseSummary:
    """Of several pauses; quantiles by the nearest rank (the smallest value that at least such a share does not exceed).

    Without pauses they are None.
    """

    count: int
    p50_us: int | None
    p95_us: int | None


def summary(pauses_us: Sequence[int]) -> PauseSummary:
    """Median and 95th percentile."""
    if not pauses_us:
        return PauseSummary(0, None, None)
    ordered = sorted(pauses_us)
    p50_us, p95_us = (ordered[math.ceil(share * len(ordered)) - 1] for share in (0.50, 0.95))
    return PauseSummary(len(ordered), p50_us, p95_us)


@dataclass(slots=True)
class PauseMeter:
    """Takes the steps of each generation's rank 0, in their order; all by one machine's monotonic clock."""

    _generation: int = 0
    """Of the last step; 0: there was none."""
    _step: int = -1
    _end_us: int = 0
    _changes_us: list[int] = field(default_factory=list)
    _failures_us: list[int] = field(default_factory=list)

    def take(self, generation: int, step: int, times_us: tuple[int, int], failed: Collection[int]) -> Pause | None:
        """The pause before this step, where it is the first of a generation.

        None as well where steps between the two were not reported: how long it rested is not known then. Where rank 0
        was killed, up to a second of steps that it had not reported counts as part of the pause.

        Args:
            generation: from 1.
            step: from 0.
            times_us: how long it took, and when it ended.
            failed: numbers of generations that were ordered because one before had failed.
        """
        step_us, end_us = times_us
        found: Pause | None = None
        if self._generation and generation > self._generation and step <= self._step + 1:
            after_failure = any(number in failed for number in range(self._generation + 1, generation + 1))
            found = Pause(generation, step, max(end_us - step_us - self._end_us, 0), after_failure)
            (self._failures_us if after_failure else self._changes_us).append(found.pause_us)
        if generation >= self._generation:
            self._generation, self._step, self._end_us = generation, step, end_us
        return found

    @property
    def changes(self) -> PauseSummary:
        """Of workers that joined or left."""
        return summary(self._changes_us)

    @property
    def failures(self) -> PauseSummary:
        """Of generations that were formed because one had failed."""
        return summary(self._failures_us)

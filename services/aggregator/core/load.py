"""What a job asks of its aggregator, from the steps that were finished. Pure."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from statistics import median
from typing import Final

from services.aggregator.core.packing import JobLoad

WINDOW_STEPS: Final = 20
"""Medians over so many: one stopped worker changes neither."""


class LoadMeter:
    """The last steps of one job on one aggregator."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._ends_us: deque[int] = deque(maxlen=WINDOW_STEPS + 1)
        self._busy_us: deque[int] = deque(maxlen=WINDOW_STEPS)

    def step(self, end_us: int, busy_us: int) -> None:
        """A step of all of the job's ranges here has ended.

        Args:
            end_us: on a clock that does not go back.
            busy_us: processor time for it.
        """
        self._ends_us.append(end_us)
        self._busy_us.append(busy_us)

    def load(self) -> JobLoad | None:
        """Medians of iteration and processor time; None before two steps have ended."""
        if len(self._ends_us) < 2:
            return None
        ends = list(self._ends_us)
        iteration_us = median(later - earlier for earlier, later in pairwise(ends))
        return JobLoad(self._job, max(1, round(iteration_us)), round(median(self._busy_us)))

"""Steps of a training out of what its ranks report: a step takes as long as its slowest rank. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

MAX_OPEN_STEPS: Final = 100_000
"""Steps of which not all ranks have reported: of older ones reports were lost."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """A step that all ranks have reported."""

    step: int
    """From 0."""
    step_us: int
    """Of the slowest rank."""
    end_us: int
    """By the machine's monotonic clock: of the last rank."""
    loss: float | None
    """Of the global batch; None: it is no finite number."""


@dataclass(slots=True)
class StepTimes:
    """Takes the ranks' reports, each in its order (`services/trainer/worker/report.py` has their form)."""

    ranks: int
    _open: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """Of each step so far: duration and end in each rank, in microseconds."""

    def take(self, report: Mapping[str, Any]) -> list[StepTime]:
        """The steps that are complete with this report, in ascending order.

        Steps that a rank's lost report had are left out.
        """
        found: list[StepTime] = []
        columns = (report[name] for name in ("step", "step_us", "end_us", "loss"))
        for step, step_us, end_us, loss in zip(*columns, strict=True):
            times = self._open.setdefault(step, [])
            times.append((step_us, end_us))
            if len(times) == self.ranks:
                durations_us, ends_us = zip(*times, strict=True)
                found.append(StepTime(step, max(durations_us), max(ends_us), loss))
        if found:
            # Each rank reports in order: what is older and not complete never will be.
            self._open = {step: times for step, times in self._open.items() if step > found[-1].step}
        while len(self._open) > MAX_OPEN_STEPS:
            del self._open[min(self._open)]
        return found

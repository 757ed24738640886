"""How far a training is and how fast, beside what the plan predicts. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from schemas.plans import Plan
from services.trainer.core.step_times import StepTime

LEAST_BETWEEN_US: Final = 500_000
"""Between the ends of two lines' steps: ranks report once a second, each at its own time."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The steps since the last one of these."""

    done: int
    """Steps, with those of earlier starts."""
    total: int
    step_us: float
    """Median."""
    predicted_step_us: float
    samples_per_s: float
    """With all that happens between steps: loading samples, saving."""
    loss: float | None
    """Of the last step's global batch; None: it is no finite number."""


@dataclass(slots=True)
class ProgressMeter:
    """Sums steps up between two lines."""

    plan: Plan
    total: int
    _steps: list[StepTime] = field(default_factory=list)
    _before: StepTime | None = None
    """The last step of the last line."""

    def take(self, steps: Sequence[StepTime]) -> Progress | None:
        """The line that is due with these steps, if one is."""
        self._steps += steps
        if self._before is not None and self._steps:
            is_due = self._steps[-1].end_us >= self._before.end_us + LEAST_BETWEEN_US
            return self.rest() if is_due else None
        return self.rest()

    def rest(self) -> Progress | None:
        """The line of the steps since the last one; None: there were none."""
        if not self._steps:
            return None
        times_us, last = [step.step_us for step in self._steps], self._steps[-1]
        if self._before is None:  # when the first step began is not reported
            steps, taken_us = len(times_us), sum(times_us)
        else:
            steps, taken_us = last.step - self._before.step, last.end_us - self._before.end_us
        made = Progress(
            done=last.step + 1,
            total=self.total,
            step_us=median(times_us),
            predicted_step_us=self.plan.step_us,
            samples_per_s=1e6 * self.plan.batch * steps / max(taken_us, 1),
            loss=last.loss,
        )
        self._steps, self._before = [], last
        return made

"""What a training's steps took beside its plan's prediction, as one measured run. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from pydantic import ValidationError

from schemas.measured_runs import MeasuredRun
from schemas.plans import Plan

FIRST_STEPS: Final = 3
"""Of a start: they load code, and do not count."""
LEAST_STEPS: Final = 10
"""That have to count."""
MOST_STEPS: Final = 10_000
"""The last ones are kept."""


@dataclass(slots=True)
class StepSample:
    """Times of one start's steps, in their order."""

    _left_out: int = 0
    _steps_us: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_STEPS))

    def take(self, step_us: float) -> None:
        """Take the next step."""
        if self._left_out < FIRST_STEPS:
            self._left_out += 1
        else:
            self._steps_us.append(step_us)

    @property
    def steps_us(self) -> tuple[float, ...]:
        """Those that count."""
        return tuple(self._steps_us)


def measured_run(plan: Plan, steps_us: Sequence[float], ended_ns: int) -> MeasuredRun | str:
    """The run, or why later plans learn nothing from it.

    Args:
        plan: that was carried out.
        steps_us: of the steps that count.
        ended_ns: when, since the epoch.
    """
    kinds = tuple(sorted({device.kind for device in plan.devices}))
    if "" in kinds:
        return "its plan does not say of which kinds its devices are, as those of turnbuckle plan do"
    if len(steps_us) < LEAST_STEPS:
        return f"{len(steps_us)} steps after the first {FIRST_STEPS} are too few: {LEAST_STEPS} count"
    low, median, high = (float(us) for us in np.quantile(steps_us, (0.1, 0.5, 0.9)))
    try:
        return MeasuredRun(
            plan=plan.plan,
            job=plan.job,
            engine=plan.engine,
            kinds=kinds,
            profiles=plan.profiles,
            predicted_step_us=plan.profiled_step_us or plan.step_us,
            step_us=median,
            step_p10_us=low,
            step_p90_us=high,
            steps=len(steps_us),
            ended_ns=ended_ns,
        )
    except ValidationError as error:  # the plan is a file, which anybody may have written
        detail = error.errors(include_input=False, include_url=False)[0]
        return f"no measured run has that: {'.'.join(map(str, detail['loc']))}: {detail['msg']}"

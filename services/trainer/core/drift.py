"""Whether a training's steps take what its plan predicts, and since when they do not. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from schemas.plans import Plan, PlanReason

STEPS: Final = 20
"""In a row on one side of the plan's interval: fewer are chance, or the first steps, which load code."""


def drift(steps_us: Sequence[float], plan: Plan) -> PlanReason | None:
    """Why the plan's prediction does not hold, with the median and the bound that it is beyond.

    Args:
        steps_us: times of the last `STEPS` steps.
        plan: has the interval.

    Returns:
        None: there are fewer steps, or one is inside of the interval, or on its other side.
    """
    if len(steps_us) < STEPS:
        return None
    measured_us = median(steps_us)
    if min(steps_us) > plan.step_high_us:
        bound_us, word, cause = plan.step_high_us, "more", "devices are shared or slower than they were when profiled"
    elif max(steps_us) < plan.step_low_us:
        bound_us, word, cause = plan.step_low_us, "less", "the layer profiles are of a slower state of the devices"
    else:
        return None
    sentence = (
        f"each of the last {len(steps_us)} steps took {word} than the {_text(bound_us)} of the plan, "
        f"the median is {_text(measured_us)}: {cause}; profile and plan anew"
    )
    return PlanReason(measured=measured_us, threshold=bound_us, unit="us", sentence=sentence)


def _text(time_us: float) -> str:
    """``12.5 ms``, ``1.95 s``."""
    return f"{time_us / 1e3:.4g} ms" if time_us < 999_950 else f"{time_us / 1e6:.3g} s"


@dataclass(slots=True)
class DriftWatch:
    """Says it once when steps leave the interval, and again after they were inside for as long."""

    plan: Plan
    _last_us: deque[float] = field(default_factory=lambda: deque(maxlen=STEPS))
    _bound_us: float | None = None
    """Of the drift that was said; None: there is none."""
    _inside: int = 0
    """Steps in a row since then that are not beyond that bound."""

    def take(self, step_us: float) -> PlanReason | None:
        """Take the next step; returns a drift that begins with it."""
        self._last_us.append(step_us)
        is_inside = self.plan.step_low_us <= step_us <= self.plan.step_high_us
        self._inside = self._inside + 1 if is_inside else 0
        if self._inside >= STEPS:
            self._bound_us = None
        found = drift(self._last_us, self.plan)
        if found is None or found.threshold == self._bound_us:
            return None
        self._bound_us = found.threshold
        return found

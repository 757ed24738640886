"""A predicted step, corrected by what earlier runs took beside what their layer profiles had predicted. Pure.

The ratio of measured by predicted is what is learned: its median corrects the step, its quantiles the interval. A few
runs say little of the next one, so the interval is widened by what decreases with their number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import exp, log
from typing import Final

import numpy as np

from schemas.measured_runs import MeasuredRun
from schemas.plans import MAX_PLAN_REASONS, Engine, Plan, PlanReason

MOST_RUNS: Final = 50
"""The newest of a kind: machines and software change."""
LEAST_OF_MODEL: Final = 3
"""So many runs of the same model count alone; with fewer, those of other models on such devices count, too."""
QUANTILES: Final = (0.05, 0.5, 0.95)
FIRST_SPREAD: Final = log(1.25)
"""Of a single run's ratio, to either side, and a half of it of two, and so on."""
SPREAD_GROWTH: Final = 4.0
"""Quantiles of n runs are taken 1 + 4 / n times as far from the median: few runs seldom include the extremes.

With that, the next of runs whose ratios are lognormal is inside in 0.87 to 0.99 of cases from 5 runs on, in 0.77 and
more of 2 (standard deviations of 0.02 to 0.2; the test of this module)."""


@dataclass(frozen=True, slots=True)
class Correction:
    """By what a predicted step is multiplied."""

    runs: int
    """That it rests on."""
    same_model: bool
    """All of them are of the model that is planned, on the same kinds of devices."""
    low: float
    median: float
    high: float

    @property
    def reason(self) -> PlanReason:
        """For the plan."""
        of = "this model" if self.same_model else "models on these kinds of devices"
        runs = "1 earlier run" if self.runs == 1 else f"{self.runs} earlier runs"
        return PlanReason(
            measured=self.median,
            threshold=1.0,
            unit="ratio",
            sentence=f"{runs} of {of} took {self.median:.3g} times what the layer profiles predict (median), which "
            f"corrects the step; the next is expected within {self.low:.3g} and {self.high:.3g}",
        )


def correction_of(
    runs: Sequence[MeasuredRun], engine: Engine, kinds: Collection[str], profiles: Collection[str]
) -> Correction | None:
    """What earlier runs say of the next one.

    Args:
        runs: all that are known, in any order.
        engine: that will carry the plan out.
        kinds: of the plan's devices.
        profiles: of the model on them (`LayerProfile.profile`).

    Returns:
        None: no run was on the same kinds of devices by the same engine.
    """
    alike = [run for run in runs if run.engine is engine and set(run.kinds) == set(kinds)]
    of_model = [run for run in alike if set(run.profiles) == set(profiles)]
    same_model = bool(alike) and len(of_model) >= min(LEAST_OF_MODEL, len(alike))
    newest = sorted(of_model if same_model else alike, key=lambda run: run.ended_ns)[-MOST_RUNS:]
    if not newest:
        return None
    low, median, high = expected_ratio([run.ratio for run in newest])
    return Correction(len(newest), same_model, low, median, high)


def expected_ratio(ratios: Sequence[float]) -> tuple[float, float, float]:
    """Between which values the next ratio is expected, and the median: at least one was measured.

    In logarithms, where a step twice as long as predicted is as far off as one that is half as long.
    """
    low, median, high = np.quantile([log(ratio) for ratio in ratios], QUANTILES)
    growth, least = 1 + SPREAD_GROWTH / len(ratios), FIRST_SPREAD / len(ratios)
    return (
        exp(median - growth * (median - low) - least),
        exp(median),
        exp(median + growth * (high - median) + least),
    )


def learned(made: Plan, runs: Sequence[MeasuredRun]) -> Plan:
    """A plan by layer profiles alone, corrected by those of the runs that say something of it."""
    kinds = {device.kind for device in made.devices}
    correction = correction_of(runs, made.engine, kinds, made.profiles)
    return made if correction is None else _corrected(made, correction)


def _corrected(made: Plan, correction: Correction) -> Plan:
    """With what earlier runs say of its times: the alternatives' are corrected alike.

    Its interval is what is expected after those runs, and not narrower than the profiles' own around the new step.
    """
    ratio, low_us = correction.median, min(made.step_low_us * correction.median, made.step_us * correction.low)
    high_us = max(made.step_high_us * correction.median, made.step_us * correction.high)
    alternatives = [
        one if one.step_us is None else one.model_copy(update=_times(one.step_us * ratio, one.usd_per_step * ratio))
        for one in made.alternatives
    ]
    texts = (made.plan, correction.reason.model_dump_json())
    return made.model_copy(
        update={
            **_times(made.step_us * ratio, made.usd_per_step * ratio),
            "plan": digest_of(texts),
            "step_low_us": low_us,
            "step_high_us": high_us,
            "profiled_step_us": made.step_us,
            "measured_runs": correction.runs,
            "reasons": (*made.reasons, correction.reason)[:MAX_PLAN_REASONS],
            "alternatives": tuple(alternatives),
        }
    )


def _times(step_us: float, usd_per_step: float) -> dict[str, float]:
    return {"step_us": step_us, "usd_per_step": usd_per_step}


def digest_of(texts: Sequence[str]) -> str:
    """The same for the same texts, in this order."""
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]

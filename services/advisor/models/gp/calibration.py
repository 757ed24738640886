"""Conformal calibration: the intervals' half-width factor from errors on left-out tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.special import stdtrit

from services.advisor.core.arrays import FloatArray, TextArray

LEAST_TASKS: Final = 3
"""Of fewer tasks no coverage is reported."""
_GRID: Final = (np.arange(200) + 0.5) / 200
_FREEDOM: Final = 4.0
"""Degrees of freedom of the pseudo-task that represents unseen tasks."""


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """Sorted absolute standardised errors on left-out tasks, with weights that sum to 1 and are equal for each task.

    Grouped conformal prediction (Dunn, Wasserman and Ramdas 2022, the pooled distribution over groups), except
    for the mass that their bound puts at infinity for the next group: with few tasks it would make every interval
    infinite. Here one pseudo-task with Student's t errors has that mass.
    """

    errors: FloatArray
    weights: FloatArray

    @staticmethod
    def of(task: TextArray, errors: FloatArray) -> Calibration:
        """Calibrate on standardised errors and the task of each."""
        names, group = np.unique(task, return_inverse=True)
        weights = 1.0 / np.bincount(group)[group]
        pseudo = np.abs(stdtrit(_FREEDOM, 0.5 + _GRID / 2.0))
        values = np.concatenate([np.abs(errors), pseudo])
        masses = np.concatenate([weights, np.full(len(_GRID), 1.0 / len(_GRID))]) / (len(names) + 1)
        order = np.argsort(values)
        return Calibration(values[order], masses[order])

    def factor(self, level: float) -> float:
        """Return the number of standard deviations that cover the outcome with probability `level`."""
        reached = np.searchsorted(np.cumsum(self.weights), level - 1e-12)
        return float(self.errors[min(int(reached), len(self.errors) - 1)])


@dataclass(frozen=True, slots=True, eq=False)
class LeftOutErrors:
    """Errors of logarithms with each row's task left out; one element per row that has one."""

    task: TextArray
    errors: FloatArray
    """Outcome less mean."""
    deviation: FloatArray

    def calibration(self) -> Calibration:
        """Return the calibration on all tasks."""
        return Calibration.of(self.task, self.errors / self.deviation)

    def coverage(self, level: float) -> float | None:
        """Return the share of outcomes inside their intervals, averaged over tasks; None for few tasks.

        A task's intervals are calibrated on the other tasks alone. The hyperparameters were fitted with its rows.
        """
        tasks = np.unique(self.task)
        if len(tasks) < LEAST_TASKS:
            return None
        standardised = self.errors / self.deviation
        shares = []
        for one in tasks:
            mine = self.task == one
            factor = Calibration.of(self.task[~mine], standardised[~mine]).factor(level)
            shares.append(float((np.abs(standardised[mine]) <= factor).mean()))
        return float(np.mean(shares))

    def shifted(self, by: Mapping[str, Sequence[tuple[float, float]]]) -> LeftOutErrors:
        """Return the errors with each task's level shifted.

        Args:
            by: Per task, pairs of a shift of its errors and a variance added to its intervals.
        """
        parts = [(rows, *move) for one, moves in by.items() for rows in [self.task == one] for move in moves]
        return LeftOutErrors(
            np.concatenate([self.task[rows] for rows, _, _ in parts] or [self.task[:0]]),
            np.concatenate([self.errors[rows] + shift for rows, shift, _ in parts] or [self.errors[:0]]),
            np.concatenate([np.sqrt(self.deviation[rows] ** 2 + more) for rows, _, more in parts] or [self.errors[:0]]),
        )

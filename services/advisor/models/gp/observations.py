"""Observations of the process: logarithmic ratios of durations to the task's local run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from services.advisor.core.arrays import BoolArray, FloatArray, IntArray
from services.advisor.core.table import Table
from services.advisor.models.gp.kernel import Design, Kernel
from services.advisor.models.gp.space import Points, distinct

UNKNOWN_LEVEL_DEVIATION: Final = 2.66
"""Prior standard deviation of the logarithm of an unknown job's duration: the uniform distribution between a minute and
a week has log(10,080) / sqrt(12). Durations of known tasks say nothing about another one's."""


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """Reference durations of tasks without a local run."""

    mean: float
    """Of the logarithms of the known local runs' durations."""
    variance: float
    own: Mapping[str, float]
    """Mean logarithm of the durations of known tasks without a local run."""

    @staticmethod
    def of(table: Table) -> Level:
        """Return the level of the known tasks, each counting once; all rows have finished."""
        known: dict[str, float] = {}
        for task, reference in zip(table.task, table.reference_time_s, strict=True):
            if np.isfinite(reference) and reference > 0:
                known.setdefault(str(task), float(np.log(reference)))
        blind = ~has_reference(table)
        own = {
            str(task): float(np.log(table.time_s[blind & (table.task == task)]).mean())
            for task in np.unique(table.task[blind])
        }
        values = np.array(list(known.values()) or list(own.values()))
        spread = float(values.var()) if len(values) > 1 else 0.0
        return Level(float(values.mean()), max(spread, UNKNOWN_LEVEL_DEVIATION**2), own)

    def logarithms(self, table: Table) -> FloatArray:
        """Return the logarithm of each row's reference duration, shape ``(rows,)``."""
        known = has_reference(table)
        least = np.log(np.where(table.reference_least_s > 0, table.reference_least_s, np.finfo(np.float64).tiny))
        unknown = np.maximum(self.mean, least)  # at least as long as its local run
        own = np.array([self.own.get(str(task), unknown[row]) for row, task in enumerate(table.task)])
        return np.where(known, np.log(np.where(known, table.reference_time_s, 1.0)), own)

    def level_variance(self, table: Table) -> float:
        """Return the variance of the level of one task's rows: 0 with a local run or known rows."""
        known = bool(has_reference(table).any()) or bool(len(table) and str(table.task[0]) in self.own)
        return 0.0 if known else self.variance


def reference_variance(table: Table) -> FloatArray:
    """Return the variance of the logarithm of each row's reference, shape ``(rows,)``; 0 without one."""
    return np.where(has_reference(table), table.reference_variance, 0.0)


def has_reference(table: Table) -> BoolArray:
    """Return which rows have a reference: a local run with a known duration of the whole job."""
    return np.asarray(np.isfinite(table.reference_time_s) & (table.reference_time_s > 0))


def design_of(kernel: Kernel, table: Table, level: Level) -> Design:
    """Return the design of the rows; variants of a task (such as other data sizes) are distinct."""
    at, of = kernel.configurations.coordinates(table), kernel.tasks.coordinates(table)
    first, configuration_of = distinct(table.configuration_key, at)
    first_task, task_of = distinct(table.task, of)
    return Design(
        kernel,
        Points(table.configuration_key[first], at[first]),
        Points(table.task[first_task], of[first_task]),
        configuration_of,
        task_of,
        np.exp(level.logarithms(table)),
    )


def subsampled(table: Table, limit: int, seed: int) -> IntArray:
    """Return a stratified random sample of about `limit` rows at most, in order, with at least five per task."""
    if len(table) <= limit:
        return np.arange(len(table))
    random = np.random.default_rng(seed)
    kept = []
    for task in np.unique(table.task):
        rows = np.flatnonzero(table.task == task)
        count = min(len(rows), max(5, len(rows) * limit // len(table)))
        kept.append(random.permutation(rows)[:count])
    return np.sort(np.concatenate(kept))

"""Observations of the process: logarithmic ratios of durations to the task's local run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from services.advisor.core.arrays import BoolArray, FloatArray, IntArray
from services.advisor.core.table import WORK, Table
from services.advisor.core.whole_job_duration import scaled
from services.advisor.models.gp.kernel import Design, Kernel
from services.advisor.models.gp.space import Points, distinct

UNKNOWN_LEVEL_DEVIATION: Final = 2.66
"""Prior standard deviation of the logarithm of an unknown job's duration: the uniform distribution between a minute and
a week has log(10,080) / sqrt(12). Durations of known tasks say nothing about another one's."""


@dataclass(frozen=True, slots=True)
class OwnLevel:
    """Duration of a known task without a local run."""

    mean: float
    """Of the logarithms of its durations at `work`."""
    work: tuple[float, ...]
    """Medians of the features `WORK` of its rows; NaN where unknown."""

    @staticmethod
    def of(rows: Table) -> OwnLevel:
        """Return the level of one task's rows, each scaled to the median work."""
        work = np.array([rows.feature(name) for name in WORK])
        known = [column[np.isfinite(column)] for column in work]
        medians = tuple(float(np.median(column)) if len(column) else np.nan for column in known)
        times_s = [
            scaled(time_s, 1.0 / ratio)[0] for time_s, ratio in zip(rows.time_s, _ratios(medians, rows), strict=True)
        ]
        return OwnLevel(float(np.log(times_s).mean()), medians)

    def scaled(self, rows: Table) -> FloatArray:
        """Return the logarithm of the duration at each row's work, and its variance, shape ``(rows, 2)``."""
        found = [scaled(math.exp(self.mean), ratio) for ratio in _ratios(self.work, rows)]
        return np.array([(math.log(time_s), variance) for time_s, variance in found]).reshape(-1, 2)


def _ratios(work: tuple[float, ...], rows: Table) -> FloatArray:
    """Return each row's work over `work`: by epochs and samples, else by steps; 1 where either is unknown."""
    epochs, samples, steps = (np.asarray(rows.feature(name) / one) for name, one in zip(WORK, work, strict=True))
    by_steps = np.isnan(epochs) & np.isfinite(steps)
    return np.where(by_steps, steps, np.nan_to_num(epochs, nan=1.0) * np.nan_to_num(samples, nan=1.0))


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """Reference durations of tasks without a local run."""

    mean: float
    """Of the logarithms of the known local runs' durations."""
    variance: float
    own: Mapping[str, OwnLevel]
    """Of known tasks without a local run."""

    @staticmethod
    def of(table: Table) -> Level:
        """Return the level of the known tasks, each counting once; all rows have finished."""
        known: dict[str, float] = {}
        for task, reference in zip(table.task, table.reference_time_s, strict=True):
            if np.isfinite(reference) and reference > 0:
                known.setdefault(str(task), float(np.log(reference)))
        blind = ~has_reference(table)
        own = {
            str(task): OwnLevel.of(table.select(np.asarray(blind & (table.task == task))))
            for task in np.unique(table.task[blind])
        }
        values = np.array(list(known.values()) or [one.mean for one in own.values()])
        spread = float(values.var()) if len(values) > 1 else 0.0
        return Level(float(values.mean()), max(spread, UNKNOWN_LEVEL_DEVIATION**2), own)

    def logarithms(self, table: Table) -> FloatArray:
        """Return the logarithm of each row's reference duration, shape ``(rows,)``."""
        known = has_reference(table)
        least = np.log(np.where(table.reference_least_s > 0, table.reference_least_s, np.finfo(np.float64).tiny))
        unknown = np.maximum(self.mean, least)  # at least as long as its local run
        own = self._own(table, unknown)[:, 0]
        return np.where(known, np.log(np.where(known, table.reference_time_s, 1.0)), own)

    def _own(self, table: Table, unknown: FloatArray) -> FloatArray:
        """Return logarithms and their variances by the tasks' own levels, shape ``(rows, 2)``."""
        found = np.column_stack([unknown, np.zeros(len(table))])
        for task in np.unique(table.task):
            if (level := self.own.get(str(task))) is not None:
                rows = np.flatnonzero(table.task == task)
                found[rows] = level.scaled(table.select(rows))
        return found

    def reference_variance(self, table: Table) -> FloatArray:
        """Return the variance of the logarithm of each row's reference, shape ``(rows,)``; 0 without one."""
        own = self._own(table, np.zeros(len(table)))[:, 1]
        return np.where(has_reference(table), table.reference_variance, own)

    def level_variance(self, table: Table) -> float:
        """Return the variance of the level of one task's rows: 0 with a local run or known rows."""
        known = bool(has_reference(table).any()) or bool(len(table) and str(table.task[0]) in self.own)
        return 0.0 if known else self.variance


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

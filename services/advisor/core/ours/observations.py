"""What the process learns from: logarithmic ratios of durations to the task's local run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from schemas.predictions import Objective
from services.advisor.core.arrays import BoolArray, FloatArray, IntArray
from services.advisor.core.ours.kernel import Design, Kernel
from services.advisor.core.ours.space import Points, distinct
from services.advisor.core.table import Table

UNKNOWN_SPREAD: Final = 1.0
"""Standard deviation of the logarithm of local runs' durations where fewer than two are known."""


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """What durations are compared with where a task has no finished local run."""

    mean: float
    """Of the logarithms of the known local runs' durations."""
    variance: float

    @staticmethod
    def of(table: Table) -> Level:
        """Return the level of the known tasks, each counting once."""
        known: dict[str, float] = {}
        for task, anchor in zip(table.task, table.anchor_time_s, strict=True):
            if np.isfinite(anchor) and anchor > 0:
                known.setdefault(str(task), float(np.log(anchor)))
        values = np.array(list(known.values()))
        if not len(values):
            ran = np.log(table.time_s[table.completed(Objective.TIME)])
            return Level(float(ran.mean()), float(ran.var()) + UNKNOWN_SPREAD)
        return Level(float(values.mean()), float(values.var()) if len(values) > 1 else UNKNOWN_SPREAD)


def has_anchor(table: Table) -> BoolArray:
    """Return which rows' task has a finished local run."""
    return np.asarray(np.isfinite(table.anchor_time_s) & (table.anchor_time_s > 0))


def log_anchor(table: Table, level: Level) -> FloatArray:
    """Return the logarithm of what each row's duration is divided by, shape ``(rows,)``."""
    known = has_anchor(table)
    return np.where(known, np.log(np.where(known, table.anchor_time_s, 1.0)), level.mean)


def training_offsets(table: Table, level: Level) -> FloatArray:
    """Return `log_anchor`, but the mean of a task's own rows where it has no local run: its level is not learned."""
    offsets = log_anchor(table, level)
    known = has_anchor(table)
    for task in np.unique(table.task[~known]):
        rows = (table.task == task) & ~known
        offsets[rows] = float(np.log(table.time_s[rows]).mean())
    return offsets


def design_of(kernel: Kernel, table: Table, level: Level) -> Design:
    """Return the rows' configurations and tasks; variants of a task (such as other data sizes) are told apart."""
    at, of = kernel.configurations.coordinates(table), kernel.tasks.coordinates(table)
    first, configuration_of = distinct(table.configuration_key, at)
    first_task, task_of = distinct(table.task, of)
    return Design(
        kernel,
        Points(table.configuration_key[first], at[first]),
        Points(table.task[first_task], of[first_task]),
        configuration_of,
        task_of,
        np.exp(log_anchor(table, level)),
    )


def thinned(table: Table, limit: int, seed: int) -> IntArray:
    """Return about `limit` rows at most, in order: each task keeps the same share, and at least five, by chance."""
    if len(table) <= limit:
        return np.arange(len(table))
    random = np.random.default_rng(seed)
    kept = []
    for task in np.unique(table.task):
        rows = np.flatnonzero(table.task == task)
        count = min(len(rows), max(5, len(rows) * limit // len(table)))
        kept.append(random.permutation(rows)[:count])
    return np.sort(np.concatenate(kept))

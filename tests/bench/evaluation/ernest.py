"""Ernest: few terms of how distributed work scales, non-negative, per application (Venkataraman et al., NSDI 2016)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.optimize import nnls

from schemas.predictions import Objective
from services.advisor.core.arrays import FloatArray
from services.advisor.core.table import SECONDS_PER_HOUR, Table, training_rows

LEAST_ROWS: Final = 3


def terms(parallelism: FloatArray) -> FloatArray:
    """Return the terms ``1, 1/n, log n, n`` of a fixed amount of work, shape ``(rows, 4)``.

    Args:
        parallelism: ``n``: machines, or vCPUs of all machines.
    """
    return np.column_stack((np.ones(len(parallelism)), 1.0 / parallelism, np.log(parallelism), parallelism))


def fit_terms(design: FloatArray, time_s: FloatArray) -> FloatArray:
    """Return non-negative coefficients of least *relative* squares: a short job's second counts more."""
    coefficients, _ = nnls(design / time_s[:, None], np.ones(len(time_s)))
    return np.asarray(coefficients)


def machine_of(table: Table) -> list[str]:
    """Return what is the same for rows that differ in the number of workers only, by row."""
    return [
        f"{key}".replace(f" x{workers} ", " x* ")
        for key, workers in zip(table.configuration_key, table.workers, strict=True)
    ]


def parallelism(table: Table) -> FloatArray:
    """Return vCPUs of all machines; machines where vCPUs are not known."""
    vcpu = table.feature("config.vcpu")
    return np.asarray(table.workers * np.where(np.isfinite(vcpu), vcpu, 1.0))


@dataclass(frozen=True, slots=True)
class FittedErnest:
    """Coefficients per task and machine, and per task over all machines where one was too rarely measured."""

    target: Objective
    by_machine: Mapping[tuple[str, str], FloatArray]
    by_task: Mapping[str, FloatArray]

    def predict(self, table: Table) -> FloatArray:
        """Return seconds or dollars; NaN for a task that was never measured."""
        time_s = np.full(len(table), np.nan)
        of_workers = terms(table.workers.astype(np.float64))
        of_vcpus = terms(parallelism(table))
        for row, (task, machine) in enumerate(zip(table.task, machine_of(table), strict=True)):
            if (str(task), machine) in self.by_machine:
                time_s[row] = of_workers[row] @ self.by_machine[str(task), machine]
            elif str(task) in self.by_task:
                time_s[row] = of_vcpus[row] @ self.by_task[str(task)]
        time_s = np.where(time_s > 0, time_s, np.nan)
        if self.target is Objective.TIME:
            return time_s
        return np.asarray(time_s * table.price_usd_per_hour * table.workers / SECONDS_PER_HOUR)


@dataclass(frozen=True, slots=True)
class Ernest:
    """Per application and machine over the number of workers. It knows nothing of tasks that were never run."""

    target: Objective
    name: str = "ernest"

    def fit(self, table: Table, *, seed: int) -> FittedErnest:
        """Learn from times, also where the target is cost: cost is price times machines times time."""
        del seed
        rows = training_rows(table, Objective.TIME)
        machines = np.array(machine_of(rows))
        of_workers, of_vcpus = terms(rows.workers.astype(np.float64)), terms(parallelism(rows))
        by_task, by_machine = {}, {}
        for task in np.unique(rows.task):
            mine = rows.task == task
            by_task[str(task)] = fit_terms(of_vcpus[mine], rows.time_s[mine])
            for machine in np.unique(machines[mine]):
                here = mine & (machines == machine)
                if here.sum() >= LEAST_ROWS:
                    by_machine[str(task), str(machine)] = fit_terms(of_workers[here], rows.time_s[here])
        return FittedErnest(self.target, by_machine, by_task)

"""Cost ratio: billed cost over price times machines times time, fitted to billed costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from schemas.predictions import Objective
from services.advisor.core.arrays import FloatArray, TextArray
from services.advisor.core.table import SECONDS_PER_HOUR, Table

SHRINKAGE: Final = 4.0
"""Records of a machine at which its own ratio has the same weight as that of all machines."""
_MACHINE: Final = "config.instance_type="
_EXACT: Final = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class CostRatio:
    """Mean logarithms of the ratio: disks, start-up, rounding to the minute."""

    overall: float = 0.0
    by_machine: Mapping[str, float] = field(default_factory=dict)
    """Shrunk to `overall`."""

    @staticmethod
    def of(table: Table) -> CostRatio:
        """Fit to rows with cost, time and price; the ratio is 1 if there are none."""
        known = table.completed(Objective.COST) & (table.time_s > 0) & (table.price_usd_per_hour > 0)
        if not known.any():
            return CostRatio()
        rows = table.select(known)
        price = rows.price_usd_per_hour * rows.workers * rows.time_s / SECONDS_PER_HOUR
        values, machine = np.log(rows.cost_usd / price), machines(rows)
        overall, spread = float(values.mean()), float(values.std())
        by_machine = {}
        for one in np.unique(machine[machine != ""]):
            mine = values[machine == one]
            share = 1.0 if mine.std() < _EXACT + 0.01 * spread else len(mine) / (len(mine) + SHRINKAGE)
            by_machine[str(one)] = float(overall + share * (mine.mean() - overall))
        return CostRatio(overall, by_machine)

    def predict(self, table: Table) -> FloatArray:
        """Return the ratio of each row, shape ``(rows,)``."""
        return np.asarray(np.exp([self.by_machine.get(one, self.overall) for one in machines(table)]))


def machines(table: Table) -> TextArray:
    """Return each row's machine by name; empty if unknown to the table's encoder."""
    columns = table.columns(_MACHINE)
    if not len(columns):
        return np.full(len(table), "", dtype=np.str_)
    flags = table.features[:, columns] > 0.5
    names = np.array([table.feature_names[at].removeprefix(_MACHINE) for at in columns])
    return np.where(flags.any(axis=1), names[flags.argmax(axis=1)], "")

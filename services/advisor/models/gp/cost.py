"""Cost model: price times machines, with a remainder fitted to billed costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from schemas.predictions import Objective
from services.advisor.core.arrays import FloatArray, TextArray
from services.advisor.core.table import SECONDS_PER_HOUR, Table

SHRINKAGE: Final = 4.0
"""Records of a machine at which its own remainder has the same weight as that of all machines."""
_MACHINE: Final = "config.instance_type="
_EXACT: Final = 1e-6


@dataclass(frozen=True, slots=True, eq=False)
class Rates:
    """Logarithms of dollars per second and machine: the list price plus a remainder; fitted if there is no price."""

    remainder: float
    """Mean logarithm of cost over price x machines x time: disks, start-up, rounding to the minute."""
    remainder_of: dict[str, float]
    """By machine, shrunk to `remainder`."""
    variance: float
    """Of a record's remainder around its machine's."""
    rate_of: dict[str, float]
    """By machine: the paid rate, for unknown prices."""
    rate_variance: float

    @staticmethod
    def of(table: Table) -> Rates | None:
        """Fit to rows with cost and time; None if there are none."""
        known = table.completed(Objective.COST) & np.isfinite(table.time_s) & (table.time_s > 0)
        if not known.any():
            return None
        rows = table.select(known)
        machine = machines(rows)
        paid = np.log(rows.cost_usd / (rows.time_s * rows.workers))
        rate_of, rate_variance = _shrunk(machine, paid)
        rate_of.pop("")
        listed = np.isfinite(rows.price_usd_per_hour) & (rows.price_usd_per_hour > 0)
        if not listed.any():
            return Rates(0.0, {}, rate_variance, rate_of, rate_variance)
        more = paid[listed] - np.log(rows.price_usd_per_hour[listed] / SECONDS_PER_HOUR)
        remainder_of, variance = _shrunk(machine[listed], more)
        return Rates(remainder_of.pop(""), remainder_of, variance, rate_of, rate_variance)

    def logarithms(self, table: Table) -> tuple[FloatArray, FloatArray]:
        """Return means and variances of the logarithm of dollars per second of the whole job, shape ``(rows,)``.

        NaN if neither the price nor a paid rate of the machine is known.
        """
        machine = machines(table)
        listed = np.isfinite(table.price_usd_per_hour) & (table.price_usd_per_hour > 0)
        price = np.log(np.where(listed, table.price_usd_per_hour, 1.0) / SECONDS_PER_HOUR)
        with_price = price + np.array([self.remainder_of.get(one, self.remainder) for one in machine])
        without = np.array([self.rate_of.get(one, np.nan) for one in machine])
        mean = np.where(listed, with_price, without) + np.log(table.workers)
        return mean, np.where(listed, self.variance, self.rate_variance)

    def ratio(self, table: Table) -> FloatArray:
        """Return billed cost over price x machines x time, shape ``(rows,)``."""
        return np.asarray(np.exp([self.remainder_of.get(one, self.remainder) for one in machines(table)]))


def machines(table: Table) -> TextArray:
    """Return each row's machine by name; empty if unknown to the table's encoder."""
    columns = table.columns(_MACHINE)
    if not len(columns):
        return np.full(len(table), "", dtype=np.str_)
    flags = table.features[:, columns] > 0.5
    names = np.array([table.feature_names[at].removeprefix(_MACHINE) for at in columns])
    return np.where(flags.any(axis=1), names[flags.argmax(axis=1)], "")


def _shrunk(machine: TextArray, values: FloatArray) -> tuple[dict[str, float], float]:
    """Return means by machine, shrunk to that of all (under the empty name), and the variance around them."""
    overall = float(values.mean())
    spread = float(values.std())
    means = {"": overall}
    residuals = np.empty_like(values)
    for one in np.unique(machine):
        rows = machine == one
        own = float(values[rows].mean())
        exact = float(values[rows].std()) < _EXACT + 0.01 * spread
        share = 1.0 if exact else rows.sum() / (rows.sum() + SHRINKAGE)
        if one:
            means[str(one)] = float(overall + share * (own - overall))
        residuals[rows] = values[rows] - means.get(str(one), overall)
    return means, float(np.mean(residuals**2))

"""Measured durations: a job that ran before on the very configuration is answered with what it took there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from services.advisor.core.arrays import FloatArray
from services.advisor.core.encoder import TASK
from services.advisor.core.table import Table


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredDurations:
    """Durations by task, its features and configuration."""

    time_s: Mapping[tuple[str, str, bytes], float]
    """Geometric mean of the repeats, by task, configuration key and the bytes of the task's features."""

    @staticmethod
    def of(ran: Table) -> MeasuredDurations:
        """Take finished rows without repeats."""
        return MeasuredDurations(dict(zip(_identities(ran), ran.time_s.tolist(), strict=True)))

    def logarithms(self, table: Table) -> FloatArray:
        """Return the logarithm of each row's measured duration, shape ``(rows,)``; NaN where it was not measured."""
        found = [self.time_s.get(one, np.nan) for one in _identities(table)]
        return np.log(np.array(found, dtype=np.float64))


def _identities(table: Table) -> list[tuple[str, str, bytes]]:
    features = np.nan_to_num(table.features[:, table.columns(TASK)])
    rows = zip(table.task.tolist(), table.configuration_key.tolist(), features, strict=True)
    return [(task, key, values.tobytes()) for task, key, values in rows]

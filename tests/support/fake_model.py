"""A trained model that follows a simple law, so that answers can be computed by hand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from schemas.predictions import Contribution, Neighbour
from services.advisor.core.arrays import FloatArray, IntArray
from services.advisor.core.encoder import Encoder
from services.advisor.core.table import Table
from services.advisor.core.trained_model import Predictions, ProposedRun

COLUMNS = ("config.batch_size", "config.memory_gb", "config.vcpu", "config.workers")


@dataclass(frozen=True)
class FakeModel:
    """3,600 s of one core's work, divided among all; half and twice as the interval.

    Less than 4 GB does not fit, and more than 8 workers are not known.
    """

    level: float = 0.9
    encoder: Encoder = Encoder(COLUMNS)  # noqa: RUF009 - frozen

    def predict(self, table: Table) -> Predictions:
        workers = table.feature("config.workers")
        median = 3600.0 / (table.feature("config.vcpu") * workers)
        feasible = np.where(table.feature("config.memory_gb") < 4, 0.1, 1.0)
        unknown = tuple("more workers than anybody has tried" if count > 8 else "" for count in workers)
        outside = tuple((f"workers {count:g} (measured: 1 to 8)",) if count > 8 else () for count in workers)
        time_s = np.stack([median / 2, median, median * 2], axis=1)
        return Predictions(time_s, feasible, np.ones(len(table)), unknown, outside)

    def contributions(self, table: Table, rows: IntArray) -> list[tuple[Contribution, ...]]:
        workers = table.feature("config.workers")[rows]
        return [(Contribution(feature="workers", value=f"{count:g}", factor=1 / count),) for count in workers]

    def neighbours(self, table: Table, count: int) -> tuple[Neighbour, ...]:
        return (Neighbour(task="like-it", distance=0.5, records=7),)[:count]

    def propose(self, table: Table, predictions: Predictions, values: FloatArray, count: int) -> list[ProposedRun]:
        rows = [row for row in np.argsort(values).tolist() if np.isfinite(values[row])]
        return [ProposedRun(row, "to be sure") for row in rows[:count]]

"""Ours as the service needs it: predictions with intervals, feasibility, reasons, known tasks and proposals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from schemas.jobs import JobRecord
from schemas.predictions import Contribution, Neighbour, Objective
from schemas.runs import RunProfile
from services.advisor.core.advising import Outlook, Worthwhile
from services.advisor.core.arrays import FloatArray, IntArray
from services.advisor.core.encoder import Encoder
from services.advisor.core.extent import Extent
from services.advisor.core.ours.decision import best_together
from services.advisor.core.ours.model import FittedOurs, Ours
from services.advisor.core.ours.reasons import KnownTasks, Middles, contributions
from services.advisor.core.table import Table, build

LEVEL: Final = 0.9
LEAST_ROWS: Final = 8
SPAN_UNKNOWN: Final = 25.0
"""An interval whose ends differ by more than this factor is no answer."""
STRANGER: Final = "all known tasks are of one kind, and this is another: intervals are not calibrated for that"
NO_LOCAL_RUN: Final = (
    "how long the job takes is not known without a local run (turnbuckle profile): the {:.0f}-fold interval says nothing"
)
REASONS: Final = 8


@dataclass(frozen=True, slots=True, eq=False)
class OurAdviser:
    """What the service asks."""

    level: float
    encoder: Encoder
    fitted: FittedOurs
    middles: Middles
    tasks: KnownTasks
    extent: Extent

    def outlook(self, table: Table) -> Outlook:
        """Return predictions for one task's rows."""
        time_s = self.fitted.aimed_at(Objective.TIME).outlook(table, self.level)
        span = time_s[:, 2] / time_s[:, 0]
        one_kind = self.fitted.around.one_kind
        strange = STRANGER if one_kind is not None and len(table) and one_kind.is_stranger(table) else ""
        wide = f"the {self.level:.0%} interval spans a factor of {{:.0f}}"
        if len(table) and self.fitted.around.level.doubt(table):
            wide = NO_LOCAL_RUN
        unknown = tuple(
            far or (wide.format(one) if one > SPAN_UNKNOWN else strange)
            for far, one in zip(self.extent.outside(table), span.tolist(), strict=True)
        )
        ratio = self.fitted.around.rates.ratio(table) if self.fitted.around.rates is not None else np.ones(len(table))
        return Outlook(time_s, self.fitted.feasible(table), ratio, unknown, self.middles.outside(table))

    def contributions(self, table: Table, rows: IntArray) -> list[tuple[Contribution, ...]]:
        """Return what makes each of these rows slower or faster, strongest first."""
        if not len(rows):
            return []
        return contributions(self.fitted.aimed_at(Objective.TIME), self.middles, table.select(rows), REASONS)

    def neighbours(self, table: Table, count: int) -> tuple[Neighbour, ...]:
        """Return the known tasks that resemble the table's, nearest first."""
        return self.tasks.nearest(self.fitted, table, count)

    def propose(self, table: Table, outlook: Outlook, values: FloatArray, count: int) -> list[Worthwhile]:
        """Return runs that together find the best configuration: each next one for where the former disappoint."""
        rows = np.flatnonzero(np.isfinite(values) & (values > 0))
        if not len(rows):
            return []
        beliefs = self.fitted.aimed_at(Objective.TIME).beliefs(table.select(rows))
        shift = np.log(values[rows]) - np.log(outlook.time_s[rows, 1])
        found = best_together(beliefs.moved(shift), count, self.fitted.seed)
        return [Worthwhile(int(rows[at]), _reason(found, number)) for number, (at, _) in enumerate(found)]


def _reason(found: list[tuple[int, float]], number: int) -> str:
    after = found[number][1]
    if number == 0:
        return f"the best median: expected at {after:.2f} x the optimum"
    before = found[number - 1][1]
    return f"for where the former disappoint: best expected at {after:.2f} instead of {before:.2f} x the optimum"


@dataclass(frozen=True, slots=True)
class OurAlgorithm:
    """Learns an `OurAdviser`."""

    level: float = LEVEL
    name: str = "ours"

    def fit(self, records: Sequence[JobRecord], profiles: Mapping[str, RunProfile], *, seed: int) -> OurAdviser:
        """Learn.

        Raises:
            ValueError: Too few jobs ran through.
        """
        table, encoder = build(records, profiles)
        rows = int(table.completed(Objective.TIME).sum())
        if rows < LEAST_ROWS:
            raise ValueError(f"{rows} finished jobs are known: at least {LEAST_ROWS} are needed to learn from")
        fitted = Ours(Objective.TIME).fit(table, seed=seed)
        return OurAdviser(self.level, encoder, fitted, Middles.of(table), KnownTasks.of(fitted), Extent.of(table))

"""Ours as the service needs it: predictions with intervals, feasibility, reasons, known tasks and proposals."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from schemas.jobs import JobRecord
from schemas.predictions import Contribution, Neighbour, Objective
from schemas.runs import RunEnd, RunProfile
from services.advisor.core.advising import Outlook, Worthwhile
from services.advisor.core.anchor import AnchorKind, anchor_of
from services.advisor.core.arrays import FloatArray, IntArray
from services.advisor.core.encoder import Encoder
from services.advisor.core.extent import Extent
from services.advisor.core.table import Table, build
from services.advisor.models.gp.calibration import LeftOutErrors
from services.advisor.models.gp.decision import best_together
from services.advisor.models.gp.model import FittedOurs, Ours
from services.advisor.models.gp.observations import has_anchor
from services.advisor.models.gp.reasons import KnownTasks, Middles, contributions

LEVEL: Final = 0.9
LEAST_ROWS: Final = 8
SPAN_UNKNOWN: Final = 25.0
"""An interval whose ends differ by more than this factor is no answer."""
STRANGER: Final = "all known tasks are of one kind, and this is another: intervals are not calibrated for that"
NO_LOCAL_RUN: Final = "without a local run (turnbuckle profile) it is unknown how long the job takes"
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
    coverage: Mapping[AnchorKind, float]
    """Of intervals at `level`, see `Outlook.coverage`."""

    def outlook(self, table: Table) -> Outlook:
        """Return predictions for one task's rows."""
        time_s = self.fitted.aimed_at(Objective.TIME).outlook(table, self.level)
        span = time_s[:, 2] / time_s[:, 0]
        one_kind = self.fitted.around.one_kind
        strange = STRANGER if one_kind is not None and len(table) and one_kind.is_stranger(table) else ""
        wide = f"the {self.level:.0%} interval spans a factor of {{:.0f}}"
        if len(table) and self.fitted.around.level.doubt(table):
            wide = NO_LOCAL_RUN  # its interval spans thousands
        unknown = tuple(
            far or (wide.format(one) if one > SPAN_UNKNOWN else strange)
            for far, one in zip(self.extent.outside(table), span.tolist(), strict=True)
        )
        ratio = self.fitted.around.rates.ratio(table) if self.fitted.around.rates is not None else np.ones(len(table))
        return Outlook(
            time_s, self.fitted.feasible(table), ratio, unknown, self.middles.outside(table), self._coverage(table)
        )

    def _coverage(self, table: Table) -> float | None:
        """Return what was measured on left-out tasks; of a known task it says nothing."""
        if not len(table) or str(table.task[0]) in self.tasks.points.names or not has_anchor(table).all():
            return None
        return self.coverage.get(AnchorKind.CUT if table.anchor_cut.any() else AnchorKind.FINISHED)

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
        return OurAdviser(
            self.level, encoder, fitted, Middles.of(table), KnownTasks.of(fitted), Extent.of(table),
            coverage_of(fitted.around.left_out, profiles, self.level),
        )  # fmt: skip


def coverage_of(errors: LeftOutErrors, profiles: Mapping[str, RunProfile], level: float) -> dict[AnchorKind, float]:
    """Return how often intervals held on left-out tasks, by the kind of local run that is asked with.

    Of local runs that were cut: where the same task has one that got to its end, the difference of what both say moves
    the task's errors, and the variance that the cut one is given widens its intervals.
    """
    whole, moves = _finished(profiles), defaultdict(list)
    for profile in profiles.values():
        anchor = anchor_of(profile.task, profile)
        if anchor.kind is AnchorKind.CUT and (whole_s := whole.get(profile.task.task)) is not None:
            moves[profile.task.task].append((math.log(whole_s / anchor.time_s), anchor.log_variance))
    known = {one: moves[one] for one in moves if one in errors.task}
    found = {AnchorKind.FINISHED: errors.held(level), AnchorKind.CUT: errors.moved(known).held(level)}
    return {kind: held for kind, held in found.items() if held is not None}


def _finished(profiles: Mapping[str, RunProfile]) -> dict[str, float]:
    return {one.task.task: one.duration_s for one in profiles.values() if one.end is RunEnd.FINISHED}

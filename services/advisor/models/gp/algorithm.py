"""The Gaussian process as a trained model: predictions, contributions, known tasks and proposed runs."""

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
from services.advisor.core.arrays import FloatArray, IntArray
from services.advisor.core.encoder import Encoder
from services.advisor.core.local_runs import as_record
from services.advisor.core.table import Table, build, concatenated
from services.advisor.core.trained_model import Predictions, ProposedRun
from services.advisor.core.training_range import TrainingRange
from services.advisor.core.whole_job_duration import LocalRunKind, whole_job_duration
from services.advisor.models.explanations import KnownTasks, Medians, contributions
from services.advisor.models.gp.gaussian_process import Posterior
from services.advisor.models.gp.observations import has_reference
from services.advisor.models.gp.predictor import GpPredictor

LEVEL: Final = 0.9
LEAST_ROWS: Final = 8
SPAN_UNKNOWN: Final = 25.0
"""Predictions whose interval spans more than this factor are reported as unknown."""
OUT_OF_DISTRIBUTION: Final = (
    "all known tasks are of one kind, and this is another: intervals are not calibrated for that"
)
NO_LOCAL_RUN: Final = "without a local run (turnbuckle profile) it is unknown how long the job takes"


@dataclass(frozen=True, slots=True, eq=False)
class GpModel:
    """A fitted predictor with training medians, known tasks, range and coverage."""

    level: float
    encoder: Encoder
    fitted: GpPredictor
    medians: Medians
    tasks: KnownTasks
    training_range: TrainingRange
    coverage: Mapping[LocalRunKind, float]
    """Of intervals at `level`, see `Predictions.coverage`."""
    seed: int

    def predict(self, table: Table) -> Predictions:
        """Return predictions for one task's rows."""
        time_s = self.fitted.quantiles(table, self.level)
        span = time_s[:, 2] / time_s[:, 0]
        one_kind = self.fitted.one_kind
        strange = (
            OUT_OF_DISTRIBUTION
            if one_kind is not None and len(table) and one_kind.is_out_of_distribution(table)
            else ""
        )
        wide = f"the {self.level:.0%} interval spans a factor of {{:.0f}}"
        local = "" if table.local_run is None else self.training_range.outside(table.local_run)[0]
        if local:
            local = f"the local run is {local} (turnbuckle profile --cpus, --workers, --batch-size)"
        elif len(table) and table.local_run is None and self.fitted.level.level_variance(table):
            wide = NO_LOCAL_RUN  # its interval spans thousands
        unknown = tuple(
            far or local or (wide.format(one) if one > SPAN_UNKNOWN else strange)
            for far, one in zip(self.training_range.outside(table), span.tolist(), strict=True)
        )
        return Predictions(
            time_s,
            self.fitted.feasibility.probability(table),
            self.fitted.cost_ratio.predict(table),
            unknown,
            self.medians.outside(table),
            self._coverage(table),
        )

    def _coverage(self, table: Table) -> float | None:
        """Return the coverage on left-out tasks; None for a known task, or without a reference."""
        if not len(table) or str(table.task[0]) in self.tasks.points.names:
            return None
        if table.local_run is not None:
            return self.coverage.get(LocalRunKind.ELSEWHERE)
        if not has_reference(table).all():
            return None
        return self.coverage.get(LocalRunKind.CUT if table.reference_cut.any() else LocalRunKind.FINISHED)

    def contributions(self, table: Table, rows: IntArray) -> list[tuple[Contribution, ...]]:
        """Return each row's features with their factor of the time, strongest first."""
        return contributions(self.fitted.log_medians, self.medians, table.select(rows))

    def neighbours(self, table: Table, count: int) -> tuple[Neighbour, ...]:
        """Return the known tasks nearest to the table's, nearest first."""
        return self.tasks.nearest(table, count)

    def propose(self, table: Table, predictions: Predictions, values: FloatArray, count: int) -> list[ProposedRun]:
        """Return runs that together minimise the expected regret, selected greedily."""
        rows = np.flatnonzero(np.isfinite(values) & (values > 0))
        if not len(rows):
            return []
        posterior = self.fitted.posterior(table.select(rows))
        shift = np.log(values[rows]) - np.log(predictions.time_s[rows, 1])
        found = select_jointly(posterior.shifted(shift), count, self.seed)
        return [ProposedRun(int(rows[at]), _reason(found, number)) for number, (at, _) in enumerate(found)]


def _reason(found: list[tuple[int, float]], number: int) -> str:
    after = found[number][1]
    if number == 0:
        return f"the best median: expected at {after:.2f} x the optimum"
    before = found[number - 1][1]
    return f"for where the former disappoint: best expected at {after:.2f} instead of {before:.2f} x the optimum"


@dataclass(frozen=True, slots=True)
class GpAlgorithm:
    """Fits a `GpModel`."""

    level: float = LEVEL
    name: str = "gp"

    def fit(self, records: Sequence[JobRecord], profiles: Mapping[str, RunProfile], *, seed: int) -> GpModel:
        """Fit to records and local runs.

        Raises:
            ValueError: Too few jobs finished.
        """
        table, encoder = build(records, profiles)
        rows = int(table.completed(Objective.TIME).sum())
        if rows < LEAST_ROWS:
            raise ValueError(f"{rows} finished jobs are known: at least {LEAST_ROWS} are needed to learn from")
        fitted = GpPredictor.fit(with_local_runs(table, encoder, records, profiles), seed=seed)
        design = fitted.process.design
        known = KnownTasks.of(design.kernel.tasks, design.tasks, design.task_of)
        return GpModel(
            self.level,
            encoder,
            fitted,
            Medians.of(table),
            known,
            TrainingRange.of(table),
            coverage_of(fitted, profiles, self.level),
            seed,
        )


def with_local_runs(
    table: Table, encoder: Encoder, records: Sequence[JobRecord], profiles: Mapping[str, RunProfile]
) -> Table:
    """Return the table with a row for each finished local run that a record names: it is a measured job, too."""
    tasks = {one.local_run: one.task for one in records if one.local_run in profiles}
    taken = set(table.task[table.is_reference].tolist())
    found = [
        as_record(profiles[run], task)
        for run, task in sorted(tasks.items())
        if profiles[run].end is RunEnd.FINISHED and task.task not in taken
    ]
    return concatenated([table, build(found, profiles, encoder=encoder)[0]]) if found else table


def coverage_of(fitted: GpPredictor, profiles: Mapping[str, RunProfile], level: float) -> dict[LocalRunKind, float]:
    """Return the empirical coverage of intervals on left-out tasks, by kind of local run.

    For local runs that were stopped early: if the same task has a finished one, the difference of the two references
    shifts the task's errors, and the stopped one's variance widens its intervals.
    """
    errors = fitted.left_out
    whole, moves = _finished(profiles), defaultdict(list)
    for profile in profiles.values():
        reference = whole_job_duration(profile.task, profile)
        if reference.kind is LocalRunKind.CUT and (whole_s := whole.get(profile.task.task)) is not None:
            moves[profile.task.task].append((math.log(whole_s / reference.time_s), reference.log_variance))
    known = {one: moves[one] for one in moves if one in errors.task}
    found = {LocalRunKind.FINISHED: errors.coverage(level), LocalRunKind.CUT: errors.shifted(known).coverage(level)}
    found[LocalRunKind.ELSEWHERE] = fitted.elsewhere.coverage(level)
    return {kind: held for kind, held in found.items() if held is not None}


def _finished(profiles: Mapping[str, RunProfile]) -> dict[str, float]:
    return {one.task.task: one.duration_s for one in profiles.values() if one.end is RunEnd.FINISHED}


DRAWS: Final = 512


def select_jointly(posterior: Posterior, count: int, seed: int) -> list[tuple[int, float]]:
    """Return runs whose best has the smallest expected regret, selected greedily.

    The first has the smallest median; each next one covers the cases in which the former are bad.

    Returns:
        Row, and the expected ratio of the best so far to the optimum (geometric mean).
    """
    draws = posterior.samples(DRAWS, seed)
    over = draws - draws.min(axis=1, keepdims=True)
    best = np.full(len(over), np.inf)
    chosen: list[tuple[int, float]] = []
    for _ in range(min(count, over.shape[1])):
        expected = np.minimum(best[:, None], over).mean(axis=0)
        expected[[row for row, _ in chosen]] = np.inf
        row = int(np.argmin(expected))
        chosen.append((row, float(np.exp(expected[row]))))
        best = np.minimum(best, over[:, row])
    return chosen

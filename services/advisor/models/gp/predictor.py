"""The Gaussian process with what is fitted beside it: level, cost ratio, calibration and feasibility."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from schemas.predictions import Objective
from services.advisor.core.arrays import FloatArray, IntArray, TextArray
from services.advisor.core.table import Table, concatenated
from services.advisor.models.gp.calibration import Calibration, LeftOutErrors
from services.advisor.models.gp.cost import CostRatio
from services.advisor.models.gp.feasibility import Feasibility
from services.advisor.models.gp.gaussian_process import (
    EXACT,
    GaussianProcess,
    KnownRows,
    MarginalLikelihood,
    Posterior,
    fit_process,
    left_out,
    most_likely,
)
from services.advisor.models.gp.kernel import Design, Kernel
from services.advisor.models.gp.measured import MeasuredDurations
from services.advisor.models.gp.observations import Level, design_of, has_reference, subsampled
from services.advisor.models.gp.out_of_distribution import OneKind
from services.advisor.models.gp.space import SIZE, configuration_space, task_space

LEARN_ROWS: Final = 800
"""Rows used to fit hyperparameters: the time grows with their cube."""
KEEP_ROWS: Final = 2_500
"""Rows that the posterior is conditioned on."""
_PLACES: Final = 8
"""Rows of each task that stand for a local run elsewhere when intervals are calibrated."""


@dataclass(frozen=True, slots=True, eq=False)
class GpPredictor:
    """The fitted predictor of time; questions are tables without outcomes, of any number of tasks."""

    process: GaussianProcess
    level: Level
    cost_ratio: CostRatio
    calibration: Calibration
    reference: Table | None
    """The row of the configuration that all local runs were made on, if it is in the table."""
    feasibility: Feasibility
    one_kind: OneKind | None
    left_out: LeftOutErrors
    """Of rows whose task's local run finished."""
    elsewhere: LeftOutErrors
    """Of rows beside another one of their task, in the place of a local run elsewhere."""
    measured: MeasuredDurations

    @staticmethod
    def fit(table: Table, *, seed: int) -> GpPredictor:
        """Fit to the finished rows; repeats of a configuration count as one.

        Raises:
            ValueError: No row finished.
        """
        ran = table.without_repeats()
        ran = ran.select(ran.completed(Objective.TIME))
        if not len(ran):
            raise ValueError("nothing to learn from: no job ran through")
        measured = MeasuredDurations.of(ran)
        ran = ran.select(subsampled(ran, KEEP_ROWS, seed))
        kernel = Kernel(configuration_space(ran), task_space(ran))
        level = Level.of(ran)
        targets = np.log(ran.time_s) - level.logarithms(ran)
        few = subsampled(ran, LEARN_ROWS, seed)
        likelihood = MarginalLikelihood(design_of(kernel, ran.select(few), level), targets[few])
        logarithms = most_likely(likelihood, kernel.prior()[0])
        design = design_of(kernel, ran, level)
        process = fit_process(design, targets, logarithms)
        errors, deviation, elsewhere = _left_out(process, ran, targets)
        known = np.isfinite(errors)
        finished = known & has_reference(ran) & ~ran.reference_cut
        return GpPredictor(
            process,
            level,
            CostRatio.of(table),
            Calibration.of(ran.task[known], errors[known] / deviation[known]),
            _reference(ran),
            Feasibility.of(table, seed),
            OneKind.of(kernel.tasks, design.tasks),
            LeftOutErrors(ran.task[finished], errors[finished], deviation[finished]),
            elsewhere,
            measured,
        )

    def predict(self, table: Table) -> FloatArray:
        """Return medians in seconds, shape ``(rows,)``."""
        return np.exp(self._answers(table)[0])

    def log_medians(self, table: Table) -> FloatArray:
        """Return the logarithms of the process' medians: without what was measured of the very configuration."""
        return self._by_row(table)[0]

    def quantiles(self, table: Table, level: float) -> FloatArray:
        """Return low ends, medians and high ends of the central interval, shape ``(rows, 3)``.

        Intervals are calibrated on left-out tasks.
        """
        mean, deviation = self._answers(table)
        calibration = self.calibration if table.local_run is None else self.elsewhere.calibration()
        half = calibration.factor(level) * deviation
        return np.exp(np.stack([mean - half, mean, mean + half], axis=1))

    def _answers(self, table: Table) -> tuple[FloatArray, FloatArray]:
        """Return means and standard deviations of logarithms: of what was measured, else by the process."""
        mean, deviation = self._by_row(table)
        measured = self.measured.logarithms(table)
        known = np.isfinite(measured)
        # Both the run that was measured and the one that is asked about vary.
        noise = self.process.value["noise.relative"] + self.process.value["noise.absolute"] / np.exp(2.0 * measured)
        return np.where(known, measured, mean), np.where(known, np.sqrt(2.0 * noise), deviation)

    def posterior(self, table: Table) -> Posterior:
        """Return the joint distribution of logarithms of seconds of the rows of one task."""
        placed, rows = self._placed(table), len(table)
        posterior = self.process.posterior(*self._asked(placed))
        # The local run's own configuration has ratio 1; the reference's error is common to all rows.
        common = np.outer(*(np.sqrt(self.level.reference_variance(placed)),) * 2)
        return Posterior(
            posterior.mean[:rows] + self.level.logarithms(placed), posterior.covariance[:rows, :rows] + common
        )

    def _by_row(self, table: Table) -> tuple[FloatArray, FloatArray]:
        """Return means and standard deviations of logarithms, shape ``(rows,)``."""
        mean, deviation = np.empty(len(table)), np.empty(len(table))
        for rows in _by_task(table.task):
            mine = self._placed(table.select(rows))
            one, spread = self.process.marginals(*self._asked(mine))
            mean[rows] = one[: len(rows)] + self.level.logarithms(mine)
            deviation[rows] = np.sqrt(spread[: len(rows)] ** 2 + self.level.reference_variance(mine))
        return mean, deviation

    def _asked(self, table: Table) -> tuple[Design, KnownRows]:
        """Return the design of one task's rows and of those that are known: the reference's, and a local run elsewhere.

        A local run elsewhere determines the task's level, which the reference's ratio of 1 does not have.
        """
        asked, local = self._with_reference(table), table.local_run
        known = np.flatnonzero(asked.is_reference & has_reference(asked))
        values, noise = np.zeros(len(known)), np.full(len(known), EXACT)
        level = np.full(len(asked), math.sqrt(self.level.level_variance(table)))
        if local is not None:
            asked = concatenated([asked, _elsewhere(table, local)])
            level = np.full(len(asked), 0.0 if self._is_known(table) else math.sqrt(self.level.variance))
            level[known] = 0.0
            known = np.append(known, len(asked) - 1)
            values = np.append(values, np.log(local.reference_time_s) - self.level.logarithms(table)[:1])
            noise = np.append(noise, local.reference_variance)
        return design_of(self.process.design.kernel, asked, self.level), KnownRows(known, values, noise, level)

    def _is_known(self, table: Table) -> bool:
        return bool(len(table)) and str(table.task[0]) in self.level.own

    def _placed(self, table: Table) -> Table:
        """Return the rows with what a local run elsewhere would probably have taken at the reference."""
        local = table.local_run
        if local is None or self._is_known(table) or not len(table):
            return table
        time_s = float(local.reference_time_s[0])
        if self.reference is not None:
            one = replace(table.select(np.array([0])), reference_time_s=local.reference_time_s, local_run=None)
            two = self._with_reference(_elsewhere(one, local))
            design = design_of(self.process.design.kernel, two, self.level)
            at_reference = KnownRows(np.array([1]), np.zeros(1), np.full(1, EXACT), np.zeros(2))
            time_s /= math.exp(self.process.marginals(design, at_reference)[0][0])
        features = table.features.copy()
        features[:, table.columns(SIZE)] = time_s
        return replace(table, features=features, reference_time_s=np.full(len(table), time_s))

    def _with_reference(self, table: Table) -> Table:
        """Return the rows with one of the reference's configuration, whose ratio is known, if there is none."""
        if self.reference is None or table.is_reference.any() or not has_reference(table).any():
            return table
        one = table.select(np.flatnonzero(has_reference(table))[:1])
        return concatenated([table, replace(_at(one, self.reference), is_reference=np.array([True]))])


def _at(row: Table, where: Table) -> Table:
    """Return one row at another one's configuration."""
    features, columns = row.features.copy(), row.columns("config.")
    features[:, columns] = where.features[:, columns]
    return replace(row, features=features, configuration_key=where.configuration_key)


def _elsewhere(table: Table, local: Table) -> Table:
    """Return the row of a local run elsewhere, of the task of these rows."""
    return replace(_at(table.select(np.array([0])), local), is_reference=np.array([False]))


def _by_task(task: TextArray) -> list[IntArray]:
    return [np.flatnonzero(task == one) for one in np.unique(task)]


def _reference(ran: Table) -> Table | None:
    """Return the row of the configuration that all local runs were made on; None where they differ."""
    references = np.flatnonzero(ran.is_reference)
    keys, machines = ran.configuration_key[references], ran.features[np.ix_(references, ran.columns("config."))]
    same = len(np.unique(keys)) == 1 and len(np.unique(np.nan_to_num(machines), axis=0)) == 1
    return ran.select(references[:1]) if same else None


def _left_out(
    process: GaussianProcess, ran: Table, targets: FloatArray
) -> tuple[FloatArray, FloatArray, LeftOutErrors]:
    """Return what each row is off by with its task left out, NaN for the local run's row, and beside another row.

    Returns:
        Errors and standard deviations, shape ``(rows,)``, and the same of pairs of a task's rows: by the difference of
        their logarithms, as the level of a task with a local run elsewhere is that run's alone.
    """
    errors, deviation = np.full(len(ran), np.nan), np.full(len(ran), np.nan)
    pairs: list[tuple[TextArray, FloatArray, FloatArray]] = []
    for rows in _by_task(ran.task):
        unseen = rows[~ran.is_reference[rows]]
        if len(unseen):
            posterior = left_out(process, targets, unseen)
            errors[unseen], deviation[unseen] = posterior.mean, posterior.standard_deviation()
            places = np.unique(np.linspace(0, len(unseen) - 1, _PLACES).astype(np.int64))
            pairs += [(ran.task[unseen[:-1]], *posterior.beside(place)) for place in places.tolist()]
    columns = zip(*pairs, strict=True) if pairs else ([ran.task[:0]], [targets[:0]], [targets[:0]])
    return errors, deviation, LeftOutErrors(*(np.concatenate(one) for one in columns))

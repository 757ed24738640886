"""The Gaussian process with what is fitted beside it: level, cost ratio, calibration and feasibility."""

from __future__ import annotations

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
from services.advisor.models.gp.space import configuration_space, task_space

LEARN_ROWS: Final = 800
"""Rows used to fit hyperparameters: the time grows with their cube."""
KEEP_ROWS: Final = 2_500
"""Rows that the posterior is conditioned on."""


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
        errors, deviation = _left_out(process, ran, targets)
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
        half = self.calibration.factor(level) * deviation
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
        design, references, extra = self._asked(table)
        posterior = self.process.posterior(design, extra).conditioned_on(references, np.zeros(len(references)), EXACT)
        rows = len(table)
        # The local run's own configuration has ratio 1; the reference's error is common to all rows.
        common = np.outer(*(np.sqrt(self.level.reference_variance(table)),) * 2)
        return Posterior(
            posterior.mean[:rows] + self.level.logarithms(table), posterior.covariance[:rows, :rows] + common
        )

    def _by_row(self, table: Table) -> tuple[FloatArray, FloatArray]:
        """Return means and standard deviations of logarithms, shape ``(rows,)``."""
        mean, deviation = np.empty(len(table)), np.empty(len(table))
        for rows in _by_task(table.task):
            mine = table.select(rows)
            one, spread = self.process.marginals(*self._asked(mine))
            mean[rows] = one[: len(rows)] + self.level.logarithms(mine)
            deviation[rows] = np.sqrt(spread[: len(rows)] ** 2 + self.level.reference_variance(mine))
        return mean, deviation

    def _asked(self, table: Table) -> tuple[Design, IntArray, float]:
        """Return the design of one task's rows, the local run's rows among them, and the level's variance."""
        asked = self._with_reference(table)
        design = design_of(self.process.design.kernel, asked, self.level)
        return design, np.flatnonzero(asked.is_reference & has_reference(asked)), self.level.level_variance(table)

    def _with_reference(self, table: Table) -> Table:
        """Return the rows with one of the local run's own configuration, whose ratio is known, if there is none."""
        if self.reference is None or table.is_reference.any() or not has_reference(table).any():
            return table
        one = table.select(np.flatnonzero(has_reference(table))[:1])
        columns = table.columns("config.")
        features = one.features.copy()
        features[:, columns] = self.reference.features[:, columns]
        key = self.reference.configuration_key
        one = replace(one, features=features, configuration_key=key, is_reference=np.array([True]))
        return concatenated([table, one])


def _by_task(task: TextArray) -> list[IntArray]:
    return [np.flatnonzero(task == one) for one in np.unique(task)]


def _reference(ran: Table) -> Table | None:
    references = np.flatnonzero(ran.is_reference)
    same = len(set(ran.configuration_key[references].tolist())) == 1
    return ran.select(references[:1]) if same else None


def _left_out(process: GaussianProcess, ran: Table, targets: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return errors and standard deviations of each row with its task left out; NaN for the local run's row."""
    errors, deviation = np.full(len(ran), np.nan), np.full(len(ran), np.nan)
    for rows in _by_task(ran.task):
        unseen = rows[~ran.is_reference[rows]]
        if len(unseen):
            posterior = left_out(process, targets, unseen)
            errors[unseen], deviation[unseen] = posterior.mean, posterior.standard_deviation()
    return errors, deviation

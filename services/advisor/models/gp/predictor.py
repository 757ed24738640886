"""The Gaussian process as regressor, ranker and sequential search (`models.model`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from schemas.predictions import Objective
from services.advisor.core.arrays import FloatArray, IntArray, TextArray
from services.advisor.core.table import Table, concatenated
from services.advisor.models.gp.acquisition import expected_improvement
from services.advisor.models.gp.boosting import LeftOut, Trees
from services.advisor.models.gp.calibration import Calibration, LeftOutErrors
from services.advisor.models.gp.cost import Rates
from services.advisor.models.gp.feasibility import Feasibility
from services.advisor.models.gp.gaussian_process import EXACT, GaussianProcess, Posterior, fit_process, left_out
from services.advisor.models.gp.kernel import Design, Kernel
from services.advisor.models.gp.likelihood import MarginalLikelihood, most_likely
from services.advisor.models.gp.observations import (
    Level,
    anchor_variance,
    design_of,
    has_anchor,
    subsampled,
)
from services.advisor.models.gp.out_of_distribution import OneKind
from services.advisor.models.gp.space import configuration_space, task_space
from services.advisor.models.model import best_measured, remaining, scores_of

LEARN_ROWS: Final = 800
"""Rows used to fit hyperparameters: the time grows with their cube."""
KEEP_ROWS: Final = 2_500
"""Rows that the posterior is conditioned on."""


@dataclass(frozen=True, slots=True)
class GpPredictor:
    """Fits the default predictor."""

    target: Objective = Objective.COST
    name: str = "gp"

    def fit(self, table: Table, *, seed: int) -> FittedGpPredictor:
        """Fit to the finished rows; repeats of a configuration count as one.

        Raises:
            ValueError: No row finished.
        """
        ran = table.without_repeats()
        ran = ran.select(ran.completed(Objective.TIME))
        if not len(ran):
            raise ValueError("nothing to learn from: no job ran through")
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
        rates = Rates.of(table)
        per_second = rates.logarithms(ran)[0] if rates is not None else np.full(len(ran), np.nan)
        extras = Extras(
            level, rates, _calibrated(ran.task, errors, deviation), _reference(ran),
            Feasibility.of(table, seed), Trees.of(LeftOut(ran, targets, targets - errors, per_second), seed),
            OneKind.of(ran, kernel.tasks, design.tasks), _measured(ran, errors, deviation),
        )  # fmt: skip
        return FittedGpPredictor(process, extras, self.target, seed)


@dataclass(frozen=True, slots=True, eq=False)
class Extras:
    """Fitted parts beside the process: level, rates, calibration, feasibility, trees."""

    level: Level
    rates: Rates | None
    calibration: Calibration
    reference: Table | None
    """The row of the configuration that all local runs were made on, if it is in the table."""
    feasibility: Feasibility
    trees: Trees
    one_kind: OneKind | None
    left_out: LeftOutErrors
    """Of rows whose task's local run finished."""


@dataclass(frozen=True, slots=True, eq=False)
class FittedGpPredictor:
    """The fitted predictor; questions are tables without outcomes, of any number of tasks."""

    process: GaussianProcess
    extras: Extras
    target: Objective
    seed: int

    def aimed_at(self, target: Objective) -> FittedGpPredictor:
        """Return the same predictor for a target."""
        return replace(self, target=target)

    def predict(self, table: Table) -> FloatArray:
        """Return medians, shape ``(rows,)``; NaN for a cost without any price."""
        return np.exp(self._by_row(table)[0])

    def quantiles(self, table: Table, level: float) -> FloatArray:
        """Return low ends, medians and high ends, shape ``(rows, 3)``."""
        mean, deviation = self._by_row(table)
        half = self.extras.calibration.factor(level) * deviation
        return np.exp(np.stack([mean - half, mean, mean + half], axis=1))

    def log_medians(self, table: Table) -> FloatArray:
        """Return the logarithms of `predict`."""
        return self._by_row(table)[0]

    def feasible(self, table: Table) -> FloatArray:
        """Return the probability that each row runs at all."""
        return self.extras.feasibility.probability(table)

    def interval(self, table: Table, level: float) -> tuple[FloatArray, FloatArray]:
        """Return the ends of the central interval, calibrated on left-out tasks."""
        ends = self.quantiles(table, level)
        return ends[:, 0], ends[:, 2]

    def score(self, table: Table) -> FloatArray:
        """Return negative logarithms of medians, shifted by the weighted trees; rows without a cost come last.

        For a task outside of the only known kind: the mean ranking's scores.
        """
        mean = self.log_medians(table)
        scores = scores_of(np.exp(mean + self._moves(table, mean)))
        if self.extras.one_kind is None:
            return scores
        for rows in _by_task(table.task):
            blind = self.extras.one_kind.scores(table.select(rows), self.target)
            scores[rows] = scores[rows] if blind is None else blind
        return scores

    def posterior(self, table: Table, measured: IntArray | None = None, values: FloatArray | None = None) -> Posterior:
        """Return the joint distribution of logarithms of the rows of one task.

        Args:
            table: Rows of one task.
            measured: Rows whose seconds or dollars (by `target`) are known.
            values: Their values; NaN if failed.
        """
        design, anchors, extra = self._asked(table)
        posterior = self.process.posterior(design, extra).conditioned_on(anchors, np.zeros(len(anchors)), EXACT)
        rate, variance = self._units(table)
        rows = len(table)
        # The local run's own configuration has ratio 1; the anchor's error is common to all rows.
        common = np.outer(*(np.sqrt(anchor_variance(table)),) * 2)
        posterior = Posterior(
            posterior.mean[:rows] + rate, posterior.covariance[:rows, :rows] + common + np.diag(variance)
        )
        if measured is None or values is None:
            return posterior
        return self._conditioned(posterior, measured, values)

    def _conditioned(self, posterior: Posterior, measured: IntArray, values: FloatArray) -> Posterior:
        ran = np.isfinite(values)
        return posterior.conditioned_on(measured[ran], np.log(values[ran]), EXACT)

    def _moves(self, table: Table, mean: FloatArray) -> FloatArray:
        return self.extras.trees.moves(table, mean - self._units(table)[0], self.target)

    def propose(self, table: Table, measured: IntArray, values: FloatArray) -> int:
        """Return the row to run next: first the best score, then the largest expected improvement.

        Raises:
            ValueError: Every row was run.
        """
        free = remaining(table, measured)
        if not np.isfinite(values).any():
            return int(free[int(np.argmax(self.score(table)[free]))])
        best = float(np.log(np.nanmin(values)))
        posterior = self.posterior(table)
        posterior = self._conditioned(posterior.shifted(self._moves(table, posterior.mean)), measured, values)
        gain = expected_improvement(posterior.mean[free], posterior.standard_deviation()[free], best)
        return int(free[int(np.argmax(np.nan_to_num(gain)))])

    def choose(self, table: Table, measured: IntArray, values: FloatArray) -> int:
        """Return the row to use: the best measured one; if none finished, the best-scored other."""
        if np.isfinite(values).any() or len(measured) == len(table):
            return best_measured(measured, values)
        return self.propose(table, measured, values)

    def _by_row(self, table: Table) -> tuple[FloatArray, FloatArray]:
        """Return means and standard deviations of logarithms, shape ``(rows,)``."""
        mean, deviation = np.empty(len(table)), np.empty(len(table))
        for rows in _by_task(table.task):
            mine = table.select(rows)
            one, spread = self.process.marginals(*self._asked(mine))
            rate, variance = self._units(mine)
            mean[rows] = one[: len(rows)] + rate
            deviation[rows] = np.sqrt(spread[: len(rows)] ** 2 + variance + anchor_variance(mine))
        return mean, deviation

    def _asked(self, table: Table) -> tuple[Design, IntArray, float]:
        """Return the design of one task's rows, the local run's rows among them, and the level's variance."""
        asked = self._with_reference(table)
        design = design_of(self.process.design.kernel, asked, self.extras.level)
        return design, np.flatnonzero(asked.is_anchor & has_anchor(asked)), self.extras.level.level_variance(table)

    def _units(self, table: Table) -> tuple[FloatArray, FloatArray]:
        """Return logarithms of the factors from ratios to seconds or dollars, and their variances."""
        seconds = self.extras.level.logarithms(table)
        if self.target is Objective.TIME:
            return seconds, np.zeros(len(table))
        if self.extras.rates is None:
            return np.full(len(table), np.nan), np.zeros(len(table))
        rate, variance = self.extras.rates.logarithms(table)
        return seconds + rate, np.nan_to_num(variance)

    def _with_reference(self, table: Table) -> Table:
        """Return the rows with one of the local run's own configuration, whose ratio is known, if there is none."""
        if self.extras.reference is None or table.is_anchor.any() or not has_anchor(table).any():
            return table
        one = table.select(np.flatnonzero(has_anchor(table))[:1])
        columns = table.columns("config.")
        features = one.features.copy()
        features[:, columns] = self.extras.reference.features[:, columns]
        key = self.extras.reference.configuration_key
        one = replace(one, features=features, configuration_key=key, is_anchor=np.array([True]))
        return concatenated([table, one])


def _by_task(task: TextArray) -> list[IntArray]:
    return [np.flatnonzero(task == one) for one in np.unique(task)]


def _reference(ran: Table) -> Table | None:
    anchors = np.flatnonzero(ran.is_anchor)
    same = len(set(ran.configuration_key[anchors].tolist())) == 1
    return ran.select(anchors[:1]) if same else None


def _left_out(process: GaussianProcess, ran: Table, targets: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return errors and standard deviations of each row with its task left out; NaN for the local run's row."""
    errors, deviation = np.full(len(ran), np.nan), np.full(len(ran), np.nan)
    for rows in _by_task(ran.task):
        unseen = rows[~ran.is_anchor[rows]]
        if len(unseen):
            posterior = left_out(process, targets, unseen)
            errors[unseen], deviation[unseen] = posterior.mean, posterior.standard_deviation()
    return errors, deviation


def _measured(ran: Table, errors: FloatArray, deviation: FloatArray) -> LeftOutErrors:
    kept = np.isfinite(errors) & has_anchor(ran) & ~ran.anchor_cut
    return LeftOutErrors(ran.task[kept], errors[kept], deviation[kept])


def _calibrated(task: TextArray, errors: FloatArray, deviation: FloatArray) -> Calibration:
    known = np.isfinite(errors)
    return Calibration.of(task[known], errors[known] / deviation[known])

"""The thesis' networks behind the interfaces of the advisor's core."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np
import torch

from schemas.predictions import Objective
from services.advisor.core.arrays import BoolArray, FloatArray
from services.advisor.core.table import SECONDS_PER_HOUR, Table, training_rows
from services.advisor.models.thesis_bilstm.inputs import TABLE_4_1, Inputs
from services.advisor.models.thesis_bilstm.network import Architecture, Output
from services.advisor.models.thesis_bilstm.training import (
    EPOCHS,
    REGRESSION,
    LabelledRows,
    Trained,
    one_thread,
    restored,
    train,
    with_epochs,
)

THESIS_MEAN: Final[Mapping[Objective, float]] = {Objective.COST: 3.8, Objective.TIME: 1.6}
"""Dollars and hours: means of the thesis' training set (4.5.1)."""

_LEAST_ROWS: Final = 2
"""Batch normalisation needs a variance."""
_LEAST: Final = 1e-9
"""In hours or dollars. A prediction is positive, also that of a ReLU that is 0."""


class Unit(StrEnum):
    """Unit of time and cost in the network's targets."""

    THESIS = "thesis"
    """Hours and dollars."""
    MATCHED = "matched"
    """Such that the training rows' mean is that of the thesis' set: what its losses' deltas and rates were tuned for.

    For sets of jobs of other lengths, such as seconds instead of hours.
    """

    def of(self, objective: Objective, values: FloatArray) -> float:
        """Return hours or dollars per unit.

        Args:
            objective: What is predicted.
            values: Hours or dollars of the training rows, and of no other.
        """
        return 1.0 if self is Unit.THESIS else float(values.mean()) / THESIS_MEAN[objective]


def thesis_values(table: Table, objective: Objective) -> FloatArray:
    """Return hours or dollars."""
    return table.value(objective) / (SECONDS_PER_HOUR if objective is Objective.TIME else 1.0)


@dataclass(frozen=True, eq=False)
class FittedNetwork:
    """A trained network and its input scaling. Holds plain arrays, so that it can be pickled."""

    inputs: Inputs
    architecture: Architecture
    trained: Trained

    @property
    def curves(self) -> Mapping[str, FloatArray]:
        """Figure 4.4: training and validation loss, R2 and RMSE (classifiers: AUC) after each epoch.

        Losses are of the unit of training, RMSE is in hours or dollars. With validation rows, theirs too.
        """
        return self.trained.curves

    def before_output(self, table: Table) -> FloatArray:
        """Return the network's output before the last activation, shape ``(rows,)``."""
        if not len(table):
            return np.zeros(0)
        with one_thread(), torch.no_grad():
            before = restored(self.architecture, self.trained)(self.inputs.apply(table))
        return np.asarray(before.numpy().astype(np.float64))


@dataclass(frozen=True, eq=False)
class FittedRegressor(FittedNetwork):
    """A network of Figure 4.2."""

    unit: float
    """Hours or dollars per unit of the network's output: see `Unit`."""

    def predict(self, table: Table) -> FloatArray:
        """Return seconds or dollars."""
        before = torch.from_numpy(self.before_output(table))
        values = np.maximum(self.architecture.output.of(before).numpy() * self.unit, _LEAST)
        return np.asarray(values * (SECONDS_PER_HOUR if self.architecture.objective is Objective.TIME else 1.0))


@dataclass(frozen=True, slots=True)
class ThesisRegressor:
    """Predicts cost (Huber loss) or time (Poisson loss) as in Figure 4.2."""

    target: Objective
    name: str = "thesis bilstm"
    output: Output = Output.SOFTPLUS
    unit: Unit = Unit.THESIS
    statics: tuple[str, ...] = TABLE_4_1
    epochs: int = EPOCHS
    beta_1: float = 0.9

    def fit(self, table: Table, *, seed: int) -> FittedRegressor:
        """Learn from the rows whose value is known exactly.

        Raises:
            ValueError: There are fewer than two.
        """
        return self.fit_validated(table, None, seed=seed)

    def fit_validated(self, table: Table, validation: Table | None, *, seed: int) -> FittedRegressor:
        """Fit as `fit` does, and record the loss on validation rows; the weights are the same."""
        rows = at_least_two(training_rows(table, self.target))
        values = thesis_values(rows, self.target)
        unit, inputs = self.unit.of(self.target, values), Inputs.fit(rows, self.statics)
        architecture = Architecture.regression(self.target, self.output, inputs.static_width)
        recipe = with_epochs(REGRESSION[self.target], self.epochs, self.beta_1)
        training_set = labelled_rows(inputs, rows, values / unit)
        seen = completed_rows(validation, self.target)
        watch = None if seen is None else labelled_rows(inputs, seen, thesis_values(seen, self.target) / unit)
        trained = train(architecture, recipe, training_set, watch, seed)
        curves = {name: each * (unit if "RMSE" in name else 1.0) for name, each in trained.curves.items()}
        return FittedRegressor(inputs, architecture, Trained(trained.tensors, curves), unit)


def at_least_two(rows: Table) -> Table:
    """Return the rows. Raises ValueError: there are fewer than two."""
    if len(rows) < _LEAST_ROWS:
        raise ValueError("the thesis' networks need at least two jobs that ran through")
    return rows


def completed_rows(table: Table | None, objective: Objective) -> Table | None:
    """Return the rows with a known value, or None where there is none."""
    rows = None if table is None else table.select(table.completed(objective))
    return rows if rows is not None and len(rows) else None


def labelled_rows(inputs: Inputs, rows: Table, targets: FloatArray | BoolArray) -> LabelledRows:
    """Return the rows as a network's inputs, with their targets."""
    return LabelledRows(inputs.apply(rows), torch.from_numpy(targets.astype(np.float32)))

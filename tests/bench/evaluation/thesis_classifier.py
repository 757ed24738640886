"""The thesis' classifiers of top configurations (Figure 4.3): compared in the evaluation, never served."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from schemas.predictions import Objective
from services.advisor.core.arrays import BoolArray, FloatArray
from services.advisor.core.table import Table, training_rows
from services.advisor.models.thesis_bilstm.inputs import TABLE_4_1, Inputs
from services.advisor.models.thesis_bilstm.model import FittedNetwork, at_least_two, completed_rows, labelled_rows
from services.advisor.models.thesis_bilstm.network import Architecture, Norm, Output
from services.advisor.models.thesis_bilstm.training import EPOCHS, Loss, Recipe, train, with_epochs
from tests.bench.evaluation.labels import top_labels

CLASSIFICATION: Final = Recipe(Loss.CROSS_ENTROPY, 1e-4)
"""Section 4.5.1; it gives no epochs and no batch size for the classifiers: those of Table 4.3 are taken."""


def classification(objective: Objective, static_width: int) -> Architecture:
    """Figure 4.3: batch normalisation everywhere for cost, in the static part only for time."""
    norm = Norm.STATIC if objective is Objective.TIME else Norm.EVERYWHERE
    return Architecture(objective, Output.SIGMOID, norm, static_width)


@dataclass(frozen=True, eq=False)
class FittedClassifier(FittedNetwork):
    """A network of Figure 4.3."""

    def probability(self, table: Table) -> FloatArray:
        """Return the sigmoid's output."""
        return np.asarray(torch.sigmoid(torch.from_numpy(self.before_output(table))).numpy())

    def score(self, table: Table) -> FloatArray:
        """Return the probability's log odds: the same order, without ties where the sigmoid saturates."""
        return self.before_output(table)


@dataclass(frozen=True, slots=True)
class ThesisClassifier:
    """Classifies top configurations as in Figure 4.3."""

    target: Objective
    name: str = "thesis classifier"
    statics: tuple[str, ...] = TABLE_4_1
    epochs: int = EPOCHS
    beta_1: float = 0.9

    def fit(self, table: Table, *, seed: int) -> FittedClassifier:
        """Learn the labels of the rows whose value is known: top five of their task and within 1.5 times its minimum.

        Raises:
            ValueError: There are fewer than two rows.
        """
        return self.fit_validated(table, None, seed=seed)

    def fit_validated(self, table: Table, validation: Table | None, *, seed: int) -> FittedClassifier:
        """Fit as `fit` does, and record the loss on validation rows; the weights are the same."""
        rows = at_least_two(training_rows(table, self.target))
        inputs = Inputs.fit(rows, self.statics)
        architecture = classification(self.target, inputs.static_width)
        recipe = with_epochs(CLASSIFICATION, self.epochs, self.beta_1)
        training_set = labelled_rows(inputs, rows, _labels(rows, self.target))
        seen = completed_rows(validation, self.target)
        watch = None if seen is None else labelled_rows(inputs, seen, _labels(seen, self.target))
        return FittedClassifier(inputs, architecture, train(architecture, recipe, training_set, watch, seed))


def _labels(rows: Table, objective: Objective) -> BoolArray:
    return top_labels(rows.task, rows.value(objective))

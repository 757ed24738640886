"""How the networks are trained: Table 4.3 and section 4.5.1, with the curves of Figure 4.4."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import numpy as np
import torch
from sklearn.metrics import r2_score, roc_auc_score, root_mean_squared_error
from torch.nn import functional

from schemas.predictions import Objective
from services.advisor.core.arrays import AnyArray, FloatArray
from services.advisor.models.thesis_bilstm.inputs import Rows
from services.advisor.models.thesis_bilstm.network import Architecture, Network, Output, initialised

EPOCHS: Final = 400
BATCH_ROWS: Final = 32
HUBER_DELTA: Final = 1.0
_POISSON_EPSILON: Final = 1e-8


class Loss(StrEnum):
    """The loss function."""

    HUBER = "huber"
    POISSON = "poisson"
    CROSS_ENTROPY = "cross_entropy"

    def of(self, output: Output, before: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean over rows.

        Args:
            output: The network's last activation.
            before: The network's output before that activation.
            targets: The expected outputs.
        """
        if self is Loss.CROSS_ENTROPY:  # of the sigmoid, in the form that does not saturate
            return functional.binary_cross_entropy_with_logits(before, targets)
        predicted = output.of(before)
        if self is Loss.HUBER:
            return functional.huber_loss(predicted, targets, delta=HUBER_DELTA)
        # the output is the mean itself and not its logarithm, which torch would take it for
        return functional.poisson_nll_loss(predicted, targets, log_input=False, eps=_POISSON_EPSILON)


@dataclass(frozen=True, slots=True)
class Recipe:
    """Hyperparameters of a training, with Adam."""

    loss: Loss
    learning_rate: float
    epochs: int = EPOCHS
    batch_rows: int = BATCH_ROWS
    beta_1: float = 0.9
    """The thesis' text gives none; its slides say 0.5."""


REGRESSION: Final[Mapping[Objective, Recipe]] = {
    Objective.COST: Recipe(Loss.HUBER, 1e-4),
    Objective.TIME: Recipe(Loss.POISSON, 8e-4),
}
"""Table 4.3."""


@dataclass(frozen=True, eq=False)
class LabelledRows:
    """Rows and their targets."""

    rows: Rows
    targets: torch.Tensor
    """Shape ``(rows,)``: hours, dollars, or labels of 0 and 1."""


@dataclass(frozen=True, eq=False)
class Trained:
    """Weights and curves after a training."""

    tensors: Mapping[str, AnyArray]
    curves: Mapping[str, FloatArray]


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute in one thread, so that sums are the same everywhere; then as before.

    The networks are so small that a second thread gains nothing.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def batches(count: int, size: int, random: torch.Generator) -> list[torch.Tensor]:
    """Return a random partition of rows; a last batch of a single row, of which there is no variance, joins another."""
    parts = list(torch.split(torch.randperm(count, generator=random), size))
    if len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    return parts


def train(
    architecture: Architecture, recipe: Recipe, training_set: LabelledRows, validation: LabelledRows | None, seed: int
) -> Trained:
    """Train a new network.

    Args:
        architecture: Of the network.
        recipe: Hyperparameters of the training.
        training_set: At least two rows.
        validation: Validation rows: in the curves only; not used for training or early stopping. The weights are
            those after the last epoch.
        seed: Of the initial weights and of the order of rows.
    """
    random = torch.Generator().manual_seed(seed)
    with one_thread(), torch.enable_grad():
        network = initialised(architecture, random)
        optimizer = torch.optim.Adam(
            network.parameters(), recipe.learning_rate, betas=(recipe.beta_1, 0.999), fused=True
        )
        measured: list[dict[str, float]] = []
        for _ in range(recipe.epochs):
            network.train()
            for batch in batches(len(training_set.rows), recipe.batch_rows, random):
                optimizer.zero_grad()
                before = network(training_set.rows.take(batch))
                loss = recipe.loss.of(network.output, before, training_set.targets[batch])
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
            measured.append(figures(network, recipe.loss, {"training": training_set, "validation": validation}))
        names = measured[0] if measured else {}
        curves = {name: np.array([one[name] for one in measured]) for name in names}
        return Trained({name: values.numpy().copy() for name, values in network.state_dict().items()}, curves)


def figures(network: Network, loss: Loss, sets: Mapping[str, LabelledRows | None]) -> dict[str, float]:
    """Return loss with R2 and RMSE (of a classifier: the area under the ROC curve) of each set, in evaluation mode."""
    network.eval()
    found: dict[str, float] = {}
    with torch.no_grad():
        for name, training_set in sets.items():
            if training_set is None:
                continue
            before = network(training_set.rows)
            found[f"{name} loss"] = float(loss.of(network.output, before, training_set.targets))
            actual = training_set.targets.numpy().astype(np.float64)
            predicted = network.output.of(before).numpy().astype(np.float64)
            if loss is Loss.CROSS_ENTROPY:
                both = len(np.unique(actual)) == 2
                found[f"{name} AUC"] = float(roc_auc_score(actual, predicted)) if both else float("nan")
            else:
                found[f"{name} R2"] = float(r2_score(actual, predicted)) if np.ptp(actual) > 0 else float("nan")
                found[f"{name} RMSE"] = float(root_mean_squared_error(actual, predicted))
    return found


def restored(architecture: Architecture, trained: Trained) -> Network:
    """Return the network in evaluation mode."""
    with torch.device("meta"):
        network = Network(architecture)
    network.to_empty(device="cpu")
    network.load_state_dict({name: torch.from_numpy(values.copy()) for name, values in trained.tensors.items()})
    return network.eval()


def with_epochs(recipe: Recipe, epochs: int, beta_1: float) -> Recipe:
    """Return the recipe with other epochs and momentum."""
    return replace(recipe, epochs=epochs, beta_1=beta_1)

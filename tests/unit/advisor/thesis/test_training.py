"""How the networks are trained: Table 4.3, seeds, dying outputs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from schemas.predictions import Objective
from services.advisor.core.encoder import SERIES_CHANNELS, SERIES_STEPS
from services.advisor.models.thesis_bilstm.inputs import Rows
from services.advisor.models.thesis_bilstm.network import Architecture, Output, initialised
from services.advisor.models.thesis_bilstm.training import (
    BATCH_ROWS,
    EPOCHS,
    REGRESSION,
    LabelledRows,
    Loss,
    Recipe,
    Trained,
    batches,
    restored,
    train,
)
from tests.bench.evaluation.thesis_classifier import CLASSIFICATION

WIDTH = 6


def _training_set(count: int = 24) -> LabelledRows:
    """Rows without series, so that it is quick; the target is 2 to 6."""
    random = torch.Generator().manual_seed(1)
    static = torch.randn(count, WIDTH, generator=random)
    rows = Rows(static, torch.zeros(0, SERIES_STEPS, len(SERIES_CHANNELS)), torch.full((count,), -1))
    return LabelledRows(rows, 4.0 + 2.0 * torch.tanh(static[:, 0]))


def _architecture(output: Output, objective: Objective = Objective.COST) -> Architecture:
    return Architecture.regression(objective, output, WIDTH)


def _said(architecture: Architecture, trained: Trained, training_set: LabelledRows) -> torch.Tensor:
    with torch.no_grad():
        return architecture.output.of(restored(architecture, trained)(training_set.rows))


def test_hyperparameters_are_those_of_table_4_3() -> None:
    assert REGRESSION[Objective.COST] == Recipe(Loss.HUBER, 1e-4, epochs=400, batch_rows=32)
    assert REGRESSION[Objective.TIME] == Recipe(Loss.POISSON, 8e-4, epochs=400, batch_rows=32)
    assert Recipe(Loss.CROSS_ENTROPY, 1e-4, epochs=400, batch_rows=32) == CLASSIFICATION
    assert (EPOCHS, BATCH_ROWS) == (400, 32)


def test_losses_by_hand() -> None:
    before, targets = torch.tensor([0.5, 4.0]), torch.tensor([1.0, 1.0])
    # Huber, delta 1: 0.5^2 / 2 = 0.125 and 1 (3 - 1/2) = 2.5; mean 1.3125
    assert Loss.HUBER.of(Output.RELU, before, targets).item() == pytest.approx(1.3125)
    # Poisson of the mean itself: 0.5 - 1 log 0.5 = 1.193147 and 4 - log 4 = 2.613706; mean 1.903426
    assert Loss.POISSON.of(Output.RELU, before, targets).item() == pytest.approx(1.903426, rel=1e-6)
    # cross-entropy of the sigmoid: log(1 + e^-0.5) = 0.474077 and log(1 + e^-4) = 0.018150; mean 0.246113
    assert Loss.CROSS_ENTROPY.of(Output.SIGMOID, before, targets).item() == pytest.approx(0.246113, rel=1e-5)


def test_the_poisson_loss_is_least_at_the_target() -> None:
    """With torch's default, which takes the output for a logarithm, it would be least at log 3."""
    grid = torch.linspace(0.5, 6.0, 56)
    losses = [Loss.POISSON.of(Output.RELU, one[None], torch.tensor([3.0])).item() for one in grid]
    assert grid[int(np.argmin(losses))].item() == pytest.approx(3.0)


@pytest.mark.parametrize("objective", list(Objective))
def test_the_first_step_of_adam_is_the_learning_rate(objective: Objective) -> None:
    """Adam's first step is the rate times the gradient's sign, so the largest change of all weights tells it."""
    architecture, recipe = _architecture(Output.SOFTPLUS, objective), REGRESSION[objective]
    training_set = _training_set()
    one_step = train(architecture, Recipe(recipe.loss, recipe.learning_rate, epochs=1), training_set, None, 0)
    begun = initialised(architecture, torch.Generator().manual_seed(0))
    changes = [
        float(np.abs(one_step.tensors[name] - values.detach().numpy()).max())
        for name, values in begun.named_parameters()
    ]
    assert max(changes) == pytest.approx(recipe.learning_rate, rel=0.01)


def test_batches_hold_every_row_once_and_never_a_single_one() -> None:
    random = torch.Generator().manual_seed(0)
    assert [len(one) for one in batches(70, 32, random)] == [32, 32, 6]
    assert [len(one) for one in batches(65, 32, random)] == [32, 33]
    assert [len(one) for one in batches(33, 32, random)] == [33]
    together = torch.cat(batches(65, 32, random))
    assert sorted(together.tolist()) == list(range(65))
    assert together.tolist() != list(range(65))


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
def test_training_is_the_same_under_a_seed_and_touches_nothing_global() -> None:
    architecture, recipe, training_set = (
        _architecture(Output.SOFTPLUS),
        Recipe(Loss.HUBER, 1e-3, epochs=3),
        _training_set(40),
    )
    torch.manual_seed(1)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    first = train(architecture, recipe, training_set, None, 5)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    torch.manual_seed(2)
    with torch.no_grad():  # nor does it matter what the caller has set
        again = train(architecture, recipe, training_set, None, 5)
    other = train(architecture, recipe, training_set, None, 6)
    for name, values in first.tensors.items():
        np.testing.assert_array_equal(values, again.tensors[name])
    assert not np.array_equal(first.tensors["last.weight"], other.tensors["last.weight"])


def test_watched_rows_are_followed_and_not_learned_from() -> None:
    architecture, recipe, training_set = (
        _architecture(Output.SOFTPLUS),
        Recipe(Loss.HUBER, 1e-3, epochs=4),
        _training_set(),
    )
    validation = LabelledRows(training_set.rows.take(torch.arange(5)), training_set.targets[:5] * 100.0)
    alone, seen = (
        train(architecture, recipe, training_set, None, 0),
        train(architecture, recipe, training_set, validation, 0),
    )
    for name, values in alone.tensors.items():
        np.testing.assert_array_equal(values, seen.tensors[name])
    for name, values in alone.curves.items():
        np.testing.assert_array_equal(values, seen.curves[name])
    assert set(alone.curves) == {"training loss", "training R2", "training RMSE"}
    assert set(seen.curves) == set(alone.curves) | {"validation loss", "validation R2", "validation RMSE"}
    assert all(len(values) == 4 for values in seen.curves.values())
    # the last element is what the final network says: RMSE by hand
    error = _said(architecture, seen, validation) - validation.targets
    assert seen.curves["validation RMSE"][-1] == pytest.approx(float(error.square().mean().sqrt()), rel=1e-5)


def test_a_relu_output_that_begins_at_zero_is_dead_and_a_softplus_is_not() -> None:
    """Where it is 0 for all rows no gradient passes: not a weight changes. Softplus learns from the same weights."""
    training_set, recipe = _training_set(), Recipe(Loss.HUBER, 1e-2, epochs=60)
    relu, softplus = _architecture(Output.RELU), _architecture(Output.SOFTPLUS)
    dead = [seed for seed in range(12) if _begins_dead(relu, training_set, seed)]
    assert dead  # of twelve seeds; they are not rare
    after = train(relu, recipe, training_set, None, dead[0])
    for name, values in initialised(relu, torch.Generator().manual_seed(dead[0])).state_dict().items():
        np.testing.assert_array_equal(after.tensors[name], values.numpy())
    assert float(_said(relu, after, training_set).max()) == 0.0
    assert len(set(after.curves["training loss"].tolist())) == 1
    alive = train(softplus, recipe, training_set, None, dead[0])
    assert alive.curves["training R2"][-1] > 0.8


def _begins_dead(architecture: Architecture, training_set: LabelledRows, seed: int) -> bool:
    with torch.no_grad():
        before = initialised(architecture, torch.Generator().manual_seed(seed))(training_set.rows)
    return bool((before <= 0).all())


def test_a_relu_that_is_alive_learns() -> None:
    training_set, relu = _training_set(), _architecture(Output.RELU)
    seed = next(one for one in range(12) if not _begins_dead(relu, training_set, one))
    trained = train(relu, Recipe(Loss.HUBER, 1e-2, epochs=60), training_set, None, seed)
    assert trained.curves["training R2"][-1] > 0.8

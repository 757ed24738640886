"""A model as one vector, and optimizers as aggregators have them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from schemas.aggregations import AggregationOptimizer, OptimizerKind
from services.trainer.worker.built_model import BuiltModel
from services.trainer.worker.plan_file import RefusedError
from services.trainer.worker.push_pull import Moments
from services.trainer.worker.replicated import ReplicatedEngine, aggregated, vector_names
from services.trainer.worker.step_clock import StepClock

CPU = torch.device("cpu")
Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
INPUTS = torch.arange(12.0).reshape(4, 3) / 12


def model() -> nn.Sequential:
    torch.manual_seed(5)
    made = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    made[0].bias.requires_grad_(False)  # noqa: FBT003 - torch's own name of it
    return made


def engine_of(made: nn.Module) -> ReplicatedEngine:
    return ReplicatedEngine(BuiltModel(made), CPU)


def loss(output: torch.Tensor, _number: int) -> torch.Tensor:
    return output.square().sum()


def test_the_gradient_of_all_microbatches_is_torchs_own() -> None:
    engine, plain = engine_of(model()), model()

    value = engine.step([INPUTS[:1], INPUTS[1:]], loss, StepClock(CPU))

    expected = loss(plain(INPUTS), 0)
    expected.backward()
    assert float(value) == pytest.approx(float(expected.detach()))
    trained = [each for each in plain.parameters() if each.requires_grad]
    assert len(trained) == 3, "one is frozen"
    gradients = torch.cat([each.grad.reshape(-1) for each in trained if each.grad is not None])
    assert torch.allclose(engine.gradient, gradients, atol=1e-6)
    assert engine.step([], loss, StepClock(CPU)) == 0
    assert not engine.gradient.any(), "a rank without samples adds nothing"


def test_parameters_are_views_of_the_vector() -> None:
    made = model()
    engine = engine_of(made)
    engine.flat.fill_(2.0)
    assert {float(value) for each in engine.parameters for value in each.detach().reshape(-1)} == {2.0}
    assert [name for block in engine.blocks for piece in block.pieces for name in piece.shapes] == list(engine.shapes)
    assert set(engine.blocks[0].constants) == {"0.bias"}


def test_moments_go_into_the_optimizer_for_a_checkpoint_and_come_back() -> None:
    engine = engine_of(model())
    optimizer = torch.optim.AdamW(engine.parameters)
    length = engine.flat.numel()
    moments = Moments({"exp_avg": torch.arange(float(length)), "exp_avg_sq": torch.ones(length)}, {"step": 7.0})

    engine.keep_moments(optimizer, moments)

    named = dict(zip(engine.shapes, engine.parameters, strict=True))
    found = {
        key: {name: optimizer.state[value][key] for name, value in named.items()}
        for key in ("exp_avg", "exp_avg_sq", "step")
    }
    assert {name: tuple(value.shape) for name, value in found["exp_avg"].items()} == engine.shapes
    names = vector_names(aggregated(optimizer))
    back = engine.moments_of(found, names)
    assert back.scalars == {"step": 7.0}
    assert all(torch.equal(back.vectors[name], moments.vectors[name]) for name in names)
    assert engine.moments_of({"exp_avg": found["exp_avg"]}, names) == Moments(), "a checkpoint of another optimizer"
    assert engine.moments_of({}, ()) == Moments()


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), {"kind": OptimizerKind.SGD, "lr": 0.1, "momentum": 0.9}),
        (
            lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.8, 0.9), weight_decay=0.2),
            {"kind": OptimizerKind.ADAM, "lr": 0.1, "beta1": 0.8, "beta2": 0.9, "weight_decay": 0.2},
        ),
        (
            lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.5), foreach=False),
            {"kind": OptimizerKind.ADAMW, "lr": 0.5, "weight_decay": 0.01},
        ),
    ],
)
def test_an_optimizer_as_aggregators_have_it(made: Make, expected: dict[str, Any]) -> None:
    assert aggregated(made([nn.Parameter(torch.zeros(2))])) == AggregationOptimizer(**expected)


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True), "with nesterov=False, not True"),
        (lambda p: torch.optim.AdamW(p, eps=1e-6), "with eps=1e-08, not 1e-06"),
        (lambda p: torch.optim.Adam(p, amsgrad=True), "with amsgrad=False, not True"),
        (lambda p: torch.optim.Adam(p, lr=0.0), "a learning rate above 0, not 0"),
    ],
)
def test_options_that_aggregators_do_not_know_are_refused(made: Make, reason: str) -> None:
    with pytest.raises(RefusedError, match=reason):
        aggregated(made([nn.Parameter(torch.zeros(2))]))


def test_a_model_in_another_type_or_without_parameters_is_refused() -> None:
    with pytest.raises(RefusedError, match=r"aggregators sum float32, but the model has parameters of torch\.float64"):
        engine_of(model().double())
    with pytest.raises(RefusedError, match="no trainable parameters"):
        engine_of(nn.Sequential(nn.Tanh()))

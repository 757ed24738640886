"""Models, optimizers and plans that cannot be used, each with its reason."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from schemas.layers import Dtype
from schemas.plans import Engine
from services.trainer.worker.blocks import blocks_of
from services.trainer.worker.plan_file import RefusedError, check_plan, check_world
from services.trainer.worker.refusals import check_model, check_optimizer, check_sharded, layered_chain
from tests.support.trainer_plans import plan_of


class Listed(nn.Module):
    """A model that says what its layers are."""

    def __init__(self, *, loose: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 3), nn.Linear(3, 2)
        if loose:
            self.bias = nn.Parameter(torch.zeros(2))

    def layers(self) -> list[nn.Module]:
        return [self.first, self.second]


class Blocks(nn.Module):
    """No chain: what comes in is needed twice."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList([nn.Linear(2, 2)])
        self.blocks = nn.ModuleList([nn.Linear(2, 2) for _ in range(3)])
        self.mixed = nn.ModuleList([nn.Linear(2, 2), nn.Tanh(), nn.Tanh(), nn.Tanh()])

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for block in self.blocks:
            y = block(y)
        return x + y


def tied() -> nn.Sequential:
    """First and last layer have one weight."""
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False))
    model[1].weight = model[0].weight
    return model


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Blocks(), r"Blocks is no chain of layers: return .* Engine layered needs that; or plan for engine fsdp2"),
        (Listed(loose=True), "bias is a parameter of the model, but of none of the modules of layers"),
    ],
)
def test_a_model_that_is_no_chain(model: nn.Module, words: str) -> None:
    with pytest.raises(RefusedError, match=words):
        layered_chain(model)


def test_what_is_no_chain_has_its_longest_list_of_one_class_as_blocks() -> None:
    assert [name for name, _ in blocks_of(Blocks())] == ["blocks.0", "blocks.1", "blocks.2"]
    assert blocks_of(Listed()) == []


def test_parameters_that_layers_share() -> None:
    with pytest.raises(RefusedError, match=r"0\.weight and 1\.weight are one parameter, shared between layers"):
        layered_chain(tied())
    with pytest.raises(RefusedError, match="engine ministage gathers and reduces each layer by itself"):
        layered_chain(tied(), Engine.MINISTAGE)
    assert [name for name, _ in layered_chain(Listed())] == ["first", "second"]


def test_parameters_that_fsdp2_cannot_cut() -> None:
    """All others can: torch's own error would come from the ranks, and know nothing of that."""
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    check_sharded(model)
    model[1].register_parameter("gain", nn.Parameter(torch.tensor(1.0)))
    sentence = r"1\.gain has no dimensions, but engine fsdp2 cuts parameters along their first one: make it a vector"
    with pytest.raises(RefusedError, match=sentence):
        check_sharded(model)
    model.register_parameter("shift", nn.Parameter(torch.tensor(0.0), requires_grad=False))
    with pytest.raises(RefusedError, match=r"shift and 1 more parameters have no dimensions"):
        check_sharded(model)


@pytest.mark.parametrize(
    "norm", [nn.BatchNorm1d(3), nn.SyncBatchNorm(3), nn.InstanceNorm1d(3, track_running_stats=True)]
)
def test_norms_over_samples(norm: nn.Module) -> None:
    with pytest.raises(RefusedError, match=f"1.1 is a {type(norm).__name__}"):
        check_model(nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Tanh(), norm)))
    check_model(nn.Sequential(nn.LayerNorm(3), nn.GroupNorm(1, 3), nn.InstanceNorm1d(3)))


def made(kind: type[torch.optim.Optimizer], *groups: list[nn.Parameter]) -> torch.optim.Optimizer:
    """An optimizer without its constructor, which would import torch's compiler: seconds."""
    optimizer = kind.__new__(kind)
    optimizer.param_groups = [{"params": group} for group in groups]
    return optimizer


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (torch.optim.LBFGS, "LBFGS is not known to update each element by itself"),
        (torch.optim.Adafactor, "use one of SGD, Adam, AdamW"),
    ],
)
def test_optimizers_of_more_than_elements(kind: type[torch.optim.Optimizer], words: str) -> None:
    parameters = list(nn.Linear(3, 3).parameters())
    with pytest.raises(RefusedError, match=words):
        check_optimizer(made(kind, parameters), parameters)
    with pytest.raises(RefusedError, match="str is not known"):
        check_optimizer("adamw", parameters)


def test_optimizers_of_other_parameters_than_all_in_one_group() -> None:
    first, second = nn.Linear(3, 3).parameters()
    for groups in ([[first]], [[first], [second]], [[first, second, nn.Parameter(torch.zeros(1))]]):
        with pytest.raises(RefusedError, match="all parameters that it was given, in one group"):
            check_optimizer(made(torch.optim.SGD, *groups), [first, second])


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_optimizers_of_elements(kind: type[torch.optim.Optimizer]) -> None:
    parameters = list(nn.Linear(3, 3).parameters())
    optimizer = made(kind, parameters)

    assert check_optimizer(optimizer, parameters) is optimizer


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"engine": Engine.MINISTAGE}, "the plan's pipeline does not fit together: .* plan anew"),
        ({"gather_dtype": Dtype.FLOAT16}, "float16 needs a scaled loss"),
    ],
)
def test_plans_by_what_there_is_not(change: dict[str, object], words: str) -> None:
    plan = plan_of([5, 3], [1, 1], [1, 1])
    check_plan(plan)
    with pytest.raises(RefusedError, match=words):
        check_plan(plan.model_copy(update=change))


def test_plans_for_others() -> None:
    with pytest.raises(RefusedError, match="for 2 devices, but torchrun started 3 processes"):
        check_world(plan_of([5, 3], [1, 1], [1, 1]), 3)
    with pytest.raises(RefusedError, match="fsdp2 needs a sample for every rank"):
        check_plan(plan_of([8, 0], [1, 0], [1, 1], Engine.FSDP2))
    with pytest.raises(RefusedError, match="fsdp2 takes one micro-batch"):
        check_plan(plan_of([4, 4], [2, 1], [1, 1], Engine.FSDP2))

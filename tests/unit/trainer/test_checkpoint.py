"""What a checkpoint keeps of an optimizer, on one rank."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.tensor import DTensor

from services.trainer.worker import checkpoint
from services.trainer.worker.built_model import BuiltModel
from services.trainer.worker.checkpoint import Progress
from services.trainer.worker.flat import Placement
from services.trainer.worker.fsdp2 import Fsdp2Engine
from services.trainer.worker.layered import LayeredEngine
from services.trainer.worker.step_clock import StepClock

CPU = torch.device("cpu")
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
"""As the trainer's rank does: pytest sets filters of its own."""


class Scaled(nn.Module):
    """Its first parameter has no dimensions, as ReZero's (Bachlechner et al., 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.inner = nn.Linear(3, 3)

    def forward(self, given: Tensor) -> Tensor:
        return given + self.scale * self.inner(given)


class Scale(nn.Module):
    """Its only parameter has none."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, given: Tensor) -> Tensor:
        return given * self.scale


@pytest.fixture(autouse=True)
def _one_rank() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def engine_of() -> tuple[LayeredEngine, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(Scaled(), Scale())
    engine = LayeredEngine(list(model.named_children()), Placement(0, (1.0,), CPU), BuiltModel(model))
    return engine, torch.optim.AdamW(engine.parameters, lr=0.1)


def step(engine: LayeredEngine, optimizer: torch.optim.Optimizer) -> None:
    engine.step([torch.ones(2, 3)], lambda output, _number: output.square().sum(), StepClock(CPU), optimizer)


def test_a_training_with_parameters_without_dimensions_goes_on_at_its_checkpoint(tmp_path: Path) -> None:
    engine, optimizer = engine_of()
    step(engine, optimizer)
    checkpoint.save(tmp_path, engine, optimizer, Progress(1, 2, 0))
    step(engine, optimizer)

    again, its_optimizer = engine_of()
    assert checkpoint.load(tmp_path, again, its_optimizer) == Progress(1, 2, 0)
    step(again, its_optimizer)

    for one, other in zip(engine.parameters, again.parameters, strict=True):
        assert torch.equal(one, other)
        for entry, held in optimizer.state[one].items():
            assert torch.equal(its_optimizer.state[other][entry], held), entry
            assert its_optimizer.state[other][entry].shape == held.shape, entry


def test_moments_are_read_where_the_first_parameter_has_no_dimensions(tmp_path: Path) -> None:
    engine, optimizer = engine_of()
    step(engine, optimizer)
    checkpoint.save(tmp_path, engine, optimizer, Progress(1, 2, 0))

    shapes = {name: shape for layer in engine.blocks for name, shape in layer.shapes.items()}
    found = checkpoint.read_moments(tmp_path, shapes)

    assert {float(count) for count in found["step"].values()} == {1.0}
    assert {name: tuple(held.shape) for name, held in found["exp_avg"].items()} == shapes


class Tied(nn.Module):
    """Its embedding is its head, too, and a layer in between is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.between = nn.Linear(3, 3).requires_grad_(requires_grad=False)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("shift", torch.ones(3))

    def forward(self, given: Tensor) -> Tensor:
        found: Tensor = self.head(self.between(self.embedding(given)) + self.shift)
        return found


def test_no_rank_of_fsdp2_writes_its_part_of_a_parameter_as_the_whole(tmp_path: Path) -> None:
    """What `fully_shard` has cut is gathered: also frozen parameters, and a shared one under each of its names."""

    def made(seed: int) -> tuple[Fsdp2Engine, torch.optim.Optimizer]:
        torch.manual_seed(seed)
        engine = Fsdp2Engine(BuiltModel(Tied()), [], Placement(0, (1.0,), CPU))
        return engine, torch.optim.AdamW(engine.parameters)

    torch.manual_seed(0)
    expected = Tied().state_dict()
    engine, optimizer = made(0)
    whole: dict[str, Tensor] = {}
    for block in engine.blocks:
        assert not any(isinstance(value, DTensor) for value in block.constants.values())
        whole |= block.constants
        for piece in block.pieces:
            whole |= piece.whole(piece.parameter)
    assert whole.keys() == expected.keys()
    assert all(torch.equal(whole[name], value) for name, value in expected.items())
    assert len(engine.parameters) == 1, "what is frozen is not the optimizer's"

    engine.step([torch.arange(5)], lambda output, _number: output.square().sum(), StepClock(CPU), optimizer)
    checkpoint.save(tmp_path, engine, optimizer, Progress(1, 5, 0))
    again, its_optimizer = made(1)
    checkpoint.load(tmp_path, again, its_optimizer)

    pieces = [[piece for block in each.blocks for piece in block.pieces] for each in (engine, again)]
    assert len(pieces[0]) == 3
    for one, other in zip(*pieces, strict=True):
        assert torch.equal(one.parameter, other.parameter)
    held = its_optimizer.state[again.parameters[0]]
    assert torch.equal(held["exp_avg"], optimizer.state[engine.parameters[0]]["exp_avg"])

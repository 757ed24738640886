"""A model's values, computed one after another, have the bits that its construction gives them, or are refused."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from services._jobs.recorded_build import UnrecordableError, recorded
from tests.support.trainer_job import small_model

SEED = 5
MIB = 1 << 20


def tensors(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach() for name, value in (*model.named_parameters(), *model.named_buffers())}


def encoder() -> nn.Module:
    """Its layers are deep copies of one."""
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2)


def initialised_anew() -> nn.Module:
    """As the published code of GPT does it: all layers, then `apply`, then another type for all."""

    def initialise(part: nn.Module) -> None:
        if isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, std=0.02)
            nn.init.zeros_(part.bias)

    blocks = [nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)) for _ in range(2)]
    model = nn.Sequential(nn.Embedding(10, 8, padding_idx=1), *blocks, nn.Linear(8, 10))
    return model.apply(initialise).to(torch.bfloat16)


def all_initialisers() -> nn.Module:
    """Those of `torch.nn.init` that draw; truncated and orthogonal ones do nothing on the meta device by themselves."""
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6)))
    nn.init.trunc_normal_(model[0].weight)  # type: ignore[arg-type]
    nn.init.trunc_normal_(model[1].weight, a=1.0, b=3.0, mean=2.0)  # type: ignore[arg-type]
    nn.init.orthogonal_(model[2].weight)  # type: ignore[arg-type]
    nn.init.sparse_(model[3].weight, 0.3)  # type: ignore[arg-type]
    nn.init.xavier_normal_(model[4].weight)  # type: ignore[arg-type]
    nn.init.dirac_(model[5].weight.data.view(8, 8, 1))  # type: ignore[operator,union-attr]
    return model


class Positions(nn.Module):
    """A table that is computed, and a parameter out of numbers."""

    def __init__(self) -> None:
        super().__init__()
        place = torch.arange(20).unsqueeze(1) * torch.exp(torch.arange(0, 8, 2) * (-math.log(1e4) / 8))
        table = torch.zeros(20, 8)
        table[:, 0::2], table[:, 1::2] = torch.sin(place), torch.cos(place)
        self.register_buffer("table", table, persistent=False)
        self.scale = nn.Parameter(torch.tensor([1.0, 2.0]), requires_grad=False)
        self.linear = nn.Linear(8, 8)


def tied() -> nn.Module:
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5, bias=False))
    model[1].weight = model[0].weight
    return model


def seeded_twice() -> nn.Module:
    torch.manual_seed(3)
    first = nn.Linear(3, 3)
    torch.manual_seed(3)
    return nn.Sequential(first, nn.Linear(3, 3))


def seeded_at_the_end() -> nn.Module:
    model = nn.Linear(3, 3)
    torch.manual_seed(7)
    return model


@pytest.mark.parametrize(
    "build",
    [
        small_model.build,
        encoder,
        initialised_anew,
        all_initialisers,
        Positions,
        tied,
        seeded_twice,
        seeded_at_the_end,
        lambda: nn.LSTM(4, 5, 2),
        lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)),
    ],
)
def test_values_are_those_of_the_construction(build: Callable[[], nn.Module]) -> None:
    torch.manual_seed(SEED)
    expected, drawn_later = tensors(build()), torch.rand(3)

    torch.manual_seed(SEED)
    model, recording = recorded(build)
    assert {name: (value.shape, value.dtype) for name, value in tensors(model).items()} == {
        name: (value.shape, value.dtype) for name, value in expected.items()
    }
    torch.rand(4)  # what is drawn meanwhile changes nothing
    found = {name: value.clone() for name, value in recording.values()}

    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype is value.dtype
        assert torch.equal(found[name], value), name
    assert torch.equal(torch.rand(3), drawn_later), "the generator is where the construction leaves it"


def looks_at_values() -> nn.Module:
    model = nn.Linear(3, 3)
    if model.weight.sum().item() > 0:
        nn.init.zeros_(model.weight)
    return model


class WithAttribute(nn.Module):
    """Its table is neither a parameter nor a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.table = nn.Linear(2, 2), torch.arange(4)


def draws_the_same_again() -> nn.Module:
    first = nn.Linear(3, 3)
    state = torch.get_rng_state()
    second = nn.Linear(3, 3)
    torch.set_rng_state(state)
    return nn.Sequential(first, second, nn.Linear(3, 3))


def own_generator() -> nn.Module:
    model = nn.Linear(3, 3)
    nn.init.normal_(model.weight, generator=torch.Generator().manual_seed(3))
    return model


def of_numpy() -> nn.Module:
    model = nn.Linear(3, 3)
    model.weight = nn.Parameter(torch.from_numpy(np.ones((3, 3), np.float32)))
    return model


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (WithAttribute, "it keeps a tensor that is neither a parameter nor a buffer"),
        (draws_the_same_again, "it sets the random generator to an earlier state"),
        (own_generator, "it calls normal_ in a way that is not repeated here"),
        (of_numpy, "values that may change meanwhile are given to"),
    ],
)
def test_what_cannot_be_recorded_is_refused(build: Callable[[], nn.Module], why: str) -> None:
    torch.manual_seed(SEED)
    before = torch.get_rng_state()

    with pytest.raises(UnrecordableError, match=why):
        recorded(build)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_construction_that_is_run_again_draws_the_same_numbers_of_python_and_numpy() -> None:
    """It is run for real once it could not be recorded, and is to give what a single run gives."""

    def build() -> nn.Module:
        drawn.append((random.random(), np.random.rand()))  # noqa: NPY002 - as users' code does
        return looks_at_values()

    drawn: list[tuple[float, float]] = []
    with pytest.raises(RuntimeError, match="meta tensors"):
        recorded(build)
    build()
    assert drawn[0] == drawn[1]


def test_a_construction_that_looks_at_values_fails() -> None:
    with pytest.raises(RuntimeError, match="meta tensors"):
        recorded(looks_at_values)


def resident_bytes() -> int:
    found = re.search(r"^VmRSS:\s+(\d+) kB$", Path("/proc/self/status").read_text(encoding="ascii"), re.MULTILINE)
    assert found is not None
    return int(found[1]) << 10


def test_the_whole_model_is_never_in_memory() -> None:
    """64 layers of 4 MiB, initialised twice and then converted to twice the size: 512 MiB as a whole."""

    def build() -> nn.Module:
        model = nn.Sequential(*(nn.Linear(1_024, 1_024, bias=False) for _ in range(64)))
        return model.apply(lambda part: nn.init.ones_(part.weight) if isinstance(part, nn.Linear) else None).double()

    model, recording = recorded(build)
    before, most, bytes_seen = resident_bytes(), 0, 0
    for _name, value in recording.values():
        bytes_seen += value.nbytes
        most = max(most, resident_bytes())

    assert bytes_seen == 512 * MIB
    assert most - before < 100 * MIB
    assert all(value.is_meta for value in model.parameters())

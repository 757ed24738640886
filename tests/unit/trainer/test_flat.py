"""A layer's vector, of which each rank keeps its part: nothing is lost, and what is kept stays where it is."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from services.trainer.worker.flat import FlatLayer, Placement

CPU = torch.device("cpu")


def layer_of(rank: int, shares: tuple[float, ...]) -> FlatLayer:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 4, bias=False)).double()
    return FlatLayer("0", module, Placement(rank, shares, CPU))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=5).filter(any))
def test_the_ranks_parts_are_the_whole_layer(shares: list[int]) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 4, bias=False)).double()
    whole = torch.cat([value.detach().reshape(-1) for value in module.parameters()])

    layers = [layer_of(rank, tuple(shares)) for rank in range(len(shares))]

    assert torch.equal(torch.cat([layer.parameter.detach() for layer in layers]), whole)
    for layer in layers:
        assert layer.parameter.grad is not None
        assert layer.parameter.grad.shape == layer.parameter.shape
        assert layer.parameter.grad.dtype is torch.float64


def test_a_gradient_stays_where_it_is_from_step_to_step() -> None:
    layer = layer_of(0, (1.0,))
    place = layer.parameter.grad
    assert place is not None

    for value in (2.0, 3.0):
        # 3 * 2 + 2 of the first linear layer, 2 * 4 of the second
        layer.end_scatter(layer.begin_scatter(torch.full((16,), value, dtype=torch.float64)))
        assert layer.parameter.grad is place
        assert place.tolist() == [value] * 16

    layer.end_scatter(layer.begin_scatter(None))
    assert place.tolist() == [0.0] * 16


def test_a_gradient_in_a_shorter_type_is_kept_in_the_parameters() -> None:
    torch.manual_seed(0)
    layer = FlatLayer("0", nn.Linear(3, 2), Placement(0, (1.0,), CPU, torch.bfloat16))
    place = layer.parameter.grad
    assert place is not None

    assert layer.begin_gather().wait().dtype is torch.bfloat16
    layer.end_scatter(layer.begin_scatter(torch.arange(8, dtype=torch.bfloat16)))

    assert layer.parameter.grad is place
    assert (place.dtype, place.tolist()) == (torch.float32, list(range(8)))

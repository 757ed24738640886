"""The networks' layers, as Figures 4.2 and 4.3 are described."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from schemas.predictions import Objective
from services.advisor.core.encoder import SERIES_CHANNELS, SERIES_STEPS
from services.advisor.models.thesis_bilstm.inputs import Rows
from services.advisor.models.thesis_bilstm.network import Architecture, Network, Norm, Output, Sizes, initialised
from tests.bench.evaluation.thesis_classifier import classification

WIDTH = 9
PLAIN, NORMED = ["Linear", "ReLU"], ["Linear", "ReLU", "BatchNorm1d"]


def _regression(objective: Objective) -> Architecture:
    return Architecture.regression(objective, Output.SOFTPLUS, WIDTH)


def _network(architecture: Architecture, seed: int = 0) -> Network:
    return initialised(architecture, torch.Generator().manual_seed(seed))


def _rows() -> Rows:
    """Tasks of different numbers of rows, so that a mean over tasks is not one over rows."""
    random = torch.Generator().manual_seed(1)
    task = torch.tensor([0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 2])
    return Rows(
        torch.randn(len(task), WIDTH, generator=random),
        torch.randn(3, SERIES_STEPS, len(SERIES_CHANNELS), generator=random),
        task,
    )


def _kinds(layers: nn.Module) -> list[str]:
    return [type(one).__name__ for one in layers.children()]


@pytest.mark.parametrize(
    ("architecture", "static", "series", "joined", "additional"),
    [
        pytest.param(_regression(Objective.COST), PLAIN * 2, PLAIN, PLAIN * 2, [], id="4.2 cost: no normalisation"),
        pytest.param(_regression(Objective.TIME), NORMED * 2, PLAIN, PLAIN * 2, PLAIN, id="4.2 time: static, a layer"),
        pytest.param(classification(Objective.COST, WIDTH), NORMED * 2, NORMED, NORMED * 2, [], id="4.3 cost: all"),
        pytest.param(classification(Objective.TIME, WIDTH), NORMED * 2, PLAIN, PLAIN * 2, PLAIN, id="4.3 time: static"),
    ],
)
def test_layers(
    architecture: Architecture, static: list[str], series: list[str], joined: list[str], additional: list[str]
) -> None:
    network, sizes = _network(architecture), Sizes()
    assert _kinds(network.static) == static
    assert list(network.series) == ["cpu_usage", "memory_usage", "network_usage"]
    for encoder, channels in zip(network.series.values(), (2, 2, 4), strict=True):
        assert isinstance(encoder.lstm, nn.LSTM)
        assert encoder.lstm.bidirectional
        assert encoder.lstm.input_size == channels
        assert _kinds(encoder.dense) == series
        assert encoder.dense[0].in_features == 2 * sizes.lstm
    assert _kinds(network.joined) == joined
    # 32 of the static features, and 16 of each of three groups of series
    assert network.joined[0].in_features == 32 + 3 * 16
    assert _kinds(network.additional) == additional
    assert network.last.out_features == 1


def test_last_activations() -> None:
    before = torch.tensor([-2.0, 0.0, 2.0])
    # by hand: softplus is log(1 + exp(x)), and the sigmoid one over (1 + exp(-x))
    expected = {
        Output.SOFTPLUS: [0.126928, 0.693147, 2.126928],
        Output.RELU: [0.0, 0.0, 2.0],
        Output.SIGMOID: [0.119203, 0.5, 0.880797],
    }
    for output, values in expected.items():
        torch.testing.assert_close(output.of(before), torch.tensor(values), atol=1e-5, rtol=0.0)
    assert classification(Objective.COST, WIDTH).output is Output.SIGMOID
    assert _regression(Objective.COST).output is Output.SOFTPLUS


@pytest.mark.parametrize("architecture", [classification(Objective.COST, WIDTH), _regression(Objective.TIME)])
def test_encoding_a_series_once_per_task_is_the_same_as_once_per_row(architecture: Architecture) -> None:
    """Outputs and gradients, in training, where batch normalisation counts rows."""
    rows = _rows()
    often = Rows(rows.static, rows.series[rows.task], torch.arange(len(rows)))
    once_network, often_network = _network(architecture), _network(architecture)
    once_out, often_out = once_network(rows), often_network(often)
    torch.testing.assert_close(once_out, often_out, atol=1e-5, rtol=1e-4)
    once_out.square().sum().backward()
    often_out.square().sum().backward()
    for (name, one), other in zip(once_network.named_parameters(), often_network.parameters(), strict=True):
        assert one.grad is not None, name
        torch.testing.assert_close(one.grad, other.grad, atol=1e-3, rtol=1e-3, msg=name)


def test_a_task_without_series_does_not_see_those_of_others() -> None:
    network, rows = _network(_regression(Objective.COST)).eval(), _rows()
    missing = Rows(rows.static, rows.series, torch.where(rows.task == 0, -1, rows.task))
    other = Rows(rows.static, rows.series + 5.0, missing.task)
    with torch.no_grad():
        said, told_other = network(missing), network(other)
        none = network(Rows(rows.static, rows.series[:0], torch.full_like(rows.task, -1)))
    unknown = rows.task == 0
    torch.testing.assert_close(said[unknown], told_other[unknown])
    torch.testing.assert_close(said[unknown], none[unknown])
    assert not torch.allclose(said[~unknown], told_other[~unknown])


def test_rows_do_not_depend_on_their_order() -> None:
    network, rows = _network(classification(Objective.COST, WIDTH)).eval(), _rows()
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        torch.testing.assert_close(network(rows.take(order)), network(rows)[order])


def test_weights_are_drawn_from_the_seed_alone() -> None:
    architecture = classification(Objective.COST, WIDTH)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = _network(architecture, 7).state_dict()
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(6)
    again, other = _network(architecture, 7).state_dict(), _network(architecture, 8).state_dict()
    assert all(torch.equal(values, again[name]) for name, values in first.items())
    assert not torch.equal(first["last.weight"], other["last.weight"])
    assert all(torch.isfinite(values).all() for values in first.values())


def test_forget_gates_begin_open() -> None:
    lstm = _network(_regression(Objective.COST)).series["cpu_usage"].lstm
    # torch orders the gates: input, forget, cell, output
    assert lstm.bias_ih_l0.tolist() == [0.0] * 16 + [1.0] * 16 + [0.0] * 32
    assert lstm.bias_hh_l0.tolist() == [0.0] * 64


def test_no_norm_at_all_for_the_cost_of_figure_4_2() -> None:
    assert _regression(Objective.COST).norm is Norm.NONE
    assert not [one for one in _network(_regression(Objective.COST)).modules() if isinstance(one, nn.BatchNorm1d)]

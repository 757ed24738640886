"""Table 4.1 out of modules of all kinds. Expected numbers are computed by hand beside each."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from services.collector.profiler.torch_features import (
    FeatureError,
    InputShape,
    count_parameters,
    leaf_types,
    measure,
    training_work,
)


class Tied(nn.Module):
    """Embedding and output layer share their weights."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.output = nn.Linear(4, 10, bias=False)
        self.output.weight = self.embedding.weight

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.output(self.embedding(words))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(input_size=6, hidden_size=5, batch_first=True)
        self.head = nn.Linear(5, 3)

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(series)[0][:, -1])


class Keywords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)

    def forward(self, *, left: torch.Tensor, right: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": torch.zeros(()), "logits": self.head(left + right)}


def test_a_dense_network() -> None:
    found = measure(nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 3)), torch.zeros(5, 8))
    # 8*4 + 4, 4*3 + 3; 2 * (8*4 + 4*3) per sample
    assert found.parameter_count == 36 + 15
    assert found.layers == ("Linear", "ReLU", "Linear")
    assert (found.input_elements, found.output_elements) == (8, 3)
    assert found.forward_flops == 88


def test_a_convolution() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU())
    found = measure(module, InputShape((3, 6, 6)).example())
    # 3*4*9, and weight and bias of 4 channels; 2 * 36 places * 108
    assert found.parameter_count == 108 + 8
    assert (found.input_elements, found.output_elements) == (108, 144)
    assert found.forward_flops == 2 * 36 * 108


def test_frozen_parameters_are_counted_apart() -> None:
    module = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 3))
    module[0].requires_grad_(requires_grad=False)
    assert count_parameters(module) == (15, 36)


def test_shared_parameters_and_modules_count_once() -> None:
    # 10 * 4 shared
    assert measure(Tied(), InputShape((7,), "int64", 10).example()).parameter_count == 40
    layer = nn.Linear(4, 4)
    assert leaf_types(nn.Sequential(layer, nn.ReLU(), layer)) == ("Linear", "ReLU")


def test_lazy_modules_get_their_size_from_the_forward_pass() -> None:
    found = measure(nn.Sequential(nn.LazyConv2d(4, 3), nn.Flatten(), nn.LazyLinear(2)), torch.zeros(1, 3, 5, 5))
    # 3*4*9 + 4; 4*3*3 inputs times 2, and 2
    assert found.parameter_count == 112 + 74
    assert found.layers == ("Conv2d", "Flatten", "Linear")


def test_a_lazy_module_that_is_never_reached() -> None:
    module = nn.Linear(4, 2)
    module.register_module("unused", nn.LazyLinear(3))
    with pytest.raises(FeatureError, match=r"unused.*lazy"):
        measure(module, torch.zeros(2, 4))


def test_recurrent_layers_have_flops() -> None:
    """They are fused on a CPU, and would count as none."""
    found = measure(Recurrent(), torch.zeros(2, 7, 6))
    # four gates: 2 * 7 steps * 20 * (6 + 5), and the head's 2 * 5 * 3
    assert found.forward_flops == 2 * 7 * 20 * 11 + 30
    assert (found.input_elements, found.output_elements) == (42, 3)


def test_transformers_have_flops() -> None:
    """Their fast path, and its attention, would count as none."""
    layer = nn.TransformerEncoderLayer(8, nhead=2, dim_feedforward=16, batch_first=True)
    found = measure(nn.TransformerEncoder(layer, 1), torch.zeros(2, 5, 8))
    # 5 words: 3 projections in, 1 out of 8*8; scores and sums of 2 heads 5*5*4 each; 8*16 twice
    by_hand = 2 * 5 * 4 * 64 + 2 * 2 * 2 * 25 * 4 + 2 * 2 * 5 * 128
    assert found.forward_flops == by_hand
    assert found.output_elements == 40
    assert torch.backends.mha.get_fastpath_enabled()


def test_keywords_and_named_outputs() -> None:
    found = measure(Keywords(), {"left": torch.zeros(3, 4), "right": torch.zeros(3, 4)})
    assert (found.input_elements, found.output_elements) == (8, 2)


def test_arguments_and_tuples_as_output() -> None:
    found = measure(nn.LSTM(6, 5, batch_first=True), (torch.zeros(2, 7, 6),))
    assert found.output_elements == 35


def test_a_single_layer_is_its_own_leaf() -> None:
    assert measure(nn.Linear(4, 2), torch.zeros(1, 4)).layers == ("Linear",)


def test_a_module_without_parameters() -> None:
    found = measure(nn.Flatten(), torch.zeros(2, 3, 4))
    assert (found.parameter_count, found.forward_flops, found.output_elements) == (0, 0, 12)


def test_the_module_is_left_as_it_was() -> None:
    module = nn.Sequential(nn.Linear(4, 2), nn.Dropout(), nn.BatchNorm1d(2))
    module[1].eval()
    measure(module, torch.ones(3, 4))
    assert [part.training for part in module] == [True, False, True]
    assert module[2].running_mean.tolist() == [0, 0]
    assert all(parameter.grad is None for parameter in module.parameters())


@pytest.mark.parametrize(
    ("example", "words"),
    [
        (torch.zeros(2, 5), r"fails on float32 of shape \(2, 5\).*RuntimeError"),
        (torch.zeros(2, 4, dtype=torch.int64), "fails on int64"),
        (torch.zeros(()), "no batch"),
        (torch.zeros(0, 4), "no batch"),
        ((), "no tensor"),
        ({"wrong": torch.zeros(2, 4)}, "TypeError"),
    ],
)
def test_inputs_that_do_not_fit(example: object, words: str) -> None:
    module = nn.Linear(4, 2)
    with pytest.raises(FeatureError, match=words):
        measure(module, example)
    assert module.training


def test_an_output_without_a_tensor() -> None:
    class Text(nn.Module):
        def forward(self, _input: torch.Tensor) -> str:
            return "text"

    with pytest.raises(FeatureError, match="returns str"):
        measure(Text(), torch.zeros(1, 1))


def test_made_up_inputs() -> None:
    words = InputShape((7,), "int64", 30).example()
    assert words.shape == (2, 7)
    assert words.dtype == torch.int64
    assert int(words.max()) < 30
    assert torch.equal(words, InputShape((7,), "int64", 30).example())
    assert InputShape((), "float16").example(3).shape == (3,)


@pytest.mark.parametrize(
    ("shape", "words"), [(InputShape((3,), "float99"), "no type"), (InputShape((0,)), "at least 1")]
)
def test_made_up_inputs_that_make_no_sense(shape: InputShape, words: str) -> None:
    with pytest.raises(FeatureError, match=words):
        shape.example()


# -- the work of a training step ------------------------------------------------------------------------------------


def test_a_steps_work_is_counted_by_hand() -> None:
    """Of a linear layer without bias: three products, of which the input's gradient is not needed; float32."""
    layer = nn.Linear(30, 20, bias=False)
    for batch in (2, 8):
        work = training_work(layer, torch.zeros(batch, 30))
        assert work is not None
        assert work.flops == 2 * 2 * 30 * 20
        assert work.weight_bytes == 2 * 4 * 30 * 20  # the weights are read, their gradients are written
        # Input and output; for a loss, the output and its gradient; the gradient and the input for the weights'.
        assert work.bytes == 4 * ((30 + 20) + (20 + 20) + (20 + 30))


def test_a_steps_work_per_sample_does_not_depend_on_the_batch() -> None:
    network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10))
    small, large = (training_work(network, torch.zeros(batch, 3, 8, 8)) for batch in (4, 32))
    assert small is not None
    assert large is not None
    assert small.flops == large.flops
    assert small.bytes == pytest.approx(large.bytes, rel=0.05)


def test_activations_are_what_is_kept_for_the_backward_pass() -> None:
    """The second layer keeps its input, which is the ReLU's output, once; weights and the input are no activations."""
    network = nn.Sequential(nn.Linear(30, 20), nn.ReLU(), nn.Linear(20, 5))
    for batch in (2, 8):
        work = training_work(network, torch.zeros(batch, 30))
        assert work is not None
        assert work.activation_bytes == 4 * 20


def test_counting_a_step_leaves_the_module_as_it_was() -> None:
    network = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout())
    network[2].eval()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    training_work(network, torch.randn(8, 4))
    assert [part.training for part in network] == [True, True, False]
    assert all(one.grad is None for one in network.parameters())
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_on_the_meta_device_it_is_the_same() -> None:
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
    here = training_work(layer, torch.zeros(2, 16, 64))
    assert here == training_work(layer.to("meta"), torch.zeros(2, 16, 64, device="meta"))


class _WithoutGradient(nn.Module):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values.argmax(dim=1)


class _OnlyInEvaluation(nn.Module):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        if self.training:
            raise RuntimeError("not in training")
        return values


@pytest.mark.parametrize("module", [_WithoutGradient(), _OnlyInEvaluation()])
def test_a_module_that_cannot_be_trained_has_its_other_features(module: nn.Module) -> None:
    measured = measure(module, torch.zeros(2, 5))
    assert measured.work is None
    assert measured.input_elements == 5

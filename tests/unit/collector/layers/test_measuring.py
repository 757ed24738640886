"""Layers of small models measured on this machine's processor: sizes by hand, what is alike, what is refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from services._jobs.layer_chain import UnusableModelError, chain_of
from services._jobs.user_module import UserCodeError
from services.collector.layers.alike import element_type, refusal_of
from services.collector.layers.block_times import LEAST_US, Repetitions
from services.collector.layers.first_input import cast, of_data, of_example
from services.collector.layers.flat_layer import FlatLayer
from services.collector.layers.measuring import Bench, Measured, Progress
from services.collector.layers.sharded_layer import ShardedLayer, absent_peer

FEW = Repetitions(warm_up=1, counted=2, least_block_s=0)
CPU = torch.device("cpu")


class Chain(nn.Module):
    """What its user calls a chain."""

    def __init__(self, *parts: nn.Module) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def layers(self) -> list[nn.Module]:
        return list(self.parts)


class Limited(nn.Module):
    """A layer for which the device has memory for so many samples."""

    def __init__(self, samples: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.samples = samples

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > self.samples:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return x * self.weight


class Wrong(nn.Module):
    """A layer that returns something else."""

    def __init__(self, change: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.change = change

    def forward(self, x: Tensor) -> object:
        return self.change(x)


def measured(model: nn.Module, batch_up_to: int = 2, sample: Tensor | None = None) -> tuple[list[Progress], Measured]:
    first = of_example(torch.randn(3, 4) if sample is None else sample)
    steps, seen = Bench(CPU, first, FEW).measure(chain_of(model), batch_up_to), []
    while True:
        try:
            seen.append(next(steps))
        except StopIteration as end:
            return seen, end.value


def test_sizes_are_those_by_hand() -> None:
    """Linear(4, 8) has 40 parameters and keeps its input only, which counts as the output of the layer before.

    Tanh keeps its output, 8 x 4 bytes a sample. Linear(8, 2) has 18 parameters, and an output of 2 x 4 bytes.
    """
    seen, found = measured(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)), batch_up_to=3)

    assert [(layers.name, layers.parameters, layers.boundary_bytes) for layers in found.classes] == [
        ("Linear", 40, 32),
        ("Tanh", 0, 32),
        ("Linear-2", 18, 8),
    ]
    assert [[cost.saved_bytes for cost in costs] for costs in found.costs] == [[0, 0, 0], [32, 64, 96], [0, 0, 0]]
    assert found.optimizer_us_per_mib > 0
    assert seen == [(done, 9) for done in range(1, 10)]


def test_layers_that_are_alike_are_measured_once() -> None:
    """The second Linear(4, 4) has no bias; Tanh is another layer on another shape."""
    parts = (nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Linear(4, 2))
    seen, found = measured(Chain(*parts, nn.Tanh()), batch_up_to=1)

    assert found.order == (0, 1, 0, 2, 1, 3, 4)
    assert [layers.count for layers in found.classes] == [2, 2, 1, 1, 1]
    assert [layers.name for layers in found.classes] == ["Linear", "Tanh", "Linear-2", "Linear-3", "Tanh-2"]
    assert seen[-1] == (5, 5)


@pytest.fixture
def counted_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass of a layer takes 1 ms, a step of a sharded one 5 ms, a look at the clock 1 us; all else takes no time."""
    now_s = [0.0]

    def takes(kind: type, name: str, taken_s: float) -> None:
        own = getattr(kind, name)

        def called(*arguments: object) -> object:
            now_s[0] += taken_s
            return own(*arguments)

        monkeypatch.setattr(kind, name, called)

    def clock(_: Bench) -> float:
        now_s[0] += 1e-6
        return now_s[0]

    takes(FlatLayer, "run", 1e-3)
    takes(FlatLayer, "backward", 1e-3)
    takes(ShardedLayer, "step", 5e-3)
    monkeypatch.setattr(Bench, "_clock", clock)


@pytest.mark.usefixtures("counted_time")
def test_what_fsdp2_takes_beside_a_layer(capsys: pytest.CaptureFixture[str]) -> None:
    """5 ms less a forward and a backward pass of 1 ms; nothing without parameters. The model stays as it is."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))
    _, found = measured(model)

    assert found.fsdp2_us == pytest.approx((3_000, 0, 3_000))
    assert [type(layer) for layer in model] == [nn.Linear, nn.Tanh, nn.Linear]
    assert all(type(value) is nn.Parameter for value in model.parameters())
    assert not torch.distributed.is_initialized()
    assert not capsys.readouterr().err


class Scaled(nn.Module):
    """A layer with a parameter that has no dimension to be cut along."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x


@pytest.mark.usefixtures("counted_time")
def test_a_layer_that_fsdp2_cannot_have_is_measured_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    _, found = measured(nn.Sequential(nn.Linear(4, 4), Scaled(), nn.Linear(4, 4)))

    assert found.fsdp2_us == pytest.approx((3_000, 0))
    assert [layers.name for layers in found.classes] == ["Linear", "Scaled"]
    assert "layer 1: what fsdp2 takes beside it is not known: " in capsys.readouterr().err


class Operations(TorchDispatchMode):
    """Names of what torch computes with."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_gradients_in_float64_are_not_divided_as_the_engine_does_not_divide_them() -> None:
    """By default torch halves them, ahead of their sum over two ranks."""
    with absent_peer(CPU):
        sharded = ShardedLayer(nn.Linear(4, 4).double(), CPU)
        with Operations() as seen:
            sharded.step(torch.ones(1, 4).double(), torch.ones(1, 4).double())

    assert "reduce_scatter_tensor_coalesced_" in seen.names or "_reduce_scatter_base_" in seen.names
    assert "div_" not in seen.names


class Uncopied(nn.Linear):
    """A layer that asserts what is so in the user's own program."""

    def __deepcopy__(self, memo: dict[int, object]) -> nn.Module:
        raise AssertionError


@pytest.mark.usefixtures("counted_time")
def test_an_error_of_the_users_code_under_fsdp2_does_not_end_the_measurement(
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, found = measured(nn.Sequential(Uncopied(4, 4), nn.Linear(4, 4)))

    assert found.fsdp2_us == pytest.approx((0, 3_000))
    assert "layer 0: what fsdp2 takes beside it is not known: AssertionError" in capsys.readouterr().err


@pytest.mark.usefixtures("counted_time")
def test_a_module_that_has_made_a_process_group_keeps_it(capsys: pytest.CaptureFixture[str]) -> None:
    """There is one by default in a process: what it takes to be measured is left out, and said."""
    torch.distributed.init_process_group(torch.distributed.Backend.FAKE, rank=0, world_size=2)
    try:
        _, found = measured(nn.Sequential(nn.Linear(4, 4)))
        assert torch.distributed.is_initialized()
    finally:
        torch.distributed.destroy_process_group()

    assert found.fsdp2_us == (0.0,)
    assert "what fsdp2 takes beside the layers is not known" in capsys.readouterr().err


def test_nothing_flows_back_through_whole_numbers_and_all_else_takes_time() -> None:
    _, found = measured(nn.Sequential(nn.Flatten(), nn.Embedding(9, 4), nn.Linear(4, 4)), 1, torch.zeros(1, 5).long())

    flat, embedding, linear = (costs[0] for costs in found.costs)
    assert flat.backward.median_us == LEAST_US
    assert min(flat.forward.p10_us, embedding.backward.p10_us, linear.backward.p10_us) > LEAST_US


def test_the_device_has_memory_for_two_samples() -> None:
    """Then no class has a third, and where it has none for one, that is the answer."""
    _, found = measured(nn.Sequential(nn.Linear(4, 4), Limited(2)), batch_up_to=4)
    assert [len(costs) for costs in found.costs] == [2, 2]

    with pytest.raises(UnusableModelError, match=r"not even one sample fits: CUDA out of memory"):
        measured(nn.Sequential(Limited(0)))


def test_a_batch_norm_is_measured_all_the_same() -> None:
    """One sample is too few for it in training."""
    _, found = measured(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), batch_up_to=1)
    assert [layers.name for layers in found.classes] == ["Linear", "BatchNorm1d"]


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (nn.Linear(5, 3), "layer 1 fails: RuntimeError: mat1 and mat2 shapes cannot be multiplied"),
        (nn.ReLU(inplace=True), "layer 1 fails: RuntimeError: a leaf Variable that requires grad is"),
        (Wrong(lambda x: (x, x)), "layer 1 returns a tuple: layers of a chain return one tensor"),
        (Wrong(lambda x: x.sum()), r"layer 1 returns shape \(\) for 1 samples: the first dimension"),
        (Wrong(lambda x: torch.cat([x, x])), r"layer 1 returns shape \(2, 4\) for 1 samples"),
    ],
)
def test_a_layer_that_fails_is_named(wrong: nn.Module, sentence: str) -> None:
    with pytest.raises(UserCodeError, match=sentence):
        measured(nn.Sequential(nn.Linear(4, 4), wrong))


def tied(*, within: bool) -> nn.Module:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    return nn.Sequential(nn.Sequential(first, second)) if within else nn.Sequential(first, second)


@pytest.mark.parametrize(
    ("model", "refused"),
    [
        (tied(within=False), "0.weight and 1.weight are one parameter, shared between layers"),
        (tied(within=True), ""),
        (nn.Sequential(nn.Tanh(), nn.Sequential(nn.BatchNorm2d(3))), "1.0 is a BatchNorm2d: its result depends on"),
        (nn.Sequential(nn.BatchNorm1d(4)), "0 is a BatchNorm1d: its result depends on"),
        (nn.Sequential(nn.InstanceNorm1d(4, track_running_stats=True)), "0 is a InstanceNorm1d"),
        (nn.Sequential(nn.InstanceNorm1d(4), nn.LayerNorm(4), nn.Dropout()), ""),
    ],
)
def test_what_no_engine_trains_is_said(model: nn.Module, refused: str) -> None:
    found = refusal_of(chain_of(model))
    assert found.startswith(refused)
    assert bool(found) == bool(refused)


def test_one_type_of_parameters() -> None:
    assert element_type(chain_of(nn.Sequential(nn.Linear(4, 4).double()))) is torch.float64
    assert element_type(chain_of(nn.Sequential(nn.Tanh()))) is torch.float32
    with pytest.raises(UnusableModelError, match=r"several types: 0\.weight is float32, 1\.weight is float64"):
        element_type(chain_of(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4).double())))


def test_an_example_begins_again_where_it_ends() -> None:
    example = torch.tensor([[1.0], [2.0]])
    assert of_example((example,))(3).tolist() == [[1], [2], [1]]
    assert cast(of_example(example), torch.float64)(1).dtype is torch.float64
    assert cast(of_example(example.long()), torch.float64)(1).dtype is torch.int64
    for wrong in ({"x": example}, torch.tensor(1.0), torch.empty(0, 3), (example, example)):
        with pytest.raises(UserCodeError, match="not one tensor with the samples first"):
            of_example(wrong)


def test_inputs_of_a_data_set_are_collated() -> None:
    pairs = [(torch.tensor([float(place)]), place) for place in range(2)]
    assert of_data(pairs, "d.py:d")(3).tolist() == [[0], [1], [0]]
    with pytest.raises(UserCodeError, match=r"samples of d\.py:d have to be pairs \(input, target\)"):
        of_data([torch.ones(1)], "d.py:d")(1)
    for nothing in ((), 5):
        with pytest.raises(UserCodeError, match=f"gives a {type(nothing).__name__}: it has to return a data set"):
            of_data(nothing, "d.py:d")


def test_what_a_worker_loads_is_reserved() -> None:
    """In a new process: a rank that then trains a small model uses no more than a tenth beyond that."""
    program = """
import re, torch
from pathlib import Path
from services.collector.layers.measuring import reserved_bytes
reserved = reserved_bytes(torch.device("cpu"))
import services.trainer.worker.run
layer = torch.nn.Linear(64, 64)
layer(torch.ones(8, 64)).sum().backward()
torch.optim.AdamW(layer.parameters()).step()
peak = re.search("VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())
print(reserved, int(peak[1]) << 10)  # ru_maxrss would be this process' parent's, where that is larger
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    reserved, used = map(int, done.stdout.split())

    assert 50 << 20 < reserved <= used < 1.1 * reserved


def test_more_samples_keep_more() -> None:
    _, found = measured(nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 64), nn.GELU(), nn.Linear(64, 4))), 4)
    assert all(first.saved_bytes < second.saved_bytes for first, second in pairwise(found.costs[1]))

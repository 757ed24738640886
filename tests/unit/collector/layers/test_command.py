"""What the tool says where nothing can be measured, before it measures."""

from __future__ import annotations

from pathlib import Path

import pytest

from services._runtime.command.errors import CommandError, UnavailableError, UsageError
from services.collector.layers.command import profile_of
from services.collector.layers.options import parse
from services.collector.tool import BadDataError

JOB = Path(__file__).parents[3] / "support" / "trainer_job"
MODEL = f"{JOB}/small_model.py:build"
HALVES = ("--input-shape", "3", "--input-dtype")


@pytest.mark.parametrize(
    ("words", "kind", "sentence"),
    [
        (("torch.nn:Tanh", "--input-shape", "3"), BadDataError, "Tanh is no chain of layers"),
        ((MODEL,), UsageError, "which input? give --data or --input-shape, or let the function return"),
        ((MODEL, *HALVES, "half_a_float"), UsageError, "'half_a_float' is no type of torch"),
        (
            (MODEL, *HALVES, "float32"),
            BadDataError,
            "layer 0 fails: RuntimeError: Expected tensor for argument #1 'indices'",
        ),
        ((MODEL, "--data", "torch:tensor"), BadDataError, "torch:tensor() fails: TypeError"),
        (("m.py:build", "--input-shape", "3"), BadDataError, "there is no file m.py"),
        (("m.py:build", "--device", "cuda:99"), UnavailableError, "there is no cuda:99: torch "),
    ],
)
def test_what_cannot_be_measured_is_said(words: tuple[str, ...], kind: type[CommandError], sentence: str) -> None:
    with pytest.raises(kind) as raised:
        profile_of(parse(list(words)), lambda: None)
    assert str(raised.value).startswith(sentence)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--device", "tpu"), "'tpu' is no device: cpu, cuda:0, or sandbox:0.5 for half a core"),
        (("--device", "sandbox:none"), "'none' is no number"),
        (("--device", "sandbox:0"), "0 is not within 0.01 and 1024"),
        (("--batch-up-to", "257"), "257 is not within 1 and 256"),
        (("--dtype", "int8"), "invalid choice: 'int8'"),
    ],
)
def test_a_wrong_option_is_said(words: tuple[str, ...], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(["m.py:build", *words])
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err


SCALAR = """
import torch
from torch import nn

class Gain(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(2.0))

    def forward(self, given):
        return self.gain * given

def build():
    return nn.Sequential(nn.Linear(4, 4), Gain())

def build_vector():
    return nn.Sequential(nn.Linear(4, 4))
"""


@pytest.mark.parametrize(("function", "has_scalars"), [("build", True), ("build_vector", False)])
def test_parameters_without_dimensions_are_noted(function: str, has_scalars: bool, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(SCALAR)
    words = [f"{tmp_path}/model.py:{function}", "--input-shape", "4", "--batch-up-to", "1"]

    profile = profile_of(parse(words), lambda: None)

    assert profile.scalar_parameters is has_scalars
    assert not profile.refused


def test_places() -> None:
    found = [parse(["m.py:build", "--device", text]).device for text in ("cpu", "cuda", "cuda:3", "sandbox:0.25")]
    assert [(place.device, place.cpu_cores) for place in found] == [
        ("cpu", None),
        ("cuda:0", None),
        ("cuda:3", None),
        ("cpu", 0.25),
    ]

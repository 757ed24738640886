"""The features tool, on modules of a user's own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from services._runtime.command.errors import UsageError
from services.collector.profiler.features import features_of, parse
from services.collector.tool import BadDataError

MODEL = """
import torch
from torch import nn

print("importing")

def build():
    print("building")
    return nn.Sequential(nn.Linear(4, 3), nn.ReLU())

def with_example():
    return build(), torch.zeros(2, 4)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x)

ready = nn.Linear(4, 3)

def broken():
    raise KeyError("no data here")

def number():
    return 3
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of the user's file; its directory is the current one."""
    (tmp_path / "user_model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "user_model", raising=False)
    return "user_model"


@pytest.mark.parametrize("attribute", ["build", "Net", "ready"])
def test_function_class_or_module(model: str, attribute: str) -> None:
    arguments = [f"{model}:{attribute}", "--input-shape", "4", "--optimizer", "Adam", "--learning-rate", "0.01"]
    found = features_of(parse([*arguments, "--epochs", "3", "--samples-per-epoch", "60", "--attribute", "words=many"]))
    # 4*3 + 3; 2 * 12
    assert (found.parameter_count, found.input_elements, found.output_elements) == (15, 4, 3)
    assert found.forward_flops == 24
    # forward, and the weights' gradients; weights read, their gradients and the bias' written
    assert (found.step_flops, found.step_weight_bytes) == (48, 4 * (12 + 3 + 12 + 3))
    assert found.step_bytes > 0
    assert found.activation_bytes == (12 if "ReLU" in found.layers else 0)  # its output, beside the input
    assert (found.optimizer, found.learning_rate, found.epochs, found.samples_per_epoch) == ("Adam", 0.01, 3, 60)
    assert found.task == f"{model}:{attribute}"
    assert found.attributes == {"words": "many"}


def test_a_file_with_an_example_input(model: str) -> None:
    assert features_of(parse([f"{model}.py:with_example", "--task", "mine"])).task == "mine"


def test_without_an_input(model: str) -> None:
    with pytest.raises(UsageError, match="--input-shape"):
        features_of(parse([f"{model}:build"]))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("user_model", "not module:function"),
        ("missing_module:build", "importing missing_module fails: ModuleNotFoundError"),
        ("missing.py:build", "no file missing.py"),
        ("user_model:missing", "has no missing"),
        ("user_model:broken", r"broken\(\) fails: KeyError: 'no data here' \(user_model.py:25\)"),
        ("user_model:number", "gives a int, not a torch.nn.Module"),
    ],
)
@pytest.mark.usefixtures("model")
def test_modules_that_cannot_be_used(name: str, words: str) -> None:
    with pytest.raises(BadDataError, match=words):
        features_of(parse([name, "--input-shape", "4"]))


def test_a_forward_pass_that_fails(model: str) -> None:
    with pytest.raises(BadDataError, match=r"forward pass fails on float32 of shape \(2, 5\)"):
        features_of(parse([f"{model}:build", "--input-shape", "5"]))


def test_a_number_that_makes_no_sense(model: str) -> None:
    with pytest.raises(BadDataError, match="learning_rate"):
        features_of(parse([f"{model}:build", "--input-shape", "4", "--learning-rate", "-1"]))


def test_the_user_may_have_modules_of_our_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "schemas.py").write_text("WIDTH = 5")
    (tmp_path / "mine.py").write_text(
        "def build():\n    from schemas import WIDTH\n    from torch import nn\n    return nn.Linear(4, WIDTH)"
    )
    ours = sys.modules["schemas"]
    # 4*5 + 5
    assert features_of(parse(["mine.py:build", "--input-shape", "4"])).parameter_count == 25
    assert sys.modules["schemas"] is ours

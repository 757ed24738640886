"""A model as a chain of layers: their names, what is none, and what layers share."""

from __future__ import annotations

import pytest
from torch import nn

from services._jobs.layer_chain import UnusableModelError, batch_norm_in, chain_of, shared_parameter_of


class Listed(nn.Module):
    """A model that says what its layers are."""

    def __init__(self, *places: int, foreign: bool = False) -> None:
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3), nn.Tanh()])
        self._places, self._foreign = places, foreign

    def layers(self) -> list[nn.Module]:
        return [nn.Tanh()] if self._foreign else [self.parts[place] for place in self._places]


def tied(*, within: bool) -> nn.Sequential:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    return nn.Sequential(nn.Sequential(first, second)) if within else nn.Sequential(first, second)


def test_the_layers_of_a_chain_and_their_names() -> None:
    assert [name for name, _ in chain_of(nn.Sequential(nn.Linear(2, 2), nn.Tanh()))] == ["0", "1"]
    assert [name for name, _ in chain_of(Listed(0, 1))] == ["parts.0", "parts.1"]


def test_a_module_that_stands_twice_is_two_layers() -> None:
    """`named_children` lists it once: the model would be measured and trained without its second activation."""
    activation = nn.Tanh()
    layers = chain_of(nn.Sequential(nn.Linear(2, 2), activation, nn.Linear(2, 2), activation))

    assert [name for name, _ in layers] == ["0", "1", "2", "3"]
    assert layers[3][1] is activation
    assert shared_parameter_of(layers) == ""
    assert [name for name, _ in chain_of(Listed(0, 2, 1, 2))] == ["parts.0", "parts.2", "parts.1", "parts.2"]


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.Linear(4, 3), "Linear is no chain of layers: return an nn.Sequential, or a module whose method layers()"),
        (nn.Sequential(), "Sequential has no layers"),
        (Listed(foreign=True), r"Listed\.layers\(\) has to return modules that are parts of it"),
        (Listed(0), r"parts\.1\.weight is a parameter of the model, but of none of the modules of layers\(\)"),
        (nn.Sequential(nn.LazyLinear(3)), r"0\.weight has no size before its module has had an input"),
    ],
)
def test_what_is_no_chain_is_said(model: nn.Module, words: str) -> None:
    with pytest.raises(UnusableModelError, match=words):
        chain_of(model)


def test_parameters_that_layers_share() -> None:
    block = nn.Linear(2, 2)

    assert shared_parameter_of(chain_of(tied(within=False))).startswith("0.weight and 1.weight are one parameter")
    assert shared_parameter_of(chain_of(tied(within=True))) == ""
    assert shared_parameter_of(chain_of(nn.Sequential(block, block))).startswith("0.weight and 1.weight are one")
    assert shared_parameter_of(chain_of(Listed(0, 1, 0))) == "parts.0.weight is one parameter, shared between layers"


@pytest.mark.parametrize(
    "norm", [nn.BatchNorm1d(3), nn.SyncBatchNorm(3), nn.InstanceNorm1d(3, track_running_stats=True)]
)
def test_norms_over_samples(norm: nn.Module) -> None:
    named = f"is a {type(norm).__name__}: its result depends on which samples"

    assert batch_norm_in(chain_of(nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.Tanh(), norm)))).startswith(
        f"1.1 {named}"
    )
    assert batch_norm_in([("", norm)]).startswith(f"the model {named}")
    assert batch_norm_in(chain_of(nn.Sequential(nn.LayerNorm(3), nn.GroupNorm(1, 3), nn.InstanceNorm1d(3)))) == ""

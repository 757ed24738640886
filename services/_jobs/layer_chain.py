"""A model as a chain of layers, each of which takes the last one's output; what of it depends on how work is divided.

Beside `recorded_build` the only module that services share which needs torch: who measures layers and who trains them
agree by it on what a layer is.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

Layers = list[tuple[str, nn.Module]]
"""Each with its name in the model."""


class UnusableModelError(Exception):
    """The model's layers cannot be used; the message says why and what would help."""


def chain_of(model: nn.Module) -> Layers:
    """The layers of an `nn.Sequential`, or of a module with a method ``layers()`` that returns a list of them.

    A module that stands twice is two layers.

    Raises:
        UnusableModelError: the model is no chain, or not all of its parameters are there.
    """
    layers = _children(model) if isinstance(model, nn.Sequential) else _listed(model)
    if not layers:
        raise UnusableModelError(f"{type(model).__name__} has no layers")
    held = {id(parameter) for _, layer in layers for parameter in layer.parameters()}
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise UnusableModelError(f"{name} has no size before its module has had an input: call the model once")
        if id(parameter) not in held:
            raise UnusableModelError(f"{name} is a parameter of the model, but of none of the modules of layers()")
    return layers


def _children(model: nn.Sequential) -> Layers:
    """As `named_children`, which leaves out a module's second place (an activation that is used again)."""
    named = model.named_modules(remove_duplicate=False)
    return [(name, part) for name, part in named if name and "." not in name]


def _listed(model: nn.Module) -> Layers:
    method: Any = getattr(model, "layers", None)
    if not callable(method) or isinstance(method, nn.Module):
        raise UnusableModelError(
            f"{type(model).__name__} is no chain of layers: return an nn.Sequential, or a module whose method layers() "
            "returns a list of modules, each of which takes the last one's output"
        )
    names = {id(part): name for name, part in model.named_modules()}
    listed = list(method())
    if any(id(layer) not in names for layer in listed):
        raise UnusableModelError(f"{type(model).__name__}.layers() has to return modules that are parts of it")
    return [(names[id(layer)], layer) for layer in listed]


def batch_norm_in(layers: Layers) -> str:
    """Which module's result depends on how a batch is divided, in a sentence; empty: none does."""
    for layer, module in layers:
        for name, part in module.named_modules():
            if is_batch_norm(part):
                return (
                    f"{f'{layer}.{name}'.strip('.') or 'the model'} is a {type(part).__name__}: its result depends on "
                    "which samples a device computes together, so on the plan. Use LayerNorm or GroupNorm"
                )
    return ""


def shared_parameter_of(layers: Layers) -> str:
    """Which parameter two layers share, as the beginning of a sentence; empty: none is shared."""
    owners: dict[int, tuple[int, str]] = {}
    for place, (layer, module) in enumerate(layers):
        for name, parameter in module.named_parameters():
            full = f"{layer}.{name}"
            other_place, other = owners.setdefault(id(parameter), (place, full))
            if other_place != place:
                names = f"{other} and {full} are" if other != full else f"{full} is"
                return f"{names} one parameter, shared between layers"
    return ""


def scalar_parameters_of(model: nn.Module) -> list[str]:
    """Names of parameters without dimensions, frozen ones, too: `fully_shard`, which cuts rows, refuses them."""
    return [name for name, parameter in model.named_parameters() if parameter.dim() == 0]


def is_batch_norm(part: nn.Module) -> bool:
    """Whether its result depends on the other samples of a batch."""
    base = nn.modules.batchnorm._BatchNorm  # noqa: SLF001 - the base of all BatchNorms
    return isinstance(part, base) or bool(getattr(part, "track_running_stats", False))

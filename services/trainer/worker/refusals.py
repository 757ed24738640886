"""Models and optimizers that no plan can be carried out with: each reason is a sentence (exit code 65)."""

from __future__ import annotations

from collections import Counter
from typing import Final

import torch
from torch import nn

from schemas.plans import Engine
from services._jobs.layer_chain import (
    Layers,
    UnusableModelError,
    batch_norm_in,
    chain_of,
    scalar_parameters_of,
    shared_parameter_of,
)
from services.trainer.worker.plan_file import RefusedError

ELEMENTWISE: Final = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)
"""Each element's update depends on that element alone: it is the same wherever a vector is cut."""


def check_model(model: nn.Module) -> None:
    """Refuse modules whose result depends on which samples are computed together.

    Raises:
        RefusedError: names the module.
    """
    if refused := batch_norm_in([("", model)]):
        raise RefusedError(refused)


def check_sharded(model: nn.Module) -> None:
    """Refuse parameters that engine fsdp2 cannot cut.

    Raises:
        RefusedError: names them.
    """
    names = scalar_parameters_of(model)
    if names:
        which = f"{names[0]} has" if len(names) == 1 else f"{names[0]} and {len(names) - 1} more parameters have"
        raise RefusedError(
            f"{which} no dimensions, but engine fsdp2 cuts parameters along their first one: make it a vector of one "
            "element; or measure the model's layers again (turnbuckle layers) and plan with that, if they are a chain"
        )


def layered_chain(model: nn.Module, engine: Engine = Engine.LAYERED) -> Layers:
    """The layers that engine layered, or ministage, cuts and gathers, each by itself.

    Raises:
        RefusedError: the model is no chain, or layers share a parameter.
    """
    try:
        layers = chain_of(model)
    except UnusableModelError as error:
        raise RefusedError(f"{error}. Engine {engine} needs that; or plan for engine fsdp2") from error
    if shared := shared_parameter_of(layers):
        raise RefusedError(
            f"{shared}: engine {engine} gathers and reduces each layer by itself. Untie them, or plan for engine fsdp2"
        )
    return layers


def check_optimizer(optimizer: object, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Refuse optimizers that see more of a parameter than one element at a time.

    Raises:
        RefusedError: it is another one, or does not have exactly the given parameters in one group.
    """
    names = ", ".join(kind.__name__ for kind in ELEMENTWISE)
    if type(optimizer) not in ELEMENTWISE:
        raise RefusedError(
            f"{type(optimizer).__name__} is not known to update each element by itself, but devices hold cut vectors, "
            f"not whole parameters: use one of {names}"
        )
    assert isinstance(optimizer, torch.optim.Optimizer)
    held = [id(parameter) for group in optimizer.param_groups for parameter in group["params"]]
    if len(optimizer.param_groups) != 1 or Counter(held) != Counter(map(id, parameters)):
        raise RefusedError("the optimizer has to have all parameters that it was given, in one group")
    return optimizer

"""Which layers of a chain compute the same, in which type, and why no engine trains them."""

from __future__ import annotations

import torch
from torch import nn

from services._jobs.layer_chain import Layers, UnusableModelError, batch_norm_in, shared_parameter_of


def element_type(layers: Layers) -> torch.dtype:
    """Of all trainable parameters; torch's default where there are none.

    Raises:
        UnusableModelError: there are several.
    """
    found: dict[torch.dtype, str] = {}
    for layer, module in layers:
        for name, parameter in module.named_parameters():
            if parameter.requires_grad:
                found.setdefault(parameter.dtype, f"{layer}.{name}")
    if len(found) > 1:
        named = ", ".join(f"{name} is {dtype}".replace("torch.", "") for dtype, name in found.items())
        raise UnusableModelError(f"the model has trainable parameters of several types: {named}")
    return next(iter(found), torch.get_default_dtype())


def refusal_of(layers: Layers) -> str:
    """Why no engine can train it, in a sentence; empty: one can."""
    if refused := batch_norm_in(layers):
        return refused
    shared = shared_parameter_of(layers)
    return f"{shared}: untie them" if shared else ""


def structure_of(layer: nn.Module) -> str:
    """Layers with the same text compute the same, on an input of the same shape: modules, shapes and types."""
    tensors = [
        f"{name} {tuple(value.shape)} {value.dtype} {value.requires_grad}"
        for name, value in (*layer.named_parameters(), *layer.named_buffers())
    ]
    return "\n".join((f"{type(layer).__module__}.{type(layer).__qualname__}", repr(layer), *tensors))

"""A model's parts that FSDP2 gathers, and a text of its parameters that ranks compare."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from services._jobs.layer_chain import Layers


def blocks_of(model: nn.Module) -> Layers:
    """The parts that FSDP2 gathers one after another: layers of a chain, else the longest list of one class."""
    if isinstance(model, nn.Sequential):
        return list(model.named_children())
    lists = [
        (name, part)
        for name, part in model.named_modules()
        if isinstance(part, nn.ModuleList) and len({type(block) for block in part}) == 1
    ]
    if not lists:
        return []
    name, longest = max(lists, key=lambda found: len(found[1]))
    return [(f"{name}.{index}" if name else str(index), block) for index, block in enumerate(longest)]


def digest_text(layers: Sequence[tuple[str, nn.Module]]) -> str:
    """Names, shapes and types of all parameters: ranks that differ in them cannot train together."""
    lines = [
        f"{layer}.{name} {tuple(parameter.shape)} {parameter.dtype} {parameter.requires_grad}"
        for layer, module in layers
        for name, parameter in module.named_parameters()
    ]
    return "\n".join(lines)

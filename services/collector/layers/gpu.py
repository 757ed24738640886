"""GPUs by the names that layer profiles and clusters have for them."""

from __future__ import annotations

import torch


def visible_gpus() -> list[tuple[str, int]]:
    """Name and memory in bytes of each GPU that torch sees."""
    if not torch.cuda.is_available():
        return []
    found = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return [(each.name, each.total_memory) for each in found]


def kind_of_name(name: str) -> str:
    """`Device.kind` of a GPU: ``l4``, ``h100-80gb-hbm3``."""
    return name.lower().removeprefix("nvidia ").replace(" ", "-")

"""Generated pictures: textures of ten kinds, for the two image tasks."""

from __future__ import annotations

import math

import torch
from torch.utils.data import TensorDataset

CLASSES, SIDE, CHANNELS = 10, 32, 3


def build_textures(samples: int, seed: int) -> TensorDataset:
    """Stripes of ten directions with a random colour, period, phase and noise; shape ``(samples, 3, 32, 32)``."""
    draw = torch.Generator().manual_seed(seed)
    label = torch.randint(CLASSES, (samples,), generator=draw)
    direction = (math.pi * label / CLASSES)[:, None, None]
    period = 4 + 4 * torch.rand(samples, 1, 1, generator=draw)
    phase = 2 * math.pi * torch.rand(samples, 1, 1, generator=draw)
    x, y = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    stripes = (2 * math.pi * (x * direction.cos() + y * direction.sin()) / period + phase).sin()
    colour = torch.rand(samples, CHANNELS, 1, 1, generator=draw)
    noise = 0.3 * torch.randn(samples, CHANNELS, SIDE, SIDE, generator=draw)
    return TensorDataset(stripes[:, None] * colour + noise, label)

"""4,096 samples for model.py: what a fixed network makes of random numbers."""

from __future__ import annotations

import torch
from torch.utils.data import TensorDataset


def batches() -> TensorDataset:
    """A data set with a length, and a pair (input, target) for each index; the trainer makes the batches."""
    draw = torch.Generator().manual_seed(1)
    inputs = torch.randn(4_096, 64, generator=draw)
    first, second = torch.randn(64, 32, generator=draw) / 8, torch.randn(32, 8, generator=draw) / 6
    return TensorDataset(inputs, torch.tanh(inputs @ first) @ second)

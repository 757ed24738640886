"""The job whose workers come and go: a small transformer, of which each step sends much and computes little."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tests.bench.unequal.job import Block

BLOCKS: Final = 4
WIDTH: Final = 128
POSITIONS: Final = 32
SAMPLES: Final = 512


def build() -> nn.Sequential:
    """0.8 million parameters."""
    return nn.Sequential(*(Block(WIDTH) for _ in range(BLOCKS)))


def samples() -> TensorDataset:
    """Random numbers."""
    draw = torch.Generator().manual_seed(1)
    inputs, targets = (torch.randn(SAMPLES, POSITIONS, WIDTH, generator=draw) for _ in range(2))
    return TensorDataset(inputs, targets)


def loss(output: Tensor, target: Tensor) -> Tensor:
    """The sum over a micro-batch's samples of each one's mean square."""
    return (output - target).square().mean(dim=(1, 2)).sum()


def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """With two moments."""
    return torch.optim.AdamW(parameters, lr=1e-4)

"""A small network that learns what another one computes: a chain of layers, its loss, its optimizer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

WIDTH = 256


def build() -> nn.Sequential:
    """64 numbers to 8: each layer takes the output of the one before it."""
    return nn.Sequential(
        nn.Linear(64, WIDTH),
        nn.GELU(),
        nn.Linear(WIDTH, WIDTH),
        nn.GELU(),
        nn.Linear(WIDTH, 8),
    )


def loss(output: Tensor, target: Tensor) -> Tensor:
    """The sum over a micro-batch's samples of each one's loss."""
    return (output - target).square().mean(dim=1).sum()


def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """SGD, Adam or AdamW, over all of them."""
    return torch.optim.AdamW(parameters, lr=1e-3)

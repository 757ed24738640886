"""The training jobs of the benchmark, as a user writes them: chains of alike blocks, their loss, optimizer and data.

`large_build` has much state and little to compute for a sample; `long_build` the other way round.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.data import TensorDataset

HEAD_WIDTH: Final = 64
SAMPLES: Final = 64


class Shape(NamedTuple):
    """Of a model."""

    blocks: int
    width: int
    positions: int
    """Of a sample."""


LONG: Final = Shape(4, 256, 128)
LARGE: Final = Shape(12, 512, 24)


class Block(nn.Module):
    """Attention, and two linear layers, each beside its input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.inner = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        samples, length, width = x.shape
        parts = self.queries(self.first_norm(x)).view(samples, length, 3, width // HEAD_WIDTH, HEAD_WIDTH)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(query, key, value)
        x = x + self.out(mixed.transpose(1, 2).reshape(samples, length, width))
        added: Tensor = x + self.inner(self.second_norm(x))
        return added


def long_build() -> nn.Sequential:
    """3.2 million parameters."""
    return _chain(LONG)


def long_samples() -> TensorDataset:
    """Random numbers."""
    return _drawn(LONG)


def large_build() -> nn.Sequential:
    """38 million parameters."""
    return _chain(LARGE)


def large_samples() -> TensorDataset:
    """Random numbers."""
    return _drawn(LARGE)


def loss(output: Tensor, target: Tensor) -> Tensor:
    """The sum over a micro-batch's samples of each one's mean square."""
    return (output - target).square().mean(dim=(1, 2)).sum()


def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """With two moments."""
    return torch.optim.AdamW(parameters, lr=1e-4)


def _chain(shape: Shape) -> nn.Sequential:
    return nn.Sequential(*(Block(shape.width) for _ in range(shape.blocks)))


def _drawn(shape: Shape) -> TensorDataset:
    draw = torch.Generator().manual_seed(1)
    inputs, targets = (torch.randn(SAMPLES, shape.positions, shape.width, generator=draw) for _ in range(2))
    return TensorDataset(inputs, targets)

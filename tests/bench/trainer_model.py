"""The transformer that the trainer's benchmarks train; also as a user's job, with loss, optimizer and data."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.data import TensorDataset

_HEAD_WIDTH: Final = 128
_JOB_SAMPLES: Final = 256


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a decoder: a chain of an embedding, blocks, and scores of the next token."""

    width: int
    blocks: int
    heads: int
    length: int
    """Tokens of a sample."""
    vocabulary: int

    @property
    def parameters(self) -> int:
        """Of the model."""
        block = 12 * self.width**2 + 13 * self.width
        ends = (2 * self.vocabulary + self.length) * self.width + self.vocabulary
        return self.blocks * block + ends


class Embedding(nn.Module):
    """Tokens and their places."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.token = nn.Embedding(shape.vocabulary, shape.width)
        self.place = nn.Parameter(torch.zeros(shape.length, shape.width))

    def forward(self, x: Tensor) -> Tensor:
        embedded: Tensor = self.token(x)
        return embedded + self.place


class Block(nn.Module):
    """Causal attention, and two linear layers."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.queries, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.inner = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        samples, length, width = x.shape
        parts = self.queries(self.first_norm(x)).view(samples, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(samples, length, width))
        added: Tensor = x + self.inner(self.second_norm(x))
        return added


def build(shape: Shape) -> nn.Sequential:
    """The model; the same parameters each time."""
    torch.manual_seed(0)
    blocks = (Block(shape) for _ in range(shape.blocks))
    return nn.Sequential(Embedding(shape), *blocks, nn.Linear(shape.width, shape.vocabulary))


def gpt() -> nn.Sequential:
    """The model of a job, of the shape that ``WIDTH``, ``BLOCKS``, ``LENGTH`` and ``VOCABULARY`` say."""
    return build(job_shape())


def job_shape() -> Shape:
    """Heads are as wide as GPUs like them."""
    width, blocks, length, vocabulary = (int(os.environ[key]) for key in ("WIDTH", "BLOCKS", "LENGTH", "VOCABULARY"))
    return Shape(width, blocks, max(width // _HEAD_WIDTH, 1), length, vocabulary)


def loss(output: Tensor, target: Tensor) -> Tensor:
    """The sum over a job's samples of each one's mean over its tokens."""
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten(), reduction="sum") / target.shape[1]


def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """One kernel for all parameters."""
    return torch.optim.AdamW(parameters, lr=1e-4, fused=True)


def batches() -> TensorDataset:
    """Random tokens: neither time nor memory depends on them."""
    shape, draw = job_shape(), torch.Generator().manual_seed(1)
    drawn = torch.randint(0, shape.vocabulary, (_JOB_SAMPLES, shape.length + 1), generator=draw)
    return TensorDataset(drawn[:, :-1], drawn[:, 1:])

"""A user's model, loss and optimizer for the trainer: a small chain in float64, as they would write it."""

from __future__ import annotations

import os
import signal

import torch
from torch import Tensor, nn

WIDTH, VOCABULARY = 12, 19


class Block(nn.Module):
    """A residual block with dropout."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.inner = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("scale", torch.full((), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        """Add to what comes."""
        return x + self.scale * self.dropout(self.inner(self.norm(x)))


def build(dropout: float = 0.0) -> nn.Sequential:
    """Five layers, one of them without parameters."""
    torch.manual_seed(3)
    layers = [nn.Embedding(VOCABULARY, WIDTH), Block(dropout), nn.Tanh(), Block(dropout), nn.Linear(WIDTH, VOCABULARY)]
    return nn.Sequential(*layers).double()


def build_deep() -> nn.Sequential:
    """Eleven layers, for groups that have several ministages each."""
    torch.manual_seed(4)
    blocks = [Block(0.0) if place % 4 != 2 else nn.Tanh() for place in range(9)]
    return nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), *blocks, nn.Linear(WIDTH, VOCABULARY)).double()


def build_single() -> nn.Sequential:
    """The same in float32."""
    return build().float()


def build_with_dropout() -> nn.Sequential:
    """The same, and the same parameters, with dropout."""
    return build(0.2)


class _Scaled(nn.Module):
    """Its table is no buffer, so the model has to be built as a whole."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.full((1,), 0.5, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        """Half of it."""
        return self.table * x


def build_as_a_whole() -> nn.Module:
    """The small model with a layer more, which cannot be recorded."""
    layers = list(build())
    return nn.Sequential(*layers[:2], _Scaled(), *layers[2:])


class _Gain(nn.Module):
    """A parameter without dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        """So many times as much."""
        return self.gain * x


def build_with_gain() -> nn.Module:
    """The small model with a layer more, which has one number."""
    layers = list(build())
    return nn.Sequential(*layers[:2], _Gain(), *layers[2:])


class _Tied(nn.Module):
    """No chain: what comes in is read by the same matrix that what goes out is written by."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList([Block(0.0), Block(0.0)])
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight
        self.blocks[1].requires_grad_(requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of the vocabulary."""
        inner: Tensor = self.embedding(x)
        for block in self.blocks:
            inner = block(inner)
        scores: Tensor = self.head(inner)
        return scores


def build_tied() -> nn.Module:
    """Shared parameters, and frozen ones, whose rows do not divide evenly among two ranks."""
    torch.manual_seed(5)
    return _Tied().double()


def build_of_rank() -> nn.Module:
    """What every rank has another one of."""
    return nn.Sequential(nn.Linear(4, 4 + int(os.environ["RANK"])))


def build_with_batch_norm() -> nn.Module:
    """What is refused."""
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))


def loss(output: Tensor, target: Tensor) -> Tensor:
    """Sum over samples of each one's mean over positions."""
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten(), reduction="sum") / target.shape[1]


_calls = 0


def loss_that_signals(output: Tensor, target: Tensor) -> Tensor:
    """The same; at its 7th call on a rank that is named, a signal to that rank."""
    global _calls  # noqa: PLW0603 - a user's module
    _calls += 1
    if _calls == 7 and os.environ["RANK"] == os.environ["SIGNALLED_RANK"]:
        os.kill(os.getpid(), signal.Signals[os.environ["SIGNAL"]])
    return loss(output, target)


def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """AdamW."""
    return torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.01)


def momentum(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """SGD with momentum."""
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def lbfgs(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """What is refused: its steps depend on all elements together."""
    return torch.optim.LBFGS(parameters)

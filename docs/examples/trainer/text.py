"""A small transformer that learns to continue docs/*.md byte by byte: chain of layers, loss, optimizer, data."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

WIDTH = 256
HEADS = 4
LENGTH = 256
BLOCKS = 4


class Input(nn.Module):
    """Bytes to vectors: what each is, and where it stands."""

    def __init__(self) -> None:
        super().__init__()
        self.byte, self.place = nn.Embedding(256, WIDTH), nn.Embedding(LENGTH, WIDTH)

    def forward(self, text: Tensor) -> Tensor:
        """Of shape (samples, LENGTH) to (samples, LENGTH, WIDTH)."""
        return self.byte(text) + self.place(torch.arange(text.shape[1], device=text.device))


class Block(nn.Module):
    """Attention to the bytes before, then two linear layers, each added to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.before_attention, self.before_linear = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.queries_keys_values, self.mixed = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.linear = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """The same shape as its input."""
        heads = self.queries_keys_values(self.before_attention(x)).unflatten(-1, (3, HEADS, -1))
        queries, keys, values = heads.permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.mixed(attended.transpose(1, 2).flatten(-2))
        return x + self.linear(self.before_linear(x))


class Output(nn.Module):
    """Vectors to how likely each byte comes next."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.scores = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 256)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of shape (samples, 256, LENGTH)."""
        return self.scores(self.norm(x)).transpose(1, 2).contiguous()


def build() -> nn.Sequential:
    """3.4 million parameters in six layers, each of which takes the output of the one before it."""
    return nn.Sequential(Input(), *(Block() for _ in range(BLOCKS)), Output())


def loss(output: Tensor, target: Tensor) -> Tensor:
    """The sum over a micro-batch's samples of each one's loss, the mean over its bytes."""
    return nn.functional.cross_entropy(output, target, reduction="none").mean(dim=1).sum()


def optimizer(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    """SGD, Adam or AdamW, over all of them."""
    return torch.optim.AdamW(parameters, lr=1e-3)


def batches() -> TensorDataset:
    """Each sample is LENGTH bytes of docs/*.md, and the byte that follows each; the trainer makes the batches."""
    pages = sorted(Path(__file__).parents[2].glob("*.md"))
    text = torch.frombuffer(bytearray(b"".join(page.read_bytes() for page in pages)), dtype=torch.uint8).long()
    samples = text.unfold(0, LENGTH + 1, LENGTH)
    return TensorDataset(samples[:, :-1], samples[:, 1:])

"""Networks of the public GPU set, as far as their work is counted: of Gavel's jobs and of Cephalo's layers.

Made on torch's meta device, where a step costs neither time nor memory. Sizes are those of the programs that Gavel runs
(scheduler/job_table.py and workloads/pytorch there) and of Cephalo's model_stats.json; Multi30k's sentences are taken
for 30 tokens and a vocabulary of 3,000 words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn

Made = tuple[nn.Module, Any]
"""A module, and its input of one batch."""
_META: Final = torch.device("meta")
_BPTT: Final = 35
_WIKITEXT2_WORDS: Final = 33_278
_SENTENCE: Final = 30
_MULTI30K_WORDS: Final = 3_000
_ML20M_ITEMS: Final = 20_108
SEVERAL: Final = 4
"""Samples of a counted batch."""


class _Residual(nn.Module):
    """A block of a residual network with its shortcut (He et al. 2015)."""

    def __init__(self, layers: nn.Sequential, shortcut: nn.Module) -> None:
        super().__init__()
        self.layers, self.shortcut = layers, shortcut

    def forward(self, images: Tensor) -> Tensor:
        """Add the shortcut."""
        return torch.relu(self.layers(images) + self.shortcut(images))


def _convolution(inputs: int, outputs: int, kernel: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False), nn.BatchNorm2d(outputs)
    )


def _block(inputs: int, width: int, stride: int, *, bottleneck: bool) -> _Residual:
    outputs = 4 * width if bottleneck else width
    sizes = (
        [(inputs, width, 1, 1), (width, width, 3, stride), (width, outputs, 1, 1)]
        if bottleneck
        else [(inputs, width, 3, stride), (width, outputs, 3, 1)]
    )
    layers: list[nn.Module] = [one for size in sizes for one in (_convolution(*size), nn.ReLU(inplace=True))][:-1]
    same = stride == 1 and inputs == outputs
    return _Residual(nn.Sequential(*layers), nn.Identity() if same else _convolution(inputs, outputs, 1, stride))


def _residual_network(stem: list[nn.Module], counts: tuple[int, ...], classes: int, *, bottleneck: bool) -> nn.Module:
    layers, inputs = list(stem), 64
    for stage, count in enumerate(counts):
        for number in range(count):
            stride = 2 if stage and not number else 1
            layers.append(_block(inputs, 64 << stage, stride, bottleneck=bottleneck))
            inputs = (64 << stage) * (4 if bottleneck else 1)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def _resnet18() -> Made:
    network = _residual_network([_convolution(3, 64, 3), nn.ReLU()], (2, 2, 2, 2), 10, bottleneck=False)
    return network, torch.empty(SEVERAL, 3, 32, 32)


def _resnet50() -> Made:
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    return _residual_network(stem, (3, 4, 6, 3), 1_000, bottleneck=True), torch.empty(SEVERAL, 3, 224, 224)


class _LanguageModel(nn.Module):
    """Two LSTM layers of 200 cells on wikitext-2."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_WIKITEXT2_WORDS, 200)
        self.cells = nn.LSTM(200, 200, 2, batch_first=True)
        self.words = nn.Linear(200, _WIKITEXT2_WORDS)

    def forward(self, words: Tensor) -> Tensor:
        """Return the scores of each next word."""
        scores: Tensor = self.words(self.cells(self.embedding(words))[0])
        return scores


class _Translator(nn.Module):
    """The base Transformer (Vaswani et al. 2017) on Multi30k."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = (nn.Embedding(_MULTI30K_WORDS, 512) for _ in range(2))
        self.layers = nn.Transformer(512, 8, 6, 6, 2_048, batch_first=True)
        self.words = nn.Linear(512, _MULTI30K_WORDS)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the scores of each next word."""
        scores: Tensor = self.words(self.layers(self.source(source), self.target(target)))
        return scores


def _words(length: int) -> Tensor:
    return torch.zeros(SEVERAL, length, dtype=torch.int64)


def _recommendation() -> Made:
    network = nn.Sequential(nn.Linear(_ML20M_ITEMS, 200), nn.Tanh(), nn.Linear(200, _ML20M_ITEMS))
    return network, torch.empty(SEVERAL, _ML20M_ITEMS)


class _GatedLayer(nn.Module):
    """A layer of LLaMA (Touvron et al. 2023): attention, and a gated feed-forward network."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.heads = width // 128 or 1
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(2))
        self.attention = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the layer's output, in the input's shape."""
        batch, length, width = tokens.shape
        normal = self.norms[0](tokens)
        query, key, value = (
            one(normal).view(batch, length, self.heads, -1).transpose(1, 2) for one in list(self.attention)[:3]
        )
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        tokens = tokens + self.attention[3](mixed.transpose(1, 2).reshape(batch, length, width))
        normal = self.norms[1](tokens)
        update: Tensor = self.down(nn.functional.silu(self.gate(normal)) * self.up(normal))
        return tokens + update


GAVEL: Final[Mapping[str, Callable[[], Made]]] = {
    "ResNet-18": _resnet18,
    "ResNet-50": _resnet50,
    "LM": lambda: (_LanguageModel(), _words(_BPTT)),
    "Transformer": lambda: (_Translator(), (_words(_SENTENCE), _words(_SENTENCE))),
    "Recommendation": _recommendation,
}
"""By Gavel's name of the model. A3C and CycleGAN are left out: games on the CPU, and two networks in turn."""


def gavel_model(name: str) -> Made | None:
    """Return one of Gavel's models and its input; None: its work is not counted."""
    with _META:
        return GAVEL[name]() if name in GAVEL else None


def cephalo_layer(name: str, stats: Mapping[str, int], length: int) -> Made:
    """Return one layer of a model, and its input: a batch of sequences of hidden vectors.

    Args:
        name: Of the model, as in Cephalo's files: LLaMA's layers are gated, others are those of GPT and BERT.
        stats: Its ``hidden_size`` and ``parameters_per_layer``.
        length: Of the sequences, in tokens.
    """
    width = stats["hidden_size"]
    with _META:
        tokens = torch.empty(SEVERAL, length, width)
        if "llama" in name:
            hidden = (stats["parameters_per_layer"] - 4 * width**2) // (3 * width)
            return _GatedLayer(width, hidden), tokens
        return nn.TransformerEncoderLayer(width, max(width // 64, 1), 4 * width, batch_first=True), tokens

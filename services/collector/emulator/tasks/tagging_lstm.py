"""Tagging of words with a bidirectional LSTM: many small steps, so that the batch size matters most."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from services.collector.emulator.tasks.task import TrainingTask

VOCABULARY, WORDS, WIDTH, HIDDEN, TAGS, SAMPLES = 600, 24, 32, 48, 12, 6144


class TaggingLstm(nn.Module):
    """Word vectors, a bidirectional LSTM, one dense layer for each word."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.lstm = nn.LSTM(WIDTH, HIDDEN, batch_first=True, bidirectional=True)
        self.classify = nn.Linear(2 * HIDDEN, TAGS)

    def forward(self, words: Tensor) -> Tensor:
        """Shape ``(batch, words)`` to ``(batch, words, tags)``."""
        states, _ = self.lstm(self.embedding(words))
        logits: Tensor = self.classify(states)
        return logits


def tagging_loss(logits: Tensor, tags: Tensor) -> Tensor:
    """Cross entropy over all words."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), tags.flatten())


def build_data(seed: int) -> TensorDataset:
    """Sentences whose tags follow from a word and the one before it."""
    draw = torch.Generator().manual_seed(seed)
    words = torch.randint(VOCABULARY, (SAMPLES, WORDS), generator=draw)
    return TensorDataset(words, (words + words.roll(1, dims=1) // 7) % TAGS)


TASK = TrainingTask(
    name="tagging-lstm",
    kind="tagging",
    build_model=TaggingLstm,
    build_data=build_data,
    loss=tagging_loss,
    build_optimizer=lambda parameters: torch.optim.Adam(parameters, lr=2e-3),
)

"""Text classification with a custom DNN: mean of the word vectors, then dense layers. Much to send for its size."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from services.collector.emulator.tasks.task import TrainingTask

VOCABULARY, WORDS, WIDTH, CLASSES, SAMPLES = 1000, 384, 48, 4, 6144


class TextDnn(nn.Module):
    """Embedding, mean over the words, three dense layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.Sequential(
            nn.Linear(WIDTH, 192), nn.ReLU(), nn.Linear(192, 64), nn.ReLU(), nn.Linear(64, CLASSES)
        )

    def forward(self, words: Tensor) -> Tensor:
        """Shape ``(batch, words)`` to ``(batch, classes)``."""
        logits: Tensor = self.layers(self.embedding(words).mean(dim=1))
        return logits


def build_data(seed: int) -> TensorDataset:
    """Documents whose words are drawn from their class' part of the vocabulary half of the time."""
    draw = torch.Generator().manual_seed(seed)
    label = torch.randint(CLASSES, (SAMPLES,), generator=draw)
    words = torch.randint(VOCABULARY, (SAMPLES, WORDS), generator=draw)
    part = VOCABULARY // CLASSES
    own = torch.randint(part, (SAMPLES, WORDS), generator=draw) + (label * part)[:, None]
    return TensorDataset(torch.where(torch.rand(SAMPLES, WORDS, generator=draw) < 0.5, own, words), label)


TASK = TrainingTask(
    name="text-dnn",
    kind="text classification",
    build_model=TextDnn,
    build_data=build_data,
    loss=nn.functional.cross_entropy,
    build_optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
)

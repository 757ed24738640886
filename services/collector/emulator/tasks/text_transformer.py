"""Text classification with a small transformer: two encoder layers. Much to compute, some to send."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from services.collector.emulator.tasks.task import TrainingTask

VOCABULARY, WORDS, WIDTH, HEADS, LAYERS, CLASSES, SAMPLES = 800, 48, 64, 4, 2, 2, 1536


class TextTransformer(nn.Module):
    """Word and position vectors, encoder layers, mean, one dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Parameter(torch.zeros(WORDS, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, dim_feedforward=4 * WIDTH, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.classify = nn.Linear(WIDTH, CLASSES)

    def forward(self, words: Tensor) -> Tensor:
        """Shape ``(batch, words)`` to ``(batch, classes)``."""
        encoded = self.encoder(self.embedding(words) + self.position)
        logits: Tensor = self.classify(encoded.mean(dim=1))
        return logits


def build_data(seed: int) -> TensorDataset:
    """Reviews: the label says whether a word of one kind comes before one of another kind."""
    draw = torch.Generator().manual_seed(seed)
    words = torch.randint(20, VOCABULARY, (SAMPLES, WORDS), generator=draw)
    label = torch.randint(2, (SAMPLES,), generator=draw)
    first = torch.randint(WORDS // 2, (SAMPLES,), generator=draw)
    second = first + 1 + torch.randint(WORDS // 2 - 1, (SAMPLES,), generator=draw)
    row = torch.arange(SAMPLES)
    words[row, first] = torch.where(label == 1, 1, 2)
    words[row, second] = torch.where(label == 1, 2, 1)
    return TensorDataset(words, label)


TASK = TrainingTask(
    name="text-transformer",
    kind="text classification",
    build_model=TextTransformer,
    build_data=build_data,
    loss=nn.functional.cross_entropy,
    build_optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=5e-4),
)

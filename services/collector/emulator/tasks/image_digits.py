"""Recognition of scikit-learn's handwritten digits (8 x 8, 1,797 of them) with a small CNN, over several epochs."""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from services.collector.emulator.tasks.task import TrainingTask

CLASSES = 10


class ImageDigits(nn.Module):
    """Two convolutions and two dense layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 24, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(24, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * 16, 48),
            nn.ReLU(),
            nn.Linear(48, CLASSES),
        )

    def forward(self, picture: Tensor) -> Tensor:
        """Shape ``(batch, 1, 8, 8)`` to ``(batch, classes)``."""
        logits: Tensor = self.layers(picture)
        return logits


def build_data(_seed: int) -> TensorDataset:
    """The same digits whatever the seed."""
    bunch = load_digits()
    pictures = torch.tensor(bunch.images, dtype=torch.float32)[:, None] / 16
    return TensorDataset(pictures, torch.tensor(bunch.target))


TASK = TrainingTask(
    name="image-digits",
    kind="image recognition",
    build_model=ImageDigits,
    build_data=build_data,
    loss=nn.functional.cross_entropy,
    build_optimizer=lambda parameters: torch.optim.Adam(parameters, lr=2e-3),
    epochs=5,
)

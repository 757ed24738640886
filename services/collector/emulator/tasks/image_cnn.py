"""Image recognition with a custom CNN: three convolutions and two dense layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from services.collector.emulator.tasks.task import TrainingTask
from services.collector.emulator.tasks.textures import CHANNELS, CLASSES, build_textures

SAMPLES = 4096


class ImageCnn(nn.Module):
    """Convolution and pooling, three times, then dense."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(CHANNELS, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 48, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(48 * 16, 64),
            nn.ReLU(),
            nn.Linear(64, CLASSES),
        )

    def forward(self, picture: Tensor) -> Tensor:
        """Shape ``(batch, 3, 32, 32)`` to ``(batch, classes)``."""
        logits: Tensor = self.layers(picture)
        return logits


def build_data(seed: int) -> TensorDataset:
    """Generated textures."""
    return build_textures(SAMPLES, seed)


TASK = TrainingTask(
    name="image-cnn",
    kind="image recognition",
    build_model=ImageCnn,
    build_data=build_data,
    loss=nn.functional.cross_entropy,
    build_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.02, momentum=0.9),
)

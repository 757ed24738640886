"""Image recognition with a VGG-like network: blocks of two convolutions, wide dense layers. Hungry in all respects."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from services.collector.emulator.tasks.task import TrainingTask
from services.collector.emulator.tasks.textures import CHANNELS, CLASSES, build_textures

SAMPLES = 1536


def _block(inputs: int, outputs: int) -> list[nn.Module]:
    first, second = nn.Conv2d(inputs, outputs, 3, padding=1), nn.Conv2d(outputs, outputs, 3, padding=1)
    return [
        first,
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
        second,
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
        nn.MaxPool2d(2),
    ]


class ImageVgg(nn.Module):
    """Three blocks and two dense layers."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(*_block(CHANNELS, 24), *_block(24, 32), *_block(32, 64))
        self.classify = nn.Sequential(
            nn.Flatten(), nn.Linear(64 * 16, 160), nn.ReLU(), nn.Dropout(0.5), nn.Linear(160, CLASSES)
        )

    def forward(self, picture: Tensor) -> Tensor:
        """Shape ``(batch, 3, 32, 32)`` to ``(batch, classes)``."""
        logits: Tensor = self.classify(self.features(picture))
        return logits


def build_data(seed: int) -> TensorDataset:
    """Generated textures, others than those of the custom CNN."""
    return build_textures(SAMPLES, seed + 1)


TASK = TrainingTask(
    name="image-vgg",
    kind="image recognition",
    build_model=ImageVgg,
    build_data=build_data,
    loss=nn.functional.cross_entropy,
    build_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.02, momentum=0.9),
)

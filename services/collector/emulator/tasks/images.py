"""Image recognition: a custom CNN and a VGG-like network on generated textures, a small CNN on handwritten digits."""

from __future__ import annotations

import math

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from services.collector.emulator.tasks.task import TrainingTask

CLASSES, SIDE, CHANNELS = 10, 32, 3


def build_textures(samples: int, seed: int) -> TensorDataset:
    """Stripes of ten directions with a random colour, period, phase and noise; shape ``(samples, 3, 32, 32)``."""
    draw = torch.Generator().manual_seed(seed)
    label = torch.randint(CLASSES, (samples,), generator=draw)
    direction = (math.pi * label / CLASSES)[:, None, None]
    period = 4 + 4 * torch.rand(samples, 1, 1, generator=draw)
    phase = 2 * math.pi * torch.rand(samples, 1, 1, generator=draw)
    x, y = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    stripes = (2 * math.pi * (x * direction.cos() + y * direction.sin()) / period + phase).sin()
    colour = torch.rand(samples, CHANNELS, 1, 1, generator=draw)
    noise = 0.3 * torch.randn(samples, CHANNELS, SIDE, SIDE, generator=draw)
    return TensorDataset(stripes[:, None] * colour + noise, label)


def build_digits(_seed: int) -> TensorDataset:
    """scikit-learn's handwritten digits (8 x 8, 1,797 of them), the same whatever the seed."""
    bunch = load_digits()
    pictures = torch.tensor(bunch.images, dtype=torch.float32)[:, None] / 16
    return TensorDataset(pictures, torch.tensor(bunch.target))


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
    """Three blocks of two convolutions, and two wide dense layers. Hungry in all respects."""

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


IMAGE_CNN = TrainingTask(
    name="image-cnn",
    kind="image recognition",
    build_model=ImageCnn,
    build_data=lambda seed: build_textures(4096, seed),
    loss=nn.functional.cross_entropy,
    build_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.02, momentum=0.9),
)
IMAGE_VGG = TrainingTask(
    name="image-vgg",
    kind="image recognition",
    build_model=ImageVgg,
    build_data=lambda seed: build_textures(1536, seed + 1),  # others than those of the custom CNN
    loss=nn.functional.cross_entropy,
    build_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.02, momentum=0.9),
)
IMAGE_DIGITS = TrainingTask(
    name="image-digits",
    kind="image recognition",
    build_model=ImageDigits,
    build_data=build_digits,
    loss=nn.functional.cross_entropy,
    build_optimizer=lambda parameters: torch.optim.Adam(parameters, lr=2e-3),
    epochs=5,
)

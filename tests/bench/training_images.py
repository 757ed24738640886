"""What the training job learns: generated images of ten classes, and a small residual network that tells them apart.

An image is the pattern of its class, turned round by a random shift (so that its place tells nothing), under noise. It
is a function of the seed, the rank and the iteration alone: a run that is repeated, or taken up, sees the same images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn
from torch.nn import functional

CLASSES: Final = 10
CHANNELS: Final = 3
_COARSE: Final = 4
"""Patterns are smooth: drawn on a 4x4 raster and blown up."""
_HELD_OUT: Final = -1
"""Stands where an iteration's number would stand: these images are never trained on."""


@dataclass(frozen=True)
class ImageRule:
    """How images are made: edge length in pixels, standard deviation of the noise (patterns have 1)."""

    seed: int = 1
    side: int = 16
    noise: float = 2.0

    def patterns(self) -> Tensor:
        """One pattern per class: float32 of shape (classes, channels, side, side), mean 0 and deviation 1 each."""
        coarse = torch.randn(CLASSES, CHANNELS, _COARSE, _COARSE, generator=_generator(self.seed, 0, 0))
        fine = functional.interpolate(coarse, size=(self.side, self.side), mode="bicubic", align_corners=False)
        mean, deviation = fine.mean((1, 2, 3), keepdim=True), fine.std((1, 2, 3), keepdim=True)
        return (fine - mean) / deviation

    def batch(self, rank: int, iteration: int, size: int) -> tuple[Tensor, Tensor]:
        """Images (size, channels, side, side) float32 and their classes (size,) int64 for one rank and iteration."""
        generator = _generator(self.seed, rank + 1, iteration + 2)
        labels = torch.randint(CLASSES, (size,), generator=generator)
        shifts = torch.randint(self.side, (2, size, 1), generator=generator)
        pixels = torch.arange(self.side)
        rows, columns = (pixels + shifts[0]) % self.side, (pixels + shifts[1]) % self.side
        chosen = self.patterns()[labels]
        turned = chosen[torch.arange(size)[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)
        noise = torch.randn(size, CHANNELS, self.side, self.side, generator=generator)
        return turned + self.noise * noise, labels

    def held_out(self, rank: int, size: int) -> tuple[Tensor, Tensor]:
        """As `batch`, images that no iteration trains on."""
        return self.batch(rank, _HELD_OUT, size)


def _generator(seed: int, rank: int, iteration: int) -> torch.Generator:
    """Independent streams: torch mixes the number before use, so neighbours do not resemble each other."""
    return torch.Generator().manual_seed((seed << 48) + (rank << 40) + iteration)


class Block(nn.Module):
    """Two 3x3 convolutions beside a shortcut (He et al. 2016, figure 2)."""

    def __init__(self, given: int, wanted: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(given, wanted, 3, stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(wanted)
        self.second = nn.Conv2d(wanted, wanted, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(wanted)
        self.shortcut: nn.Module = nn.Identity()
        if given != wanted or stride != 1:
            self.shortcut = nn.Sequential(nn.Conv2d(given, wanted, 1, stride, bias=False), nn.BatchNorm2d(wanted))

    def forward(self, inputs: Tensor) -> Tensor:
        """(n, given, h, w) to (n, wanted, h / stride, w / stride)."""
        inner = functional.relu(self.first_norm(self.first(inputs)))
        outputs: Tensor = functional.relu(self.second_norm(self.second(inner)) + self.shortcut(inputs))
        return outputs


class SmallResNet(nn.Module):
    """A stem, three stages of one block each, mean over the picture, one linear layer: (n, 3, h, w) to (n, classes)."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(CHANNELS, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        self.stages = nn.Sequential(Block(width, width, 1), Block(width, 2 * width, 2), Block(2 * width, 4 * width, 2))
        self.head = nn.Linear(4 * width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Unnormalised log-probabilities of the classes."""
        features = self.stages(self.stem(images)).mean((2, 3))
        scores: Tensor = self.head(features)
        return scores

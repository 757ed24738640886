"""Audio recognition with one-dimensional convolutions on generated waveforms. Few parameters: hardly any network."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from services.collector.emulator.tasks.task import TrainingTask

LENGTH, RATE_HZ, CLASSES, SAMPLES = 4000, 8000, 6, 3072


class AudioConv(nn.Module):
    """Four convolutions, each followed by normalisation and pooling, then one dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv1d(1, 16, 40, stride=4),
            nn.BatchNorm1d(16),
            nn.ReLU(),
            nn.MaxPool1d(4),
            nn.Conv1d(16, 32, 5, padding=2),
            nn.BatchNorm1d(32),
            nn.ReLU(),
            nn.MaxPool1d(4),
            nn.Conv1d(32, 32, 3, padding=1),
            nn.BatchNorm1d(32),
            nn.ReLU(),
            nn.MaxPool1d(4),
        )
        self.classify = nn.Linear(32, CLASSES)

    def forward(self, waveform: Tensor) -> Tensor:
        """Shape ``(batch, 1, samples)`` to ``(batch, classes)``."""
        logits: Tensor = self.classify(self.features(waveform).mean(dim=2))
        return logits


def build_data(seed: int) -> TensorDataset:
    """Tones of six pitches with overtones, noise and a random phase."""
    draw = torch.Generator().manual_seed(seed)
    label = torch.randint(CLASSES, (SAMPLES,), generator=draw)
    pitch_hz = 220.0 * 2 ** (label / CLASSES)
    phase = 2 * math.pi * torch.rand(SAMPLES, 1, generator=draw)
    angle = 2 * math.pi * pitch_hz[:, None] * torch.arange(LENGTH) / RATE_HZ + phase
    waveform = angle.sin() + 0.5 * (2 * angle).sin() + 0.3 * torch.randn(SAMPLES, LENGTH, generator=draw)
    return TensorDataset(waveform[:, None, :], label)


TASK = TrainingTask(
    name="audio-conv",
    kind="audio recognition",
    build_model=AudioConv,
    build_data=build_data,
    loss=nn.functional.cross_entropy,
    build_optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
)

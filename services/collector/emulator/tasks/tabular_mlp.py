"""Regression on a table with a multilayer perceptron: short steps, so that their number and latency matter."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from services.collector.emulator.tasks.task import TrainingTask

COLUMNS, SAMPLES = 40, 4096


class TabularMlp(nn.Module):
    """Three dense layers with normalisation and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(COLUMNS, 160),
            nn.BatchNorm1d(160),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(160, 96),
            nn.BatchNorm1d(96),
            nn.ReLU(),
            nn.Linear(96, 1),
        )

    def forward(self, row: Tensor) -> Tensor:
        """Shape ``(batch, columns)`` to ``(batch,)``."""
        value: Tensor = self.layers(row)
        return value.squeeze(1)


def build_data(seed: int) -> TensorDataset:
    """A sum of waves and products of normal columns, with noise (after Friedman's first problem)."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(SAMPLES, COLUMNS, generator=draw)
    y = (x[:, 0] * x[:, 1]).sin() + 2 * (x[:, 2] - 0.5) ** 2 + x[:, 3] + 0.5 * x[:, 4]
    return TensorDataset(x, y + 0.1 * torch.randn(SAMPLES, generator=draw))


TASK = TrainingTask(
    name="tabular-mlp",
    kind="tabular regression",
    build_model=TabularMlp,
    build_data=build_data,
    loss=nn.functional.mse_loss,
    build_optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
    epochs=4,
)

"""Recommendation by factors of users and items: large gradients, little to compute."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from services.collector.emulated.tasks.task import TrainingTask

USERS, ITEMS, FACTORS, SAMPLES = 1000, 600, 32, 6144


class Recommendation(nn.Module):
    """Vectors of user and item, and a dense network on both."""

    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(USERS, FACTORS)
        self.items = nn.Embedding(ITEMS, FACTORS)
        self.layers = nn.Sequential(
            nn.Linear(2 * FACTORS, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1)
        )

    def forward(self, pair: Tensor) -> Tensor:
        """Shape ``(batch, 2)``, user and item, to ``(batch,)``."""
        rating: Tensor = self.layers(torch.cat((self.users(pair[:, 0]), self.items(pair[:, 1])), dim=1))
        return rating.squeeze(1)


def build_data(seed: int) -> TensorDataset:
    """Ratings from hidden factors."""
    draw = torch.Generator().manual_seed(seed)
    users, items = torch.randn(USERS, 4, generator=draw), torch.randn(ITEMS, 4, generator=draw)
    user = torch.randint(USERS, (SAMPLES,), generator=draw)
    item = torch.randint(ITEMS, (SAMPLES,), generator=draw)
    rating = (users[user] * items[item]).sum(dim=1) + 0.3 * torch.randn(SAMPLES, generator=draw)
    return TensorDataset(torch.stack((user, item), dim=1), rating)


TASK = TrainingTask(
    name="recommendation",
    kind="recommendation",
    build_model=Recommendation,
    build_data=build_data,
    loss=nn.functional.mse_loss,
    build_optimizer=lambda parameters: torch.optim.Adam(parameters, lr=2e-3),
)

"""Recommendation by factors of users and items: which of some candidates does a user choose? Much to send."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from services.collector.emulator.tasks.task import TrainingTask

USERS, ITEMS, FACTORS, CANDIDATES, SAMPLES = 1000, 600, 32, 16, 5120


class Recommendation(nn.Module):
    """Vectors of user and item, and a dense network on both, for each candidate."""

    def __init__(self) -> None:
        super().__init__()
        self.users = nn.Embedding(USERS, FACTORS)
        self.items = nn.Embedding(ITEMS, FACTORS)
        self.layers = nn.Sequential(
            nn.Linear(2 * FACTORS, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1)
        )

    def forward(self, offer: Tensor) -> Tensor:
        """Shape ``(batch, 1 + candidates)``, the user first, to scores ``(batch, candidates)``."""
        items = self.items(offer[:, 1:])
        users = self.users(offer[:, :1]).expand_as(items)
        scores: Tensor = self.layers(torch.cat((users, items), dim=2))
        return scores.squeeze(2)


def build_data(seed: int) -> TensorDataset:
    """Choices by hidden factors."""
    draw = torch.Generator().manual_seed(seed)
    users, items = torch.randn(USERS, 4, generator=draw), torch.randn(ITEMS, 4, generator=draw)
    user = torch.randint(USERS, (SAMPLES, 1), generator=draw)
    offered = torch.randint(ITEMS, (SAMPLES, CANDIDATES), generator=draw)
    liking = (users[user] * items[offered]).sum(dim=2)
    return TensorDataset(torch.cat((user, offered), dim=1), liking.argmax(dim=1))


TASK = TrainingTask(
    name="recommendation",
    kind="recommendation",
    build_model=Recommendation,
    build_data=build_data,
    loss=nn.functional.cross_entropy,
    build_optimizer=lambda parameters: torch.optim.Adam(parameters, lr=2e-3),
)

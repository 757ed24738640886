"""A user's data set for the trainer: 53 lines of numbers."""

from __future__ import annotations

import torch
from torch.utils.data import TensorDataset


def lines() -> TensorDataset:
    """Pairs of a line and what follows each of its numbers."""
    drawn = torch.randint(0, 19, (53, 7), generator=torch.Generator().manual_seed(5))
    return TensorDataset(drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous())

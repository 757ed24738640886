"""What a training task is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import TensorDataset


@dataclass(frozen=True, slots=True)
class TrainingTask:
    """A model, its data and how it is trained."""

    name: str
    kind: str
    """As the thesis calls it, such as ``text classification``."""
    build_model: Callable[[], nn.Module]
    build_data: Callable[[int], TensorDataset]
    """From a seed: the inputs, and the targets last."""
    loss: Callable[[Tensor, Tensor], Tensor]
    """Of the output and the target."""
    build_optimizer: Callable[[Iterable[nn.Parameter]], Optimizer]
    epochs: int = 1

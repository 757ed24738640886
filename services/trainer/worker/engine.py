"""What the training loop and the checkpoints need of an engine, whatever it does with a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from services.trainer.worker.step_clock import StepClock

MicrobatchLoss = Callable[[Tensor, int], Tensor]
"""Of a micro-batch's output and its number: the sum over its samples, divided by the global batch."""


class Piece(Protocol):
    """One parameter of the optimizer: what this rank holds of one or more parameters of the model."""

    @property
    def parameter(self) -> nn.Parameter:
        """What the optimizer sees."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Of the model's parameters that it holds a part of, by their names in the model."""

    def whole(self, held: Tensor) -> dict[str, Tensor]:
        """Full tensors by name, out of what each rank holds: the parameter itself, or a moment of it. A collective."""

    def part(self, full: Mapping[str, Tensor] | None) -> Tensor:
        """What this rank holds of full tensors by name, which rank 0 gives and the others do not. A collective."""


class Block(Protocol):
    """Consecutive layers of a model that a checkpoint writes, and frees, before the next ones."""

    @property
    def pieces(self) -> Sequence[Piece]:
        """Its trainable parameters, and frozen ones of which this rank holds a part only."""

    @property
    def constants(self) -> Mapping[str, Tensor]:
        """Buffers and other frozen parameters by their names in the model: themselves, whole on every rank."""


class Engine(Protocol):
    """A model whose state is distributed, and how a step is computed with it."""

    @property
    def parameters(self) -> list[nn.Parameter]:
        """For the optimizer."""

    @property
    def blocks(self) -> Sequence[Block]:
        """For checkpoints, in the model's order."""

    def step(
        self, inputs: Sequence[Tensor], loss: MicrobatchLoss, clock: StepClock, optimizer: Optimizer | None = None
    ) -> Tensor:
        """Gradients of the whole global batch into the parameters; returns this rank's part of the loss.

        The optimizer, where one is given, has stepped each parameter once at the end.
        """

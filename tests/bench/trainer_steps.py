"""One training of the benchmarks' transformer, by any engine of the trainer."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.nn.functional import cross_entropy

from services.trainer.worker.engine import Engine
from services.trainer.worker.step_clock import StepClock
from tests.bench.trainer_model import Shape, build


def recomputing(shape: Shape) -> nn.Sequential:
    """The same, each layer of which does its forward pass again in the backward pass, as engine layered does."""
    return nn.Sequential(*(checkpoint_wrapper(layer) for layer in build(shape)))


def stepper(
    engine: Engine, optimizer: torch.optim.Optimizer, microbatches: int, global_batch: int
) -> Callable[[Tensor, Tensor], Tensor]:
    """One training of this rank, a step a call of inputs and targets of shape (samples, length).

    Args:
        engine: with this rank's part of the model.
        optimizer: over its parameters.
        microbatches: into which the rank's samples are divided.
        global_batch: samples of a step, of all ranks.

    Returns:
        The rank's part of the loss: the mean over all samples and tokens of the step.
    """

    def step(inputs: Tensor, targets: Tensor) -> Tensor:
        size = len(inputs) // microbatches
        parts = targets.split(size)

        def loss(output: Tensor, number: int) -> Tensor:
            wanted = parts[number].flatten()
            summed = cross_entropy(output.flatten(0, 1), wanted, reduction="sum")
            return summed / (global_batch * targets.shape[1])

        value = engine.step(inputs.split(size), loss, StepClock(inputs.device))
        optimizer.step()
        return value

    return step

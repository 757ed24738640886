"""Data parallelism with uneven batches and uneven state, one layer at a time (Cephalo).

    forward   for each layer: gather, all micro-batches through it, of which only the outputs are kept; free
    backward  for each layer from the last: gather, all micro-batches again with gradients, reduce-scatter; free

A layer is gathered twice and its gradient reduced once per step, however many micro-batches a rank has: ranks may have
different numbers. FSDP gathers once per micro-batch, and would wait for ever for a rank that has fewer. The last
layer's forward pass is part of its backward pass, so it is gathered once. The loss is the sum over a rank's samples
divided by the global batch: summed gradients are those of the whole batch, however it was divided.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from services._jobs.layer_chain import Layers
from services.trainer.worker.built_model import BuiltModel
from services.trainer.worker.engine import MicrobatchLoss
from services.trainer.worker.flat import Placement, flat_layers
from services.trainer.worker.recompute import Kept, forward, gathered, last_layer
from services.trainer.worker.step_clock import Part, StepClock


class LayeredEngine:
    """A chain of layers, each cut by the plan's shares."""

    def __init__(self, layers: Layers, placement: Placement, built: BuiltModel | None = None) -> None:
        """Of layers with values, or of the layers of a model that gets its values by this."""
        self.blocks = flat_layers(layers, [placement] * len(layers), built)
        self._device = placement.device

    @property
    def parameters(self) -> list[nn.Parameter]:
        """One vector per layer that has any parameters; its size may be 0 here."""
        return [layer.parameter for layer in self.blocks if layer.elements]

    def step(
        self, inputs: Sequence[Tensor], loss: MicrobatchLoss, clock: StepClock, optimizer: Optimizer | None = None
    ) -> Tensor:
        """Gradients of the whole global batch into the parameters; returns this rank's part of the loss.

        Args:
            inputs: of each micro-batch, on the device; none: the rank takes part in the collectives only.
            loss: of the last layer's output; it is called once per micro-batch.
            clock: of this step.
            optimizer: of all parameters; it steps at the end. None: no step is made.

        Raises:
            RankFailedError: another rank fails meanwhile.
        """
        kept: list[list[Kept]] = []
        boundaries = [self.blocks[0].cast(given) for given in inputs]
        for index in range(len(self.blocks) - 1):
            with clock.during(Part.GATHER):
                layer = gathered(self.blocks, index)
            with clock.during(Part.COMPUTE):
                kept.append([])
                for number, boundary in enumerate(boundaries):
                    before, boundaries[number] = forward(layer, boundary)
                    kept[-1].append(before)
        value = self._backward(kept, boundaries, loss, clock)
        if optimizer is not None:
            optimizer.step()
        return value

    def _backward(
        self, kept: list[list[Kept]], boundaries: list[Tensor], loss: MicrobatchLoss, clock: StepClock
    ) -> Tensor:
        value = torch.zeros((), dtype=torch.float64, device=self._device)
        gradients: list[Tensor | None] = [None] * len(boundaries)
        for index in reversed(range(len(self.blocks))):
            with clock.during(Part.GATHER):
                layer = gathered(self.blocks, index)
            with clock.during(Part.COMPUTE):
                if index == len(self.blocks) - 1:
                    for number, boundary in enumerate(boundaries):
                        part, gradients[number] = last_layer(layer, boundary, loss, number)
                        value += part
                    boundaries.clear()
                else:
                    for number, before in enumerate(kept.pop()):
                        gradients[number] = before.backward(layer, gradients[number])
            with clock.during(Part.SCATTER):
                layer.reduce()
        return value

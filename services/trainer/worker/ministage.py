"""A pipeline of groups of ranks, each with a part of the layers in one or more ministages (Zorse).

Which micro-batch a rank takes through which layers, in which order, what it sends where and which collectives it begins
ahead, says `routes.program`; here that is carried out. Each micro-batch goes through all layers of a ministage and on
to the next group, which begins while the others follow. In the backward pass each layer does its forward pass again,
from the input that was kept; the optimizer steps a ministage as soon as its gradients are summed. In a group samples
and state may be divided unevenly, as by engine layered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import NamedTuple

import torch
from torch import Tensor, nn

from services._jobs.layer_chain import Layers
from services.trainer.worker.built_model import BuiltModel
from services.trainer.worker.engine import MicrobatchLoss
from services.trainer.worker.exchange import Exchange
from services.trainer.worker.flat import FlatLayer, Placement, flat_layers
from services.trainer.worker.gather import Begun, Group, new_groups
from services.trainer.worker.plan_file import RefusedError
from services.trainer.worker.recompute import Gathered, Kept, forward, gathered, last_layer
from services.trainer.worker.residency import LayerBytes, Residency, Vector, most_whole_bytes
from services.trainer.worker.routes import (
    Compute,
    Drain,
    Free,
    Gather,
    Message,
    Operation,
    Pass,
    Pipeline,
    Reduce,
    Update,
    program,
)
from services.trainer.worker.step_clock import Part, StepClock


class MinistageEngine:
    """A chain of layers, each held by the ranks of its group. Made by all ranks of the job together."""

    def __init__(
        self,
        layers: Layers,
        pipeline: Pipeline,
        placement: Placement,
        built: BuiltModel | None = None,
        timeout: timedelta | None = None,
    ) -> None:
        """A collective.

        Args:
            layers: with values, or of the model that gets its values by this.
            pipeline: the plan's.
            placement: of this rank, with the shares of all ranks; of a layer only those of its group count.
            built: the model.
            timeout: of the groups' collectives.

        Raises:
            RefusedError: the plan is for another number of layers, or nothing can be trained.
            RankFailedError: another rank fails meanwhile.
        """
        planned = pipeline.ministages[-1].last_layer + 1
        if planned != len(layers):
            raise RefusedError(f"the plan's stages have {planned} layers, but the model has {len(layers)}: plan anew")
        groups = {group.ranks: group for group in new_groups(pipeline.groups, timeout)}
        placements = [
            _in_group(placement, groups[ministage.ranks]) for ministage in pipeline.ministages for _ in ministage.layers
        ]
        self.blocks = flat_layers(layers, placements, built)
        """All layers: what others hold has no elements here, but checkpoints gather it from all ranks."""
        self._pipeline, self._rank, self._device = pipeline, placement.rank, placement.device
        sizes_bytes = [LayerBytes(layer.whole_bytes, layer.reduced_bytes) for layer in self.blocks]
        self._program = program(pipeline, placement.rank, sizes_bytes)
        self._taken_next = _taken_next(self._program)
        own = [ministage for ministage in pipeline.ministages if placement.rank in ministage.ranks]
        whole = most_whole_bytes([[sizes_bytes[layer] for layer in ministage.layers] for ministage in own])
        self.residency = Residency(whole)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """One vector per layer of the model that has any parameters; its size may be 0 here."""
        return [layer.parameter for layer in self.blocks if layer.elements]

    def step(
        self,
        inputs: Sequence[Tensor],
        loss: MicrobatchLoss,
        clock: StepClock,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> Tensor:
        """Gradients of the whole global batch into the parameters; returns this rank's part of the loss.

        Args:
            inputs: of each of this rank's micro-batches, on the device, where its group has the first layer.
            loss: of the last layer's output, where its group has that; it is called once per micro-batch.
            clock: of this step. What is waited for between groups is in no part of it.
            optimizer: of all parameters; it steps each of them once. None: no step is made.

        Raises:
            RefusedError: outputs where layers are cut cannot be sent.
            RankFailedError: another rank fails meanwhile.
        """
        numbers = {number: place for place, number in enumerate(self._pipeline.microbatches(self._rank))}
        batch = _Batch(inputs, loss, numbers)
        step = _Step(self.blocks, self._pipeline, self.residency, clock, Exchange(self._device))
        value = torch.zeros((), dtype=torch.float64, device=self._device)
        left = set(range(len(self.blocks)))
        for operation, taken_next in zip(self._program, self._taken_next, strict=True):
            match operation:
                case Gather(layer):
                    step.gather(layer)
                case Compute():
                    value += step.compute(operation, taken_next, batch)
                case Free(ministage):
                    step.free(ministage)
                case Reduce(layer):
                    step.reduce(layer)
                case Update(ministage):
                    done = step.update(ministage)
                    self._update(optimizer, done)
                    left.difference_update(done)
                case Drain(passes_left):
                    step.exchange.drain(passes_left)
        self._update(optimizer, left)
        return value

    def _update(self, optimizer: torch.optim.Optimizer | None, layers: Iterable[int]) -> None:
        """Step these layers alone. Those of other groups, too: checkpoints ask all ranks for what it has of each."""
        if optimizer is not None:
            with gradients_of({id(self.blocks[layer].parameter) for layer in layers}, self.parameters):
                optimizer.step()


def _taken_next(operations: Sequence[Operation]) -> list[Message | None]:
    """What is taken first after each operation, by its place."""
    found: list[Message | None] = []
    following: Message | None = None
    for operation in reversed(operations):
        found.append(following)
        if isinstance(operation, Compute) and operation.takes is not None:
            following = operation.takes
    return found[::-1]


@contextmanager
def gradients_of(chosen: AbstractSet[int], parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Within, parameters that are not chosen (by `id`) have no gradients: torch's optimizers pass them over."""
    aside = [(parameter, parameter.grad) for parameter in parameters if id(parameter) not in chosen]
    for parameter, _ in aside:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in aside:
            parameter.grad = gradient


class _Batch(NamedTuple):
    """Of one rank and step."""

    inputs: Sequence[Tensor]
    loss: MicrobatchLoss
    numbers: Mapping[int, int]
    """Of each of the rank's micro-batches among its own, by its number in the step."""


@dataclass(slots=True)
class _Step:
    """One step of a rank."""

    layers: Sequence[FlatLayer]
    pipeline: Pipeline
    residency: Residency
    clock: StepClock
    exchange: Exchange
    gathering: dict[int, Begun] = field(default_factory=dict)
    """By layer; until it is needed."""
    gathered: dict[int, Gathered] = field(default_factory=dict)
    """By layer."""
    reducing: dict[int, Begun] = field(default_factory=dict)
    """By layer."""
    kept: dict[tuple[int, int], Kept] = field(default_factory=dict)
    """By layer and micro-batch."""
    flowing: Tensor | None = None
    """The gradient that the last operation has left to the next one."""

    def gather(self, layer: int) -> None:
        with self.clock.during(Part.GATHER):
            self.residency.hold(layer, Vector.PARAMETERS, self.layers[layer].whole_bytes)
            self.gathering[layer] = self.layers[layer].begin_gather()

    def free(self, ministage: int) -> None:
        for layer in self.pipeline.ministages[ministage].layers:
            self._whole(layer)  # also where this rank has no micro-batches: its failure would be seen nowhere else
            del self.gathered[layer]
            self.residency.free(layer)

    def reduce(self, layer: int) -> None:
        self._whole(layer)
        with self.clock.during(Part.SCATTER):
            begun = self.gathered.pop(layer).begin_reduce()
            self.residency.reduce(layer, self.layers[layer].reduced_bytes)
            if begun is not None:
                self.reducing[layer] = begun

    def update(self, ministage: int) -> range:
        """The layers whose gradients are summed now."""
        layers = self.pipeline.ministages[ministage].layers
        with self.clock.during(Part.SCATTER):
            for layer in reversed(layers):
                begun = self.reducing.pop(layer, None)
                if begun is not None:
                    self.layers[layer].end_scatter(begun)
                self.residency.free(layer)
        return layers

    def compute(self, operation: Compute, taken_next: Message | None, batch: _Batch) -> Tensor | float:
        """One micro-batch; its loss, where that is known."""
        if operation.takes is not None:
            taken = self.exchange.receive(operation.takes)
        elif operation.way is Pass.BACKWARD:
            taken, self.flowing = self.flowing, None
        else:
            taken = self.layers[0].cast(batch.inputs[batch.numbers[operation.microbatch]])
        if taken_next is not None:
            self.exchange.expect(taken_next)
        value: Tensor | float = 0.0
        if operation.way is Pass.BACKWARD:
            given = self._backward(operation, operation.layers, taken)
        elif operation.way is Pass.FORWARD:
            given = self._forward(operation, operation.layers, taken)
        else:
            value, given = self._both(operation, taken, batch)
        if operation.gives is not None:
            self.exchange.send(operation.gives, given)
        else:
            self.flowing = given
        return value

    def _both(self, operation: Compute, taken: Tensor | None, batch: _Batch) -> tuple[Tensor, Tensor | None]:
        """Forward to the loss, and backward through the operation's layers."""
        *before, last = self.pipeline.ministages[operation.ministage].layers
        boundary = self._forward(operation, before, taken)
        layer = self._with_gradient(last)
        with self.clock.during(Part.COMPUTE):
            value, gradient = last_layer(layer, boundary, batch.loss, batch.numbers[operation.microbatch])
        return value, self._backward(operation, [layer for layer in operation.layers if layer != last], gradient)

    def _forward(self, operation: Compute, layers: Sequence[int], boundary: Tensor | None) -> Tensor:
        assert boundary is not None, "only a gradient may be none"
        for index in layers:
            layer = self._whole(index)
            with self.clock.during(Part.COMPUTE):
                self.kept[index, operation.microbatch], boundary = forward(layer, boundary)
        return boundary

    def _backward(self, operation: Compute, layers: Sequence[int], gradient: Tensor | None) -> Tensor | None:
        for index in reversed(layers):
            layer = self._with_gradient(index)
            with self.clock.during(Part.COMPUTE):
                gradient = self.kept.pop((index, operation.microbatch)).backward(layer, gradient)
        return gradient

    def _with_gradient(self, layer: int) -> Gathered:
        self.residency.hold(layer, Vector.GRADIENT, self.layers[layer].whole_bytes)
        return self._whole(layer)

    def _whole(self, layer: int) -> Gathered:
        """Wait for it."""
        if layer not in self.gathered:
            with self.clock.during(Part.GATHER):
                self.gathered[layer] = gathered(self.layers, layer, self.gathering.pop(layer))
        return self.gathered[layer]


def _in_group(placement: Placement, group: Group) -> Placement:
    """Of a layer that the group holds: evenly where none has a share, as where its layers have no parameters."""
    members = {rank: placement.shares[rank] for rank in group.ranks}
    if not any(members.values()):
        members = dict.fromkeys(members, 1.0)
    shares = tuple(members.get(rank, 0.0) for rank in range(len(placement.shares)))
    return replace(placement, shares=shares, group=group)

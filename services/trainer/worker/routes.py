"""Which rank computes which micro-batch of which layers in a pipeline, in which order, and what it sends where. Pure.

After Zorse (Guo et al., 2025): groups of ranks, which may be of different sizes, have ministages (consecutive layers)
in turn. A group takes all micro-batches of the step through one of its ministages before it goes on to its next one,
forward, and then backward in reverse; in the model's last ministage a micro-batch goes backward as soon as it was
forward. A ministage is gathered once for all micro-batches of a pass, a group's last one once for both passes.

`program` is what a rank does in a step. Collectives are begun ahead: forward, the next ministage is gathered while this
one computes; backward, a rank's last micro-batch goes layer by layer, each of which is summed over the group as soon as
it is done with, and in the room of which the next ministage's layers are gathered. All ranks of a group begin the same
collectives in the same order, whatever micro-batches they have.

No rank waits for ever: it waits for messages and for the members of its group only, and all that an operation waits for
belongs to a ministage that comes earlier in the step (ministages ascending, then descending), or to the same one and is
begun earlier. Sending does not wait, but before each pass all that was sent before the last one has to be received: so
a rank keeps what it has sent in two passes at most, and the next group may still take the last pass's while the first
gradients come back.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise

from schemas.plans import MAX_BATCH, DevicePlan, Plan, StagePlan
from services.trainer.worker.residency import LayerBytes, most_whole_bytes


@dataclass(frozen=True, slots=True)
class Ministage:
    """Consecutive layers, which a group of ranks holds together."""

    ranks: tuple[int, ...]
    """Of the group, ascending."""
    first_layer: int
    last_layer: int
    """Included."""
    owners: tuple[int, ...]
    """Rank that computes each micro-batch of a step."""

    @property
    def layers(self) -> range:
        """By their places in the model."""
        return range(self.first_layer, self.last_layer + 1)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """A plan's division of layers and micro-batches."""

    ministages: tuple[Ministage, ...]
    """In the order of layers."""
    microbatch_samples: int
    """Of each micro-batch."""

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Ranks of each group, in the order of their first ministages."""
        return tuple(dict.fromkeys(ministage.ranks for ministage in self.ministages))

    def microbatches(self, rank: int) -> tuple[int, ...]:
        """That the rank computes, in each of its group's ministages."""
        own = [ministage for ministage in self.ministages if rank in ministage.ranks]
        return tuple(number for number, owner in enumerate(own[0].owners) if owner == rank) if own else ()

    def sample_positions(self, rank: int) -> tuple[int, ...]:
        """In the global batch, of the samples that the rank has to load: inputs or targets; none: it needs neither."""
        if rank not in self.ministages[0].ranks and rank not in self.ministages[-1].ranks:
            return ()
        size = self.microbatch_samples
        return tuple(
            position for number in self.microbatches(rank) for position in range(number * size, (number + 1) * size)
        )


class Pass(StrEnum):
    """What is computed of a micro-batch."""

    FORWARD = "forward"
    BACKWARD = "backward"
    BOTH = "both"
    """In the last ministage: the loss is known there."""


@dataclass(frozen=True, slots=True)
class Message:
    """A micro-batch's output of a ministage, or the gradient of that output on its way back.

    A group may have two ministages in a row: then a rank gives what it takes to itself.
    """

    source: int
    target: int
    ministage: int
    """Whose output it is."""
    microbatch: int
    is_gradient: bool = False

    def tag(self, *, is_header: bool = False) -> int:
        """Different for all messages of a step between two ranks; less than 2^31.

        Args:
            is_header: of the message that tells the shape of those that follow.
        """
        return ((2 * self.ministage + self.is_gradient) * 2 + is_header) * MAX_BATCH + self.microbatch


@dataclass(frozen=True, slots=True)
class Gather:
    """Begin to gather a layer. With all ranks of its group, as they come to it."""

    layer: int


@dataclass(frozen=True, slots=True)
class Drain:
    """Wait until what this rank has sent to others was received, and begin a pass."""

    passes_left: int
    """Of so many of the last passes it need not be."""


@dataclass(frozen=True, slots=True)
class Compute:
    """Take one micro-batch through a ministage, or backward through some of its layers, once they are gathered."""

    ministage: int
    microbatch: int
    way: Pass
    layers: range
    """Forward: all. Backward: these, from the last one. Both: all forward, and these backward."""
    takes: Message | None
    """Received before; None: it is the model's input, or backward the gradient of the operation before."""
    gives: Message | None
    """Sent after; None: there is nothing to send."""


@dataclass(frozen=True, slots=True)
class Free:
    """Give the gathered layers of a ministage up."""

    ministage: int


@dataclass(frozen=True, slots=True)
class Reduce:
    """Give a gathered layer up, and begin to sum its gradient over its group. With all its ranks, as gathering."""

    layer: int


@dataclass(frozen=True, slots=True)
class Update:
    """Wait for the sums of a ministage's gradients: the optimizer may take them."""

    ministage: int


Operation = Gather | Drain | Compute | Free | Reduce | Update


def pipeline_of(plan: Plan) -> Pipeline:
    """A plan's pipeline.

    Raises:
        ValueError: its stages and devices do not fit together; the text says where.
    """
    sizes = {device.microbatch for device in plan.devices if device.samples}
    if len(sizes) != 1:
        raise ValueError(f"micro-batches have {_listed(sorted(sizes))} samples, but all have to be alike")
    _check_layers(plan.stages)
    members = {stage.stage: _members(plan, stage) for stage in plan.stages}
    outside = [device.rank for device in plan.devices if device.stage not in members and device.state_share > 0]
    if outside:
        raise ValueError(f"rank {outside[0]} holds state, but its group has no layers")
    owners = {
        group: _dealt({device.rank: device.microbatches for device in devices}) for group, devices in members.items()
    }
    ministages = (
        Ministage(tuple(sorted(stage.ranks)), stage.first_layer, stage.last_layer, owners[stage.stage])
        for stage in plan.stages
    )
    return Pipeline(tuple(ministages), sizes.pop())


def _check_layers(stages: Sequence[StagePlan]) -> None:
    if not stages:
        raise ValueError("it has no stages")
    if stages[0].first_layer != 0:
        raise ValueError(f"its first stage begins with layer {stages[0].first_layer} instead of 0")
    for before, after in pairwise(stages):
        if after.first_layer != before.last_layer + 1:
            raise ValueError(f"layer {before.last_layer} of a stage is followed by {after.first_layer} of the next one")


def _members(plan: Plan, stage: StagePlan) -> tuple[DevicePlan, ...]:
    """Devices of the stage's group."""
    found = tuple(device for device in plan.devices if device.stage == stage.stage)
    ranks = [device.rank for device in found]
    if ranks != sorted(stage.ranks):
        named = _listed(sorted(stage.ranks))
        raise ValueError(f"group {stage.stage} has ranks {named} by its stages, but {_listed(ranks)} by its devices")
    if not any(device.samples for device in found):
        raise ValueError(f"group {stage.stage} has layers, but no samples")
    return found


def _dealt(counts: Mapping[int, int]) -> tuple[int, ...]:
    """Rank of each micro-batch: the one that would be done with it first, if each took the same time for all its own.

    So those of a group are done in the order in which the next group waits for them.

    Args:
        counts: micro-batches by rank.
    """
    due = [(1 / count, rank, 1) for rank, count in counts.items() if count]
    heapq.heapify(due)
    found = []
    while due:
        _, rank, done = due[0]
        found.append(rank)
        if done < counts[rank]:
            heapq.heapreplace(due, ((done + 1) / counts[rank], rank, done + 1))
        else:
            heapq.heappop(due)
    return tuple(found)


def program(pipeline: Pipeline, rank: int, sizes: Sequence[LayerBytes]) -> tuple[Operation, ...]:
    """What a rank does in each step, in its order; nothing where its group has no layers.

    Args:
        pipeline: the plan's.
        rank: of the job.
        sizes: of the model's layers; they decide what is gathered ahead, within `most_whole_bytes`.
    """
    return tuple(_program(pipeline, rank, sizes))


def _program(pipeline: Pipeline, rank: int, sizes: Sequence[LayerBytes]) -> Iterator[Operation]:
    own = [place for place, ministage in enumerate(pipeline.ministages) if rank in ministage.ranks]
    if not own:
        return
    layers = {place: pipeline.ministages[place].layers for place in own}
    limit_bytes = most_whole_bytes([[sizes[layer] for layer in layers[place]] for place in own])
    yield from map(Gather, layers[own[0]])
    for place, following in pairwise(own):
        yield from map(Gather, layers[following])
        yield from _pass(pipeline, rank, place, Pass.FORWARD)
        yield Free(place)
    if own[-1] != len(pipeline.ministages) - 1:
        yield from _pass(pipeline, rank, own[-1], Pass.FORWARD)
    for place, before in zip(reversed(own), [*own[-2::-1], None], strict=True):
        back = range(0) if before is None else layers[before]
        ahead = _gathered_ahead(layers[place], back, sizes, limit_bytes)
        yield from _last_pass(pipeline, rank, place, ahead)
        yield Update(place)
        begun = {layer for found in ahead.values() for layer in found}
        yield from (Gather(layer) for layer in reversed(back) if layer not in begun)
    yield Drain(0)


def _last_pass(pipeline: Pipeline, rank: int, place: int, ahead: Mapping[int, Sequence[int]]) -> Iterator[Operation]:
    """Backward through a ministage, with the rank's last micro-batch layer by layer.

    Args:
        pipeline: the plan's.
        rank: of the job.
        place: of the ministage.
        ahead: layers to gather after each layer is given up.
    """
    is_last = place == len(pipeline.ministages) - 1
    *operations, last = _pass(pipeline, rank, place, Pass.BOTH if is_last else Pass.BACKWARD)
    yield from operations
    layers = pipeline.ministages[place].layers
    for layer in reversed(layers):
        if isinstance(last, Compute):
            yield replace(
                last,
                way=last.way if layer == layers[-1] else Pass.BACKWARD,
                layers=range(layer, layer + 1),
                takes=last.takes if layer == layers[-1] else None,
                gives=last.gives if layer == layers[0] else None,
            )
        elif layer == layers[-1]:
            yield last  # the rank has no micro-batches
        yield Reduce(layer)
        yield from map(Gather, ahead[layer])


def _gathered_ahead(
    layers: range, following: range, sizes: Sequence[LayerBytes], limit_bytes: int
) -> dict[int, list[int]]:
    """Which layers of the following ministage have room once each layer of this one was given up, from the last one.

    What is left of this one has its parameters and gradients whole, what was given up its gradient until it is summed.
    """
    left = list(reversed(following))
    # A gradient may take more while it is summed than before: that room is not given to layers gathered ahead.
    most_bytes = {layer: max(2 * sizes[layer].gathered, sizes[layer].reduced) for layer in layers}
    held_bytes = sum(most_bytes.values())
    found: dict[int, list[int]] = {}
    for layer in reversed(layers):
        held_bytes += sizes[layer].reduced - most_bytes[layer]
        found[layer] = []
        while left and held_bytes + sizes[left[0]].gathered <= limit_bytes:
            held_bytes += sizes[left[0]].gathered
            found[layer].append(left.pop(0))
    return found


def _pass(pipeline: Pipeline, rank: int, place: int, way: Pass) -> Iterator[Operation]:
    """All micro-batches of the rank through one ministage."""
    yield Drain(1)
    ministages = pipeline.ministages
    for number in pipeline.microbatches(rank):
        before = ministages[place - 1].owners[number] if place else None
        after = ministages[place + 1].owners[number] if place + 1 < len(ministages) else None
        given = None if before is None else Message(before, rank, place - 1, number)
        gradient_back = None if before is None else Message(rank, before, place - 1, number, is_gradient=True)
        output = None if after is None else Message(rank, after, place, number)
        gradient = None if after is None else Message(after, rank, place, number, is_gradient=True)
        takes = gradient if way is Pass.BACKWARD else given
        gives = output if way is Pass.FORWARD else gradient_back
        yield Compute(place, number, way, ministages[place].layers, takes, gives)


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"

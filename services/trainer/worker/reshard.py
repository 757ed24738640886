"""The state of a training from the parts that ranks hold to other parts of the same ranks: parameters and moments.

A rank that joins holds parts of no size before; one that leaves, after. Layer by layer: a rank needs room for its old
and its new part of one layer. Gradients do not move: there are none between steps.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch import distributed as dist

from services.trainer.core.moves import moves
from services.trainer.worker.checkpoint import step_count
from services.trainer.worker.cuts import cut
from services.trainer.worker.flat import FlatLayer, Placement
from services.trainer.worker.gather import broadcast_tensor, broadcast_value, rank_failures
from services.trainer.worker.layered import LayeredEngine


def reshard(engine: LayeredEngine, optimizer: torch.optim.Optimizer, placement: Placement) -> int:
    """Have this rank hold its part by the placement; returns the bytes that it has sent. A collective.

    Rank 0 has to hold what is whole on every rank: counts of steps, buffers and frozen parameters.

    Raises:
        RankFailedError: another rank fails meanwhile: what this one holds is of no use any more.
    """
    sent_bytes = 0
    with torch.no_grad(), rank_failures():
        for layer in engine.blocks:
            for constant in layer.constants.values():
                broadcast_tensor(constant)
            if layer.elements:
                sent_bytes += _reshard_layer(layer, optimizer, placement)
    return sent_bytes


def _reshard_layer(layer: FlatLayer, optimizer: torch.optim.Optimizer, placement: Placement) -> int:
    held = optimizer.state[layer.parameter]
    # Names in order, and the value of those that are no vector.
    entries = broadcast_value(
        {
            name: None if _is_vector(value, layer) else value.cpu()
            for name, value in held.items()
            if isinstance(value, Tensor)
        }
        if placement.rank == 0
        else None
    )
    vectors = [name for name, value in entries.items() if value is None]
    own = layer.parameter.detach()
    before = torch.stack([own, *(held.get(name, own) for name in vectors)])
    new_sizes = cut(layer.elements, placement.shares)
    after = before.new_empty((len(before), new_sizes[placement.rank]))
    sent = sum(_move(layer.sizes, new_sizes, placement.rank, before, after))
    for name, value in entries.items():
        if value is None:
            held[name] = after[1 + vectors.index(name)].clone()
        else:
            held[name] = step_count(optimizer, value, after)
    layer.hold(placement, after[0].clone())
    return sent


def _move(old: tuple[int, ...], new: tuple[int, ...], rank: int, before: Tensor, after: Tensor) -> Iterator[int]:
    """Bytes of each part that is sent."""
    for move in moves(old, new):
        source = slice(move.source_at, move.source_at + move.elements)
        target = slice(move.target_at, move.target_at + move.elements)
        if move.source == move.target == rank:
            after[:, target] = before[:, source]
        elif move.source == rank:
            part = before[:, source].contiguous()
            dist.send(part, move.target)
            yield part.nbytes
        elif move.target == rank:
            part = after.new_empty((len(after), move.elements))
            dist.recv(part, move.source)
            after[:, target] = part


def _is_vector(value: object, layer: FlatLayer) -> bool:
    """Whether it has a value for each element that this rank holds; counts have no dimension."""
    return isinstance(value, Tensor) and value.shape == layer.parameter.shape

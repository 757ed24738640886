"""One micro-batch through one gathered layer: forward without gradients, and later again with them.

Only the layer's input is kept in between, with the state of the random generator, so that the second forward pass draws
the same (dropout). The layer's whole vector, a leaf of all backward passes, sums up the gradients of micro-batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from services.trainer.worker.engine import MicrobatchLoss
from services.trainer.worker.flat import FlatLayer
from services.trainer.worker.gather import Begun


class Gathered(NamedTuple):
    """A layer of a chain, while it is there as a whole."""

    layer: FlatLayer
    whole: Tensor
    """Its vector, which requires a gradient."""
    is_first: bool
    """In the model: the gradient of its input is not needed."""

    def run(self, boundary: Tensor) -> Tensor:
        """The layer's output."""
        return self.layer.run(self.whole, boundary)

    def begin_reduce(self) -> Begun | None:
        """Sum the gradient of the vector over the ranks that compute the layer; None: it has none. A collective.

        Raises:
            RankFailedError: another rank has failed.
        """
        return self.layer.begin_scatter(self.whole.grad) if self.layer.elements else None

    def reduce(self) -> None:
        """The same, waited for.

        Raises:
            RankFailedError: another rank fails meanwhile.
        """
        begun = self.begin_reduce()
        if begun is not None:
            self.layer.end_scatter(begun)


def gathered(layers: Sequence[FlatLayer], index: int, begun: Begun | None = None) -> Gathered:
    """One of the model's layers. A collective of the ranks that compute it.

    Args:
        layers: of the model.
        index: which one.
        begun: its gathering, where that was begun ahead.

    Raises:
        RankFailedError: another rank fails meanwhile.
    """
    whole = (begun or layers[index].begin_gather()).wait()
    return Gathered(layers[index], whole.requires_grad_(), index == 0)


class Kept:
    """A layer's input of one micro-batch, from its forward pass to its backward pass."""

    def __init__(self, boundary: Tensor) -> None:
        self._boundary = boundary
        self._drawn = _drawn(boundary.device)

    def backward(self, layer: Gathered, gradient: Tensor | None) -> Tensor | None:
        """Add to the gradient of the layer's vector.

        Args:
            layer: that the input was for.
            gradient: of the layer's output; None: it has none.

        Returns:
            The gradient of the input; None: nothing flows through, as through whole numbers.
        """
        boundary = _leaf(layer, self._boundary)
        later = _drawn(boundary.device)
        _draw_as(self._drawn, boundary.device)
        output = layer.run(boundary)
        _draw_as(later, boundary.device)
        # Nothing flows back into a layer without parameters at the beginning.
        if gradient is not None and output.requires_grad:
            torch.autograd.backward(output, gradient)
        return boundary.grad


def forward(layer: Gathered, boundary: Tensor) -> tuple[Kept, Tensor]:
    """What is kept of a layer's forward pass, and its output."""
    kept = Kept(boundary)
    with torch.no_grad():
        return kept, layer.run(boundary)


def last_layer(layer: Gathered, boundary: Tensor, loss: MicrobatchLoss, number: int) -> tuple[Tensor, Tensor | None]:
    """The model's last layer, forward and backward at once.

    Args:
        layer: the last one.
        boundary: its input.
        loss: of its output, in float32 where the layer computes in a shorter type.
        number: of the micro-batch among this rank's.

    Returns:
        The loss, and the gradient of the input as `Kept.backward` returns it.
    """
    leaf = _leaf(layer, boundary)
    value = loss(layer.layer.uncast(layer.run(leaf)), number)
    torch.autograd.backward(value)
    return value.detach(), leaf.grad


def _leaf(layer: Gathered, boundary: Tensor) -> Tensor:
    return boundary.detach().requires_grad_(not layer.is_first and boundary.is_floating_point())


def _drawn(device: torch.device) -> Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _draw_as(state: Tensor, device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)

"""A ledger of the layers that a rank of a pipeline has as a whole, and of the vectors of their gradients. Pure.

Of each of its ministages a rank holds a part. As a whole it has the one that it computes and, forward, the next one,
which is gathered meanwhile; backward, in place of that, gradients until they are summed over the group. As layers of a
backward pass are done with, those of the next one take their room, with one layer's more: together two ministages and
a layer at most. Where gradients are summed in a type more than twice as long as that of gathered parameters, float64
beside bfloat16, half a layer's summed gradient counts in place of its parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class Vector(StrEnum):
    """Of a whole layer."""

    PARAMETERS = "parameters"
    GRADIENT = "gradient"


class LayerBytes(NamedTuple):
    """Of a whole layer."""

    gathered: int
    """Its parameters; their gradient is as large until it is summed."""
    reduced: int
    """Its gradient while that is summed."""

    @property
    def room(self) -> int:
        """Half of what it takes at most: parameters and gradient, or the gradient while that is summed."""
        return max(self.gathered, -(-self.reduced // 2))


def most_whole_bytes(ministages: Sequence[Sequence[LayerBytes]]) -> int:
    """Twice the largest ministage, and the largest layer.

    Args:
        ministages: the rank's own, each as its layers.
    """
    rooms = [[layer.room for layer in layers] for layers in ministages]
    return 2 * max(map(sum, rooms), default=0) + max((room for layers in rooms for room in layers), default=0)


@dataclass(slots=True)
class Residency:
    """Of one rank."""

    limit_bytes: int
    peak_bytes: int = 0
    """The most that was held at once."""
    _held: dict[tuple[int, Vector], int] = field(default_factory=dict)

    @property
    def held_bytes(self) -> int:
        """Now."""
        return sum(self._held.values())

    def hold(self, layer: int, vector: Vector, size_bytes: int) -> None:
        """Enter a vector; one that is held already stays as it is.

        Raises:
            ValueError: with it more than the limit would be held.
        """
        if (layer, vector) in self._held:
            return
        held_bytes = self.held_bytes + size_bytes
        if held_bytes > self.limit_bytes:
            whole = f"whole layers would take {held_bytes} bytes of the {self.limit_bytes} that they may"
            raise ValueError(f"{whole} with the {vector} of layer {layer}")
        self._held[layer, vector] = size_bytes
        self.peak_bytes = max(self.peak_bytes, held_bytes)

    def reduce(self, layer: int, size_bytes: int) -> None:
        """In place of both vectors of a layer, its gradient as it is summed.

        Raises:
            ValueError: as `hold`.
        """
        self.free(layer)
        self.hold(layer, Vector.GRADIENT, size_bytes)

    def free(self, layer: int) -> None:
        """Strike out both vectors of a layer."""
        for vector in Vector:
            self._held.pop((layer, vector), None)

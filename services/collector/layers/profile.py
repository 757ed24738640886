"""What was measured of each class of layers, as a layer profile. Pure."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from schemas.layers import LayerClass
from services.collector.layers.block_times import Spread

_DIGEST_CHARACTERS: Final = 16


@dataclass(frozen=True, slots=True)
class LayerCosts:
    """Of one layer and micro-batch."""

    forward: Spread
    backward: Spread
    """Without the forward pass that is done again ahead of it."""
    saved_bytes: int


@dataclass(frozen=True, slots=True)
class AlikeLayers:
    """Layers that compute the same, by one of them."""

    name: str
    count: int
    parameters: int
    """Trainable ones of one layer."""
    boundary_bytes: int
    """Its output for one sample."""


def layer_class(layers: AlikeLayers, costs: Sequence[LayerCosts], item_bytes: int, fsdp2_us: float) -> LayerClass:
    """Of micro-batches of 1, 2, 3 ... samples; item_bytes: of one parameter; fsdp2_us: as the class has it."""
    return LayerClass(
        name=layers.name,
        count=layers.count,
        parameters=layers.parameters,
        flat_bytes=layers.parameters * item_bytes,
        forward_us=tuple(cost.forward.median_us for cost in costs),
        forward_us_p10=tuple(cost.forward.p10_us for cost in costs),
        forward_us_p90=tuple(cost.forward.p90_us for cost in costs),
        backward_us=tuple(cost.backward.median_us for cost in costs),
        backward_us_p10=tuple(cost.backward.p10_us for cost in costs),
        backward_us_p90=tuple(cost.backward.p90_us for cost in costs),
        saved_bytes=tuple(cost.saved_bytes for cost in costs),
        boundary_bytes=layers.boundary_bytes,
        fsdp2_us=fsdp2_us,
    )


def distinct(names: Iterable[str]) -> list[str]:
    """Each name, from its second time on with a number: ``Linear``, ``Block``, ``Linear-2``."""
    seen: Counter[str] = Counter()
    found = []
    for name in names:
        seen[name] += 1
        found.append(name if seen[name] == 1 else f"{name}-{seen[name]}")
    return found


def digest(*texts: str) -> str:
    """The same for the same texts."""
    joined = "\0".join(texts).encode()
    return hashlib.sha256(joined).hexdigest()[:_DIGEST_CHARACTERS]

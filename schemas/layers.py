"""Layer profiles: time and memory of a model's layers on one kind of device, by the size of the micro-batch."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import Annotated, ClassVar, Final, Self

from pydantic import Field, model_validator

from schemas.jobs import Name, NonNegativeFloat, PositiveFloat
from schemas.message import Count, Message

MAX_LAYERS: Final = 4_096
MAX_LAYER_CLASSES: Final = 256
MAX_MICROBATCHES: Final = 256
"""Sizes that a profile has values for."""

Times = Annotated[tuple[PositiveFloat, ...], Field(max_length=MAX_MICROBATCHES)]
"""Microseconds for micro-batches of 1, 2, 3 ... samples."""


class Dtype(StrEnum):
    """Type of elements, by torch's name."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"

    @property
    def item_bytes(self) -> int:
        """Of one element."""
        return {"float64": 8, "float32": 4}.get(self.value, 2)


class LayerClass(Message):
    """Layers of a model that are alike, measured on one of them. Lists hold micro-batches of 1, 2, 3 ... samples."""

    type_name: ClassVar[str] = "turnbuckle.planning.v1.LayerClass"

    name: Name
    count: Annotated[int, Field(ge=1, le=MAX_LAYERS)]
    """Layers of this class in the model."""
    parameters: Count
    """Of one layer."""
    flat_bytes: Count
    """Of one layer's parameters in one vector."""
    forward_us: Annotated[Times, Field(min_length=1)]
    """Median."""
    forward_us_p10: Times = ()
    forward_us_p90: Times = ()
    backward_us: Annotated[Times, Field(min_length=1)]
    """Median, without the forward pass that is done again ahead of it (recomputation)."""
    backward_us_p10: Times = ()
    backward_us_p90: Times = ()
    saved_bytes: Annotated[tuple[Count, ...], Field(min_length=1, max_length=MAX_MICROBATCHES)]
    """Kept by the forward pass for the backward pass of one layer."""
    boundary_bytes: Count
    """A layer's output for one sample."""
    fsdp2_us: NonNegativeFloat = 0.0
    """What the engine ``fsdp2`` takes for a layer and step beside passes, collectives and optimizer, by one sample.

    Copies out of shards and into them, hooks. 0: not measured, as in older profiles."""

    @model_validator(mode="after")
    def _equal_lengths(self) -> Self:
        length = len(self.forward_us)
        if len(self.backward_us) != length or len(self.saved_bytes) != length:
            raise ValueError(
                f"{self.name}: {length} forward times, {len(self.backward_us)} backward times and "
                f"{len(self.saved_bytes)} sizes of what is saved: all need the same micro-batches"
            )
        for name in ("forward_us_p10", "forward_us_p90", "backward_us_p10", "backward_us_p90"):
            if len(getattr(self, name)) not in {0, length}:
                raise ValueError(f"{self.name}: {name} has {len(getattr(self, name))} values instead of {length}")
        return self


class LayerProfile(Message):
    """A model measured layer by layer on one kind of device."""

    type_name: ClassVar[str] = "turnbuckle.planning.v1.LayerProfile"

    profile: Name
    """Digest of the model's source, the version of torch, the kind of device, the element type and the sequence."""
    model: Name
    """Digest of the model's source: profiles of one model on several kinds of devices belong together."""
    task: Name
    """`TaskFeatures.task`."""
    kind: Name
    """`Device.kind`."""
    dtype: Dtype = Dtype.FLOAT32
    chain: bool = True
    """Each layer takes the output of the one before; else only the engine ``fsdp2`` can train it."""
    scalar_parameters: bool = False
    """Parameters of it have no dimensions: the engine ``fsdp2`` cannot cut those, all others can train it."""
    refused: str = ""
    """Why no engine of ours can train it; empty: one can."""
    classes: Annotated[tuple[LayerClass, ...], Field(min_length=1, max_length=MAX_LAYER_CLASSES)]
    order: Annotated[tuple[int, ...], Field(min_length=1, max_length=MAX_LAYERS)]
    """Class of each layer, from the first layer to the last, as a place in `classes`."""
    optimizer_us_per_mib: NonNegativeFloat = 0.0
    """Of one optimizer step, per MiB of parameters, gradients and moments."""
    accumulation_us: NonNegativeFloat = 0.0
    """What a further micro-batch costs each layer beside its times."""
    reserved_bytes: Count = 0
    """Used by a worker before it has a model."""
    construction_bytes: Count = 0
    """Of the model while a worker builds it, as a whole, before it keeps its part; 0: one parameter after another."""
    contended: bool = False
    """Measured while the host's other devices computed as well."""
    measured_ns: Count
    node: str = ""

    @property
    def microbatches(self) -> int:
        """Sizes of micro-batches, from 1, that were measured for every class."""
        return min(len(layer.forward_us) for layer in self.classes)

    @model_validator(mode="after")
    def _order_of_classes(self) -> Self:
        unknown = [index for index in self.order if not 0 <= index < len(self.classes)]
        if unknown:
            raise ValueError(f"order names class {unknown[0]} of {len(self.classes)}")
        counts = Counter(self.order)
        for index, layer in enumerate(self.classes):
            if counts[index] != layer.count:
                raise ValueError(f"{layer.name}: {layer.count} layers, order has {counts[index]}")
        return self

"""Whether a training fits into memory: a lower bound of what it needs on one accelerator, or on one machine without.

Counted are what every data-parallel training in single precision holds without sharding: weights, gradients, the
optimizer's moments, and the activations of one batch (as `turnbuckle features` measures them, else input and output).
Autocast (mixed precision) keeps weights, gradients and moments in single precision, too, and halves the activations.
The framework, fragmentation and temporary buffers are left out, so that "does not fit" is certain, less a smaller batch
for each pass or activations that are computed twice, and "fits" is not. Pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from schemas.accelerators import find_accelerator
from schemas.jobs import Configuration, TaskFeatures
from services.advisor.core.roofline import width_of, with_precision

BYTES_PER_ELEMENT: Final = 4.0
"""Single precision."""
BYTES_PER_GB: Final = 2.0**30
"""Memory is sold in GiB, and called GB."""
_MOMENTS: Final = {
    "sgd": 0,  # 1 with momentum, which no feature says: a lower bound
    "adam": 2,
    "adamw": 2,
    "adamax": 2,
    "nadam": 2,
    "radam": 2,
    "lamb": 2,
    "adadelta": 2,
    "adagrad": 1,
    "rmsprop": 1,
    "lion": 1,
    "asgd": 1,
    "rprop": 2,
}
"""Numbers that an optimizer keeps for each parameter, by its name in lower case (torch.optim's source, state of a step
with the default options; LAMB: You et al. 2020; Lion: Chen et al. 2023)."""
_WORDS: Final = ("", "moment", "two moments")
_NOTABLE: Final = 0.01
"""Share of the whole from which on the activations are named."""


def moments_per_parameter(optimizer: str) -> int:
    """Return how many numbers an optimizer keeps for each parameter; 0 for one that is not known: a lower bound."""
    return _MOMENTS.get(optimizer.strip().casefold(), 0)


def state_bytes_per_parameter(optimizer: str) -> float:
    """Return bytes of weight, gradient and moments of one trainable parameter: 16 for Adam, 8 for SGD."""
    return BYTES_PER_ELEMENT * (2 + moments_per_parameter(optimizer))


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes that a training needs at least."""

    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    activations_bytes: float
    """Of one batch."""

    @property
    def total_bytes(self) -> float:
        """All of them."""
        return self.weights_bytes + self.gradients_bytes + self.optimizer_bytes + self.activations_bytes


@dataclass(frozen=True, slots=True)
class MemoryFit:
    """Whether a training's least need is within the memory given."""

    fits: bool | None
    """None: need or memory is not known. True: nothing that is counted speaks against it."""
    reason: str
    """A sentence with both figures where it does not fit; else empty."""
    fits_sharded: bool = True
    """It may fit where the state is divided among all devices (FSDP, ZeRO)."""


def memory_need(task: TaskFeatures, batch_size: int, width: float = 1.0) -> MemoryNeed:
    """Return what a training needs at least on each device that trains a whole copy of the model.

    Args:
        task: Its parameters, optimizer, activations, and elements in and out.
        batch_size: Samples on one device; 0 counts as one.
        width: Bytes of an activation over those of single precision; weights stay in single precision.
    """
    trained, frozen = float(task.parameter_count), float(task.frozen_parameter_count)
    ends_bytes = float(task.input_elements + task.output_elements) * BYTES_PER_ELEMENT
    return MemoryNeed(
        weights_bytes=(trained + frozen) * BYTES_PER_ELEMENT,
        gradients_bytes=trained * BYTES_PER_ELEMENT,
        optimizer_bytes=trained * BYTES_PER_ELEMENT * moments_per_parameter(task.optimizer),
        activations_bytes=max(batch_size, 1) * max(ends_bytes, task.activation_bytes) * width,
    )


def memory_fit(task: TaskFeatures, configuration: Configuration) -> MemoryFit:
    """Return whether a training's least need fits into one accelerator, or into one machine without accelerators.

    A worker's batch is divided among its machine's accelerators.
    """
    count = configuration.accelerators
    batch_size = math.ceil(configuration.batch_size / max(count, 1))
    given_gb, device = _memory_given(configuration)
    if not (task.parameter_count or task.frozen_parameter_count) or not given_gb:
        return MemoryFit(fits=None, reason="")
    need = memory_need(task, batch_size, width_of(with_precision(task, configuration)))
    if need.total_bytes <= given_gb * BYTES_PER_GB:
        return MemoryFit(fits=True, reason="")
    state_bytes = need.total_bytes - need.activations_bytes
    devices = configuration.workers * max(count, 1)
    sharded = state_bytes / devices + need.activations_bytes <= given_gb * BYTES_PER_GB
    reason = f"{_need_text(task, need, batch_size)}; {device} has {given_gb:g} GB"
    return MemoryFit(fits=False, reason=reason, fits_sharded=sharded)


def _memory_given(configuration: Configuration) -> tuple[float, str]:
    """Return GB of one device, 0 where it is not known, and its name with an article."""
    if not configuration.accelerators:
        return configuration.memory_gb, f"a machine of type {configuration.instance_type}"
    known = find_accelerator(configuration.accelerator)
    given_gb = configuration.accelerator_memory_gb or (known.memory_gb if known is not None else 0.0)
    return given_gb, f"one {configuration.accelerator}" if configuration.accelerator else "one accelerator"


def _need_text(task: TaskFeatures, need: MemoryNeed, batch_size: int) -> str:
    parts = ["weights"] + (["gradients"] if task.parameter_count else [])
    if moments := moments_per_parameter(task.optimizer) if task.parameter_count else 0:
        parts.append(f"{task.optimizer}'s {_WORDS[moments]}")
    if need.activations_bytes >= _NOTABLE * need.total_bytes:
        parts.append(f"the activations of {max(batch_size, 1):,} samples")
    what = f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else parts[0]
    count = task.parameter_count + task.frozen_parameter_count
    return f"{_number(count)} parameters need at least {need.total_bytes / BYTES_PER_GB:.3g} GiB for {what}"


def _number(count: int) -> str:
    return f"{count:,}" if count < 1_000_000 else f"{count:.3g}".replace("e+0", "e").replace("e+", "e")

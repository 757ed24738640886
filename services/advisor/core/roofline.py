"""Roofline of a training step on one accelerator (Williams, Waterman, Patterson 2009). Pure.

A step of ``F`` operations that moves ``B`` bytes takes, on a device of peak ``P`` and memory bandwidth ``W``, at least

    ``max(F / P, B / W)``

An eager training runs one operator after another, some limited by arithmetic and others by memory, so that the two
times add up: ``F / P + B / W`` is what `step_s` returns. No device reaches it; how far it is off is measured
(`accelerator_times.py`).
"""

from __future__ import annotations

import math
from typing import Final

from schemas.accelerators import Accelerator, find_accelerator
from schemas.jobs import Configuration, TaskFeatures

PRECISION: Final = "precision"
"""Attribute of a configuration: ``fp32``, ``tf32``, ``fp16`` or ``bf16``."""
SINGLE: Final = "fp32"
_HALF: Final = frozenset({"fp16", "bf16"})


def precision_of(configuration: Configuration) -> str:
    """Return a configuration's precision; single precision where it names none."""
    return str(configuration.attributes.get(PRECISION, SINGLE))


def with_precision(task: TaskFeatures, where: Configuration) -> Configuration:
    """Return a configuration with the task's precision where it names none of its own."""
    if PRECISION in where.attributes or PRECISION not in task.attributes:
        return where
    return where.model_copy(update={"attributes": where.attributes | {PRECISION: task.attributes[PRECISION]}})


def width_of(configuration: Configuration) -> float:
    """Return bytes of an element over those of single precision, which a task's features are of."""
    return 0.5 if precision_of(configuration) in _HALF else 1.0


def peak_flops_per_s(device: Accelerator, precision: str) -> float:
    """Return a device's peak at a precision; of one that it has no mode for, that of single precision."""
    modes = {"tf32": device.tf32_flops_per_s} | dict.fromkeys(_HALF, device.fp16_flops_per_s)
    return modes.get(precision, 0.0) or device.fp32_flops_per_s


def step_parts_s(task: TaskFeatures, configuration: Configuration) -> tuple[float, float] | None:
    """Return seconds of a step's arithmetic and of its memory traffic on one of a configuration's accelerators.

    None where the task's work or the batch is not known, or the accelerator is not in the table.
    """
    device = find_accelerator(configuration.accelerator)
    if device is None or not task.step_flops or not task.step_bytes or not configuration.batch_size:
        return None
    precision = precision_of(configuration)
    moved = width_of(configuration) * (task.step_bytes * configuration.batch_size + task.step_weight_bytes)
    flops = task.step_flops * configuration.batch_size
    return flops / peak_flops_per_s(device, precision), moved / device.memory_bytes_per_s


def step_s(task: TaskFeatures, configuration: Configuration) -> float | None:
    """Return seconds of a step, arithmetic and memory traffic after one another; None: not known."""
    parts = step_parts_s(task, configuration)
    return None if parts is None else sum(parts)


def steps_of(task: TaskFeatures, configuration: Configuration) -> float | None:
    """Return how many optimizer steps a training has on one accelerator; None: not known."""
    if task.steps:
        return float(task.steps)
    if not (task.epochs and task.samples_per_epoch and configuration.batch_size):
        return None
    return float(task.epochs * math.ceil(task.samples_per_epoch / configuration.batch_size))

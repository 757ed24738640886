"""How long a reference layer takes on a device: one block of a transformer, forward and backward, in float32.

A GPU is done with `SAMPLES` before the processor has started the kernels of the next layer, and any GPU would take what
the processor takes. So it is given `ON_GPU` times as many at once, and its time for `SAMPLES` of them is told.
"""

from __future__ import annotations

import time
from typing import Final

import torch
from torch import nn

from services.collector.layers.block_times import Repetitions, Spread, timed

WIDTH: Final = 512
HEADS: Final = 8
SEQUENCE: Final = 128
SAMPLES: Final = 4
ON_GPU: Final = 64
REPETITIONS: Final = Repetitions(warm_up=2, counted=9)


def reference_layer_us(device: torch.device, repetitions: Repetitions = REPETITIONS, width: int = WIDTH) -> Spread:
    """Microseconds of the layer's both passes, for `SAMPLES`.

    Devices compare by it; a model's own layers may differ from it.

    Args:
        device: that it runs on, as fast as what else runs there allows.
        repetitions: how often it is measured.
        width: of the layer.
    """
    times = ON_GPU if device.type == "cuda" else 1
    layer = nn.TransformerEncoderLayer(width, HEADS, 4 * width, dropout=0.0, batch_first=True, device=device)
    given = torch.randn(times * SAMPLES, SEQUENCE, width, device=device, requires_grad=True)
    gradient = torch.ones_like(given)

    def run(calls: int) -> None:
        for _ in range(calls):
            layer(given).backward(gradient)

    def clock() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter()

    return part_of(timed(run, clock, repetitions), times)


def part_of(spread: Spread, parts: int) -> Spread:
    """Of one of so many equal parts that were computed together."""
    return Spread(spread.median_us / parts, spread.p10_us / parts, spread.p90_us / parts)

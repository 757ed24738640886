"""How much faster a training is with more workers: measured of a few models, else by Amdahl's law.

Measured are steps per second on V100 GPUs, published with Gavel (OSDI 2020;
https://github.com/stanford-futuredata/gavel, scheduler/simulation_throughputs.json, MIT, copyright 2020 Stanford Future
Data Systems): the licence and the values as they were published stand in tests/unit/scheduler/gavel.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

SERIAL_PART: Final = 0.1
"""Of a step, where nothing was measured: what more workers do not make faster (Amdahl's law)."""
LINEAR_WORKERS: Final = 2
"""Up to so many workers each counts fully, where nothing was measured."""
MEASURED_WORKERS: Final = (1, 2, 4, 8)
STEPS_PER_S: Final[Mapping[tuple[str, int], tuple[float, ...]]] = {
    ("resnet18", 16): (32.353, 100.142, 123.854, 382.597),
    ("resnet18", 32): (29.947, 94.249, 114.733, 340.038),
    ("resnet18", 64): (24.093, 74.136, 95.588, 255.829),
    ("resnet18", 128): (17.995, 23.985, 69.951, 162.092),
    ("resnet18", 256): (10.3, 15.883, 27.782, 81.507),
    ("resnet50", 16): (11.396, 13.86, 23.196, 27.799),
    ("resnet50", 32): (7.787, 10.835, 13.763, 24.067),
    ("resnet50", 64): (4.395, 7.922, 9.452, 17.303),
    ("resnet50", 128): (2.497, 4.223, 7.029, 10.293),
    ("transformer", 16): (11.064, 14.154, 20.085, 71.652),
    ("transformer", 32): (10.621, 13.328, 22.823, 63.978),
    ("transformer", 64): (8.618, 15.876, 19.66, 49.651),
    ("transformer", 128): (5.446, 10.069, 14.175, 30.884),
    ("transformer", 256): (1.595, 2.885, 4.763, 9.717),
    ("lm", 5): (109.167, 185.724, 126.716, 698.773),
    ("lm", 10): (81.652, 163.129, 121.478, 615.093),
    ("lm", 20): (64.742, 132.174, 110.997, 497.295),
    ("lm", 40): (45.237, 91.593, 96.031, 359.307),
    ("lm", 80): (28.24, 58.092, 74.807, 231.176),
}
"""By model and batch size of a worker: with each of `MEASURED_WORKERS`."""
_LARGEST_BATCH: Final = {model: max(size for name, size in STEPS_PER_S if name == model) for model, _ in STEPS_PER_S}
_WITH_BATCH: Final = re.compile(r"(?P<model>.*?)\s*\(batch size (?P<batch>[0-9]{1,9})\)")
"""As Gavel names its jobs, such as ``ResNet-50 (batch size 64)``."""


@lru_cache(maxsize=4_096)
def speedups(model: str, most_workers: int) -> tuple[float, ...]:
    """How many times as fast as with one worker, with 1, 2, ... `most_workers`.

    Between measured numbers of workers it is linear; beyond them it grows as by Amdahl's law. It is never above the
    number of workers: where more was measured, the batch size made the difference. It falls where that was measured.

    Args:
        model: such as ``resnet50``, ``ResNet-50`` or ``ResNet-50 (batch size 64)``; without a batch size that was
            measured, the largest that was. Another model: nothing is known of it.
        most_workers: at least 1.
    """
    measured = _measured(model)
    return tuple(_speedup(workers, measured) for workers in range(1, most_workers + 1))


def _measured(model: str) -> tuple[float, ...] | None:
    found = _WITH_BATCH.fullmatch(model)
    name = re.sub(r"[^a-z0-9]", "", (found["model"] if found else model).lower())
    rates = STEPS_PER_S.get((name, int(found["batch"]))) if found else None
    if rates is None:
        rates = STEPS_PER_S.get((name, _LARGEST_BATCH.get(name, 0)))
    return None if rates is None else tuple(rate / rates[0] for rate in rates)


def _speedup(workers: int, measured: tuple[float, ...] | None) -> float:
    if measured is None:
        return _amdahl(workers)
    last = MEASURED_WORKERS[-1]
    if workers > last:
        return _capped(measured[-1], last) * _amdahl(workers) / _amdahl(last)
    place = bisect_left(MEASURED_WORKERS, workers)
    above = _capped(measured[place], MEASURED_WORKERS[place])
    if MEASURED_WORKERS[place] == workers:
        return above
    few, many = MEASURED_WORKERS[place - 1], MEASURED_WORKERS[place]
    below = _capped(measured[place - 1], few)
    return below + (above - below) * (workers - few) / (many - few)


def _capped(measured: float, workers: int) -> float:
    return min(measured, float(workers))


def _amdahl(workers: int) -> float:
    if workers <= LINEAR_WORKERS:
        return float(workers)
    return 1 / (SERIAL_PART + (1 - SERIAL_PART) / workers)

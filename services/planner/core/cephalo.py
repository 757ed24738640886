"""Uneven data parallelism: how many samples each device computes, in micro-batches of which size. Pure.

After Cephalo (Guo et al., 2024). Device i takes n_i micro-batches of m_i samples, b_i = n_i m_i, sum b_i = B. In each
layer, with all-gather AG and reduce-scatter RS hidden behind computing, and the forward pass done again,

    F_i = n_i f(m_i)     B_i = n_i b(m_i) + (n_i - 1) a     t_i = max(AG, F_i) + max(AG + RS, F_i + B_i)

where a is what a further micro-batch costs; a step takes max_i t_i. The engines of this project differ from that
(`Problem.hides_collectives`, `Problem.recomputes`). A dynamic programme has

    best[i][j][k] = min over (m, n) of max(best[i - 1][j - n m][k - m], t_i(m, n))

the least maximum over the first i devices that compute j samples in micro-batches whose sizes add up to k. The sum k
stands for the memory of all devices, which have the state as well: exact where memory grows evenly with m.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from services.planner.core.profile import GIB, Device, Infeasible, LayerTimes, MemoryProfile, total
from services.planner.core.rules import CORRECTED, Rules
from services.planner.core.state_shares import fill, move_rounding_down, samples_by_count

Floats = NDArray[np.float64]
Ints = NDArray[np.int32]

DEFAULT_BYTES_PER_PARAMETER: Final = 16.0
"""float32 parameter, gradient and Adam's two moments."""
UNPLACEABLE: Final = "a device has no room for one sample, or there are more devices than samples"


@dataclass(frozen=True, slots=True)
class Layers:
    """Layers that are alike."""

    times: tuple[LayerTimes, ...]
    """Of one layer, per device."""
    gather_ms: float = 0.0
    """All-gather of one layer's parameters over even shards."""
    scatter_ms: float = 0.0
    """Reduce-scatter of its gradients."""
    count: int = 1


@dataclass(frozen=True, slots=True)
class Problem:
    """A model on devices. The defaults are what the authors of Cephalo assume."""

    devices: tuple[Device, ...]
    layers: tuple[Layers, ...]
    memory: tuple[MemoryProfile, ...]
    """Per device."""
    parameters: int
    batch: int
    max_microbatch: int = 1 << 16
    memory_share: float = 0.75
    """Of a device's memory that may be planned with."""
    bytes_per_parameter: float = DEFAULT_BYTES_PER_PARAMETER
    uneven_factor: float = 1.25
    """By so much a collective over uneven shards takes longer."""
    accumulation_ms: tuple[float, ...] = ()
    """What a further micro-batch costs a layer, per device; none: 10 ms."""
    unit: int = 1
    """Samples that stay together; divides the batch."""
    hides_collectives: bool = True
    """They run beside computing; else before and after it."""
    recomputes: bool = True
    """The forward pass is done again ahead of the backward pass."""
    last: int | None = None
    """Place in `layers` of the chain's last one, if that is gathered once and its forward pass not done again."""

    @property
    def state_gib(self) -> float:
        """Of all devices together."""
        return self.parameters * self.bytes_per_parameter / GIB

    @property
    def allowed_gib(self) -> list[float]:
        """Of each device."""
        return [self.memory_share * device.memory_gib for device in self.devices]


@dataclass(frozen=True, slots=True)
class Split:
    """Samples per device, and in how many micro-batches of equal size."""

    samples: tuple[int, ...]
    counts: tuple[int, ...]

    @property
    def sizes(self) -> tuple[int, ...]:
        """Samples of one micro-batch."""
        return tuple(part // count for part, count in zip(self.samples, self.counts, strict=True))


@dataclass(frozen=True, slots=True)
class Plan:
    """Samples and state per device."""

    split: Split
    shares: tuple[float, ...]
    step_ms: float
    """Of all layers; without the first all-gather and the optimizer."""


class Limits(NamedTuple):
    """Of one device: its largest micro-batch beside an even share of the state, and beside none."""

    even: int
    alone: int


class _Choice(NamedTuple):
    """Of one device, by (samples, sum of sizes) of it and those before: its samples and its micro-batch, in units."""

    samples: Ints
    sizes: Ints


def plan(problem: Problem, rules: Rules = CORRECTED) -> Plan | Infeasible:
    """The fastest division of samples, and then of the state."""
    split = split_batch(problem, rules)
    if isinstance(split, Infeasible):
        return split
    shares = split_state(problem, split, rules)
    return shares if isinstance(shares, Infeasible) else Plan(split, shares, step_ms(problem, split))


def limits(problem: Problem) -> list[Limits]:
    """Per device."""
    even_gib = problem.state_gib / len(problem.devices)
    return [
        Limits(memory.largest(cap - even_gib, problem.batch), memory.largest(cap, problem.batch))
        for memory, cap in zip(problem.memory, problem.allowed_gib, strict=True)
    ]


def device_ms(problem: Problem, device: int, size: int, count: int, *, uneven: bool) -> float:
    """A device's t_i above over all layers, with ``count`` micro-batches of ``size`` samples."""
    factor = problem.uneven_factor if uneven else 1.0
    accumulation = problem.accumulation_ms[device] if problem.accumulation_ms else 10.0

    def layer_ms(layers: Layers) -> float:
        times = layers.times[device]
        gather, scatter = factor * layers.gather_ms, factor * layers.scatter_ms
        forward = count * times.forward.at(size)
        backward = (count - 1) * accumulation + count * times.backward.at(size)
        if problem.recomputes:
            backward = forward + backward
        if problem.hides_collectives:
            return max(gather, forward) + max(gather + scatter, backward)
        return gather + forward + gather + scatter + backward

    return total(layers.count * layer_ms(layers) for layers in problem.layers) - _once_ms(
        problem, device, size, count, factor
    )


def busy_ms(problem: Problem, device: int, size: int, count: int) -> float:
    """Of `device_ms`, computing."""
    both = [(layers.count, layers.times[device]) for layers in problem.layers]
    forwards = 2 if problem.recomputes else 1
    computing = total(k * count * (forwards * times.forward.at(size) + times.backward.at(size)) for k, times in both)
    return computing - _once_ms(problem, device, size, count, 0.0)


def _once_ms(problem: Problem, device: int, size: int, count: int, factor: float) -> float:
    """What the chain's last layer takes less than others of its class, with collectives by that factor."""
    if problem.last is None:
        return 0.0
    layer = problem.layers[problem.last]
    return factor * layer.gather_ms + count * layer.times[device].forward.at(size)


def step_ms(problem: Problem, split: Split) -> float:
    """The slowest device's; a device whose micro-batch has no room beside an even share has an uneven one."""
    parts = zip(split.sizes, split.counts, limits(problem), strict=True)
    return max(
        device_ms(problem, i, size, count, uneven=size > limit.even) for i, (size, count, limit) in enumerate(parts)
    )


def split_batch(problem: Problem, rules: Rules = CORRECTED) -> Split | Infeasible:
    """The dynamic programme; of equal times the smaller micro-batch, then the smaller count."""
    units = problem.batch // problem.unit
    best = np.full((units + 1, units + 1), np.inf)
    best[0, 0] = 0.0
    choices: list[_Choice] = []
    for device, limit in enumerate(limits(problem)):
        best, choice = _with_device(best, _options(problem, device, limit))
        choices.append(choice)
    return _fastest_that_fits(problem, best, choices, rules)


def _options(problem: Problem, device: int, limit: Limits) -> Iterator[tuple[int, int, float]]:
    """Size in units, count and milliseconds of all that a device can do."""
    units = problem.batch // problem.unit
    memory, allowed_gib = problem.memory[device], problem.allowed_gib[device]
    for size in range(1, min(problem.max_microbatch, limit.alone, problem.batch) // problem.unit + 1):
        samples = size * problem.unit
        uneven = samples > limit.even
        for count in range(1, units // size + 1):
            if memory.kept_gib_per_sample and memory.held(samples, samples * count) > allowed_gib:
                break
            yield size, count, device_ms(problem, device, samples, count, uneven=uneven)


def _with_device(best: Floats, options: Iterator[tuple[int, int, float]]) -> tuple[Floats, _Choice]:
    """The table with one device more."""
    longer = np.full_like(best, np.inf)
    samples, sizes = np.full(best.shape, -1, np.int32), np.full(best.shape, -1, np.int32)
    end = len(best)
    for size, count, cost_ms in options:
        taken = size * count
        candidate = np.maximum(best[: end - taken, : end - size], cost_ms)
        here = (slice(taken, None), slice(size, None))
        better = candidate < longer[here]
        longer[here][better] = candidate[better]
        samples[here][better] = taken
        sizes[here][better] = size
    return longer, _Choice(samples, sizes)


def _fastest_that_fits(problem: Problem, best: Floats, choices: Sequence[_Choice], rules: Rules) -> Split | Infeasible:
    """Over all sums of sizes: the fastest division that the devices together have memory for."""
    units, found, fastest_ms, least_missing = problem.batch // problem.unit, None, math.inf, math.inf
    for size_sum in range(1, units + 1):
        now_ms = float(best[units, size_sum])
        if not math.isfinite(now_ms):
            continue
        split = _traced(problem, size_sum, choices)
        missing = missing_gib(problem, split, rules)
        least_missing = min(least_missing, missing)
        fits = missing <= 0 or (rules.first_may_overflow and found is None)
        if fits and (found is None or problem.batch / now_ms > problem.batch / fastest_ms):
            found, fastest_ms = split, now_ms
    if found is None and math.isinf(least_missing):
        return Infeasible(UNPLACEABLE)
    if found is None:
        allowed = total(problem.allowed_gib)
        return Infeasible(f"needs {allowed + least_missing:.1f} GiB, may use {allowed:.1f} GiB", least_missing)
    return found


def missing_gib(problem: Problem, split: Split, rules: Rules = CORRECTED) -> float:
    """By so much the devices together have too little memory; 0 or less: it is enough."""
    if rules.rounds_down:
        parts = zip(problem.memory, split.sizes, strict=True)
        needed = total(memory.at(size) for memory, size in parts) + problem.state_gib
        allowed = problem.memory_share * total(device.memory_gib for device in problem.devices)
        return 0.0 if needed < allowed else max(needed - allowed, math.ulp(allowed))
    return problem.state_gib - total(rooms_gib(problem, split))


def held_gib(problem: Problem, split: Split) -> list[float]:
    """Of each device, beside its part of the state."""
    parts = zip(problem.memory, split.sizes, split.samples, strict=True)
    return [memory.held(size, samples) for memory, size, samples in parts]


def rooms_gib(problem: Problem, split: Split) -> list[float]:
    """What each device has left for state."""
    parts = zip(problem.allowed_gib, held_gib(problem, split), strict=True)
    return [max(0.0, allowed - held) for allowed, held in parts]


def _traced(problem: Problem, size_sum: int, choices: Sequence[_Choice]) -> Split:
    """The choices that led to an entry, from the last device back."""
    left = problem.batch // problem.unit
    samples: list[int] = []
    counts: list[int] = []
    for choice in reversed(choices):
        taken, size = int(choice.samples[left, size_sum]), int(choice.sizes[left, size_sum])
        samples.append(taken * problem.unit)
        counts.append(taken // size)
        left, size_sum = left - taken, size_sum - size
    return Split(tuple(reversed(samples)), tuple(reversed(counts)))


def split_state(problem: Problem, split: Split, rules: Rules = CORRECTED) -> tuple[float, ...] | Infeasible:
    """Shares of the state, by device."""
    if not rules.rounds_down:
        return fill(rooms_gib(problem, split), problem.state_gib)
    by_count = samples_by_count(split.samples, split.sizes)
    return released_shares(problem, by_count if rules.memory_by_count else split.sizes)


def released_shares(problem: Problem, sizes: Sequence[int]) -> tuple[float, ...]:
    """As Cephalo's release has them, for micro-batches of these sizes."""
    held = [memory.at(size) for memory, size in zip(problem.memory, sizes, strict=True)]
    return move_rounding_down([device.memory_gib for device in problem.devices], held, problem.parameters)

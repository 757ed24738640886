"""How many equal devices to use for a job, as a pipeline of how many stages with how many replicas each. Pure.

After Hydrozoa (Guo et al., 2022), which publishes no formulas. With W = s d devices, micro-batches of m samples and
M = B / (d m) of them in each replica, a stage of layers i+1 ... l costs C; then

    F(l, s) = min over i of max(F(i, s - 1), C(i+1 ... l))      iteration = (M + s - 1) F(L, s) + all-reduce

where the all-reduce of gradients over d replicas takes as long as the stage with the most parameters. The divisions of
l layers into s stages are kept that no other is better than in both: the slowest stage, and the most parameters in one.
So the least iteration is exact; over m, s and d that with the least cost per sample is chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from services.planner.core.profile import GIB, Infeasible, LayerTimes, MemoryProfile, total

_REDUCE_BYTES = 4


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer on the kind of device."""

    times: LayerTimes
    parameters: int
    boundary_bytes: int
    """Its output for one sample."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A model, and devices of one kind that can be used."""

    layers: tuple[Layer, ...]
    memory: MemoryProfile
    """Beside parameters and what is kept of each layer."""
    batch: int
    devices: int
    allowed_gib: float
    """Of each device."""
    gib_per_s: float
    """Between any two of them."""
    bytes_per_parameter: float = 16.0


class Layout(NamedTuple):
    """Size of the micro-batch, stages and replicas."""

    microbatch: int
    stages: int
    replicas: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Stages of equal devices."""

    layout: Layout
    last_layers: tuple[int, ...]
    """Layers up to and with each stage."""
    step_ms: float

    @property
    def devices(self) -> int:
        """That are used."""
        return self.layout.stages * self.layout.replicas


class Division(NamedTuple):
    """Layers from the first on, in stages."""

    slowest_ms: float
    most_parameters: int
    last_layers: tuple[int, ...]


def plan(problem: Problem) -> Plan | Infeasible:
    """The least device time per sample; of equal ones the faster, then that with fewer stages."""
    found: list[Plan] = []
    for layout in layouts(problem):
        fitting = divisions(problem, layout)
        if fitting:
            best = min(fitting, key=lambda division: (step_ms(problem, layout, division), division.last_layers))
            found.append(Plan(layout, best.last_layers, step_ms(problem, layout, best)))
    if not found:
        return Infeasible("no number of stages, replicas and micro-batches fits the devices' memory")
    return min(found, key=lambda one: (one.step_ms * one.devices, one.step_ms, one.layout.stages))


def layouts(problem: Problem) -> Iterator[Layout]:
    """All that divide the batch evenly."""
    for stages in range(1, min(len(problem.layers), problem.devices) + 1):
        for replicas in range(1, problem.devices // stages + 1):
            if problem.batch % replicas:
                continue
            part = problem.batch // replicas
            yield from (Layout(size, stages, replicas) for size in range(1, part + 1) if part % size == 0)


def divisions(problem: Problem, layout: Layout) -> list[Division]:
    """Of all layers into the layout's stages: those that fit, and that no other one is better than."""
    layers = len(problem.layers)
    costs = {
        (first, last): cost
        for first in range(layers)
        for last in range(first + 1, layers + 1)
        if (cost := stage_cost(problem, layout, first, last)) is not None
    }
    fronts: dict[int, list[Division]] = {0: [Division(0.0, 0, ())]}
    for _ in range(layout.stages):
        longer: dict[int, list[Division]] = {}
        for (first, last), cost in costs.items():
            for front in fronts.get(first, []):
                slowest, most = max(front.slowest_ms, cost.slowest_ms), max(front.most_parameters, cost.most_parameters)
                longer.setdefault(last, []).append(Division(slowest, most, (*front.last_layers, last)))
        fronts = {last: _undominated(found) for last, found in longer.items()}
    return fronts.get(layers, [])


def _undominated(found: Sequence[Division]) -> list[Division]:
    """By the slowest stage ascending; each has fewer parameters in its largest stage than those before."""
    kept: list[Division] = []
    for division in sorted(found):
        if not kept or division.most_parameters < kept[-1].most_parameters:
            kept.append(division)
    return kept


def stage_cost(problem: Problem, layout: Layout, first: int, last: int) -> Division | None:
    """Of the layers [first, last) as one stage: its milliseconds and parameters; None: it does not fit.

    The forward pass is done again ahead of the backward pass; the last output goes to the next stage, and its gradient
    comes back.
    """
    layers, size = problem.layers[first:last], layout.microbatch
    parameters = sum(layer.parameters for layer in layers)
    kept = sum(layer.boundary_bytes for layer in layers) * (problem.batch // layout.replicas)
    needed = problem.memory.at(size) + (parameters * problem.bytes_per_parameter + kept) / GIB
    if needed > problem.allowed_gib:
        return None
    times = [layer.times for layer in layers]
    compute_ms = total(2 * one.forward.at(size) + one.backward.at(size) for one in times)
    sent = 2 * size * layers[-1].boundary_bytes if last < len(problem.layers) else 0
    return Division(compute_ms + sent / GIB / problem.gib_per_s * 1_000, parameters, (last,))


def step_ms(problem: Problem, layout: Layout, division: Division) -> float:
    """The iteration above, with a ring all-reduce."""
    count = problem.batch // (layout.replicas * layout.microbatch)
    reduced = 2 * (layout.replicas - 1) / layout.replicas * division.most_parameters * _REDUCE_BYTES
    all_reduce_ms = reduced / GIB / problem.gib_per_s * 1_000
    return (count + layout.stages - 1) * division.slowest_ms + all_reduce_ms

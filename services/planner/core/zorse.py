"""Pipelines of groups of devices: which layers each group takes, and in how many turns. Pure.

After Zorse (Guo et al., 2025):

1. `zorse_groups` divides the devices into k = machines ... 1 groups.
2. In a group every device takes micro-batches in proportion to its speed; a layer takes the group as long as its
   slowest device.
3. Layers are divided between groups in inverse proportion to that, each part cut into d ministages that take turns.
4. A step takes what `pipeline_time` says; the least over micro-batches of 1, 2, 4 ... samples, d and k that fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from services.planner.core.pipeline_time import Stage, TimedGroup, pipeline_ms
from services.planner.core.profile import GIB, Device, Infeasible, LayerTimes, MemoryProfile, Network, total
from services.planner.core.rules import CORRECTED, Rules
from services.planner.core.zorse_groups import Group, chain, fixed_ms, ring_ms, send_ms, splits


@dataclass(frozen=True, slots=True)
class LayerClass:
    """Layers that are alike."""

    times: Mapping[str, LayerTimes]
    """Of one layer, by kind of device."""
    parameters: int
    """Of one layer."""
    boundary_bytes: int
    """Its output for one sample."""


@dataclass(frozen=True, slots=True)
class Model:
    """Layers in a chain. The defaults are those of the authors of Zorse: float16 with a float32 optimizer."""

    classes: tuple[LayerClass, ...]
    order: tuple[int, ...]
    """Class of each layer."""
    gather_bytes: int = 2
    """Of one parameter."""
    reduce_bytes: int = 4
    parameter_bytes: float = 2.0
    """Of one parameter as computed with."""
    optimizer_bytes: float = 12.0
    """Of one parameter's part of the state."""
    working: Mapping[str, MemoryProfile] | None = None
    """By kind of device, beside parameters and what is sent; None: `reserved_gib`, and nothing is kept."""
    reserved_gib: float = 2.0
    is_carried_out: bool = False
    """By engine ministage. It has one ministage whole, its gradients or the next one, where a group has several a layer
    more, and what two passes have sent, and gathers layer by layer: each collective has its fixed part. Else, as the
    authors have it, two neighbouring ministages whole, and collectives that take what their bytes take."""

    @property
    def boundary_bytes(self) -> int:
        """Of one sample, at the layer where it is largest."""
        return max(layer.boundary_bytes for layer in self.classes)

    def counts(self, first: int, last: int) -> tuple[int, ...]:
        """Layers of each class in [first, last)."""
        part = self.order[first:last]
        return tuple(part.count(index) for index in range(len(self.classes)))


@dataclass(frozen=True, slots=True)
class Problem:
    """A model on devices of several machines."""

    devices: tuple[Device, ...]
    network: Network
    model: Model
    batch: int
    max_microbatch: int = 1 << 16
    memory_share: float = 1.0
    """Of a device's memory that may be planned with."""
    ring_factor: float = 1.15
    """By so much a collective takes longer than its transfers."""
    hides_collectives: bool = True
    """Behind computing; else they come before and after it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A pipeline."""

    groups: tuple[TimedGroup, ...]
    stages: tuple[Stage, ...]
    microbatch: int
    turns: int
    """Ministages of each group: the interleave degree d."""
    step_ms: float
    """Without the optimizer."""

    def of_group(self, index: int) -> list[Stage]:
        """A group's ministages, in turn."""
        return [stage for stage in self.stages if stage.group == index]


class _Found(NamedTuple):
    """Of one micro-batch: the fastest plan that fits, and by how much memory is missing at least where none does."""

    plan: Plan | None
    missing_gib: float


def plan(problem: Problem, rules: Rules = CORRECTED) -> Plan | Infeasible:
    """The fastest plan over the number of groups; of equal ones that with more groups."""
    best: Plan | None = None
    missing: list[float] = []
    for parts in reversed(splits(problem.devices, problem.network)):
        groups = chain([group_of(problem, part, rules) for part in parts], problem.network)
        found = _plan_groups(problem, groups, rules)
        missing.append(found.missing_gib)
        if found.plan is not None and (best is None or found.plan.step_ms < best.step_ms):
            best = found.plan
    if best is not None:
        return best
    reason = "no number of groups, micro-batch and ministages fits"
    return Infeasible(f"{reason}: at least {min(missing):.1f} GiB are missing", min(missing))


def group_of(problem: Problem, devices: Sequence[Device], rules: Rules = CORRECTED) -> Group:
    """A group with the times of its collectives."""
    model = problem.model
    fixed = fixed_ms(devices, problem.network) if model.is_carried_out else 0.0

    def collective_ms(layer: LayerClass, item_bytes: int) -> float:
        ms = ring_ms(devices, problem.network, layer.parameters * item_bytes, problem.ring_factor)
        if rules.collectives_in_seconds:
            return ms / 1_000
        return ms + fixed if layer.parameters else ms

    return Group(
        tuple(devices),
        tuple(collective_ms(layer, model.gather_bytes) for layer in model.classes),
        tuple(collective_ms(layer, model.reduce_bytes) for layer in model.classes),
    )


def linked(problem: Problem, groups: Sequence[Group], microbatch: int) -> tuple[Group, ...]:
    """The groups with the times of what they send to each other."""
    size = microbatch * problem.model.boundary_bytes
    sends = [send_ms(one, other, problem.network, size) for one, other in pairwise(groups)]
    return tuple(
        replace(group, send_next_ms=after, send_previous_ms=before)
        for group, before, after in zip(groups, [0.0, *sends], [*sends, 0.0], strict=True)
    )


def _plan_groups(problem: Problem, groups: Sequence[Group], rules: Rules) -> _Found:
    """The fastest micro-batch. A larger one may fit where a smaller one does not: layers are divided otherwise."""
    best: Plan | None = None
    missing: list[float] = []
    size = rules.smallest_microbatch
    while size.bit_length() < max(problem.batch.bit_length(), 2) and size <= problem.max_microbatch:
        if problem.batch % size and not rules.drops_remainder:
            break
        found = _plan_microbatch(problem, timed(problem, groups, size), size, rules)
        missing.append(found.missing_gib)
        if found.plan is not None and (best is None or found.plan.step_ms < best.step_ms):
            best = found.plan
        if found.missing_gib > 0 and rules.first_unfit_is_last:
            break
        size *= 2
    return _Found(best, min(missing, default=0.0))


def _plan_microbatch(problem: Problem, groups: tuple[TimedGroup, ...], size: int, rules: Rules) -> _Found:
    """The fastest number of turns."""
    shares = layer_shares(groups)
    stages = in_one_turn(problem.model, shares)
    missing = [missing_gib(problem, groups, stages, size)]
    if rules.first_cut_must_fit and missing[0] > 0:
        return _Found(None, missing[0])
    speeds = shares if rules.speed_by_position else [shares[stage.group] for stage in stages]
    degrees = [1] if len(groups) == 1 else range(1, min(len(problem.model.order) // 2, len(stages)) + 3)
    best: Plan | None = None
    for turns in degrees:
        cut = interleave(problem.model, stages, speeds, turns)
        if cut is None:
            break
        missing.append(missing_gib(problem, groups, cut, size))
        if missing[-1] > 0:
            continue
        step_ms = pipeline_ms(groups, cut, hides_collectives=problem.hides_collectives)
        if best is None or step_ms < best.step_ms:
            best = Plan(groups, tuple(cut), size, turns, step_ms)
    return _Found(best, min(missing))


def timed(problem: Problem, groups: Sequence[Group], size: int) -> tuple[TimedGroup, ...]:
    """The groups with their devices' times and micro-batches, and what they send."""
    layers = [problem.model.order.count(index) for index in range(len(problem.model.classes))]
    found = []
    for group in linked(problem, groups, size):
        kinds = [[layer.times[device.kind] for layer in problem.model.classes] for device in group.devices]
        forward = tuple(tuple(times.forward.at(size) for times in kind) for kind in kinds)
        backward = tuple(tuple(times.backward.at(size) for times in kind) for kind in kinds)
        both = [[f + b for f, b in zip(fs, bs, strict=True)] for fs, bs in zip(forward, backward, strict=True)]
        layer_ms = tuple(_mean(layers, times) for times in both)
        counts = deal([1.0 / ms for ms in layer_ms], problem.batch // size)
        found.append(TimedGroup(group, counts, forward, backward, layer_ms))
    return tuple(found)


def retimed(problem: Problem, plan: Plan) -> tuple[TimedGroup, ...]:
    """The plan's groups and micro-batches with this problem's times: another quantile of the same layers."""
    again = timed(problem, [group.group for group in plan.groups], plan.microbatch)
    return tuple(replace(now, counts=before.counts) for now, before in zip(again, plan.groups, strict=True))


def _mean(counts: Sequence[int], values: Sequence[float]) -> float:
    """Over all layers; exact where there is one class."""
    if len(values) == 1:
        return values[0]
    return total(count * value for count, value in zip(counts, values, strict=True)) / sum(counts)


def layer_shares(groups: Sequence[TimedGroup]) -> list[float]:
    """Of the layers, by group: in inverse proportion to what a layer takes its slowest device."""
    speeds = [1.0 / max(ms * n for ms, n in zip(group.layer_ms, group.counts, strict=True)) for group in groups]
    whole = total(speeds)
    return [speed / whole for speed in speeds]


def deal(speeds: Sequence[float], amount: int) -> tuple[int, ...]:
    """Whole parts of an amount in proportion, rounded down; what is left, one each from the fastest on."""
    whole = total(speeds)
    return _dealt([speed / whole for speed in speeds], amount)


def _dealt(ratios: Sequence[float], amount: int) -> tuple[int, ...]:
    parts = [int(amount * ratio) for ratio in ratios]
    order = sorted(range(len(parts)), key=lambda i: ratios[i], reverse=True)
    for i in range(amount - sum(parts)):
        parts[order[i % len(order)]] += 1
    return tuple(parts)


def in_one_turn(model: Model, shares: Sequence[float]) -> list[Stage]:
    """Each group's layers in one piece; a group that gets none is left out."""
    stages, first = [], 0
    for group, layers in enumerate(_dealt(shares, len(model.order))):
        if layers:
            stages.append(Stage(group, first, first + layers, model.counts(first, first + layers)))
        first += layers
    return stages


def interleave(model: Model, stages: Sequence[Stage], speeds: Sequence[float], turns: int) -> list[Stage] | None:
    """Ministages in turn; layers that do not divide go where one more costs least. None: a group has too few layers."""
    parts = [divmod(stage.last - stage.first, turns) for stage in stages]
    if any(base == 0 for base, _ in parts):
        return None
    sizes = [[base] * turns for base, _ in parts]
    extra = sum(rest for _, rest in parts)
    order = sorted(range(len(parts)), key=lambda i: (parts[i][0] + 1) / speeds[i])
    slots = [(i, turn) for i in order for turn in range(turns)]
    for i, turn in (slots * (extra // len(slots) + 1))[:extra]:
        sizes[i][turn] += 1
    cut, first = [], 0
    for turn in range(turns):
        for stage, size in zip(stages, sizes, strict=True):
            last = first + size[turn]
            cut.append(Stage(stage.group, first, last, model.counts(first, last)))
            first = last
    return cut


def missing_gib(problem: Problem, groups: Sequence[TimedGroup], stages: Sequence[Stage], size: int) -> float:
    """Memory that devices have too little, of all that do together; 0: each has enough."""
    needed = device_gib(problem, groups, stages, size)
    devices = {device.rank: device for group in groups for device in group.group.devices}
    return total(max(0.0, gib - problem.memory_share * devices[rank].memory_gib) for rank, gib in needed.items())


def device_gib(problem: Problem, groups: Sequence[TimedGroup], stages: Sequence[Stage], size: int) -> dict[int, float]:
    """Of each device that has layers, by rank.

    Its group's two largest neighbouring ministages whole (`Model.is_carried_out`: twice the largest, and a layer), the
    rest and the optimizer's state sharded, and activations.
    """
    needed: dict[int, float] = {}
    for index in sorted({stage.group for stage in stages}):
        group, mine = groups[index], [stage for stage in stages if stage.group == index]
        shared = _group_gib(problem.model, mine, len(group.group.devices), size)
        for device, count in zip(group.group.devices, group.counts, strict=True):
            needed[device.rank] = shared + _own_gib(problem.model, mine, device.kind, (size, count))
    return needed


def _group_gib(model: Model, mine: Sequence[Stage], devices: int, size: int) -> float:
    """What is the same for all devices of a group."""
    parameters = [
        sum(count * layer.parameters for count, layer in zip(stage.counts, model.classes, strict=True))
        for stage in mine
    ]
    gathered = whole = max([parameters[0], *(one + other for one, other in pairwise(parameters))])
    if model.is_carried_out:
        gathered = max(parameters)
        whole = 2 * gathered + (_largest_layer(model, mine) if len(mine) > 1 else 0)
    activation = size * model.boundary_bytes
    parts = (
        whole * model.parameter_bytes,
        (sum(parameters) - gathered) * model.parameter_bytes / devices,
        activation * 2,
        sum(parameters) * model.optimizer_bytes / devices,
        activation,
    )
    return total(parts) / GIB


def _largest_layer(model: Model, mine: Sequence[Stage]) -> int:
    """Parameters."""
    return max(
        layer.parameters for stage in mine for count, layer in zip(stage.counts, model.classes, strict=True) if count
    )


def _own_gib(model: Model, mine: Sequence[Stage], kind: str, micro: tuple[int, int]) -> float:
    """What depends on the device: working memory, and the kept outputs of all its micro-batches (size, count)."""
    if model.working is None:
        return model.reserved_gib
    size, count = micro
    kept = sum(
        layers * layer.boundary_bytes
        for stage in mine
        for layers, layer in zip(stage.counts, model.classes, strict=True)
    )
    if model.is_carried_out:
        kept += 2 * model.boundary_bytes  # what was sent in two passes, until it is received
    return model.working[kind].at(size) + kept * size * count / GIB

"""What a step of a pipeline of groups takes: fill, the slowest group's steady state, drain. Pure.

After Zorse: a group runs all micro-batches of a ministage forward, then goes on to its next one; backward likewise in
reverse, with the forward pass done again. Sends are hidden behind computing, or the other way round; collectives
likewise, unless the engine gathers a ministage when it is needed: then they come before and after computing, and each
group's last ministage is gathered once for both passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from services.planner.core.profile import total
from services.planner.core.zorse_groups import Group


@dataclass(frozen=True, slots=True)
class Stage:
    """A ministage: layers [first, last) on a group."""

    group: int
    first: int
    last: int
    counts: tuple[int, ...]
    """Of the layers, by class."""


@dataclass(frozen=True, slots=True)
class TimedGroup:
    """A group with its work at one size of the micro-batch."""

    group: Group
    counts: tuple[int, ...]
    """Micro-batches, by device."""
    forward_ms: tuple[tuple[float, ...], ...]
    """Of one micro-batch, by device and class of layers."""
    backward_ms: tuple[tuple[float, ...], ...]
    """Without the forward pass that is done again."""
    layer_ms: tuple[float, ...]
    """Forward and backward of the mean layer, by device."""


def pipeline_ms(groups: Sequence[TimedGroup], stages: Sequence[Stage], *, hides_collectives: bool = True) -> float:
    """Milliseconds of a step, without the optimizer."""
    steady = _steady_ms if hides_collectives else _steady_one_by_one_ms
    longest = max(
        steady(groups[index], [stage for stage in stages if stage.group == index])
        for index in {stage.group for stage in stages}
    )
    return (
        _fill_ms(groups, stages, hides=hides_collectives) + longest + _drain_ms(groups, stages, hides=hides_collectives)
    )


def _weighted(counts: Sequence[int], values_ms: Sequence[float]) -> float:
    return total(count * ms for count, ms in zip(counts, values_ms, strict=True))


def _slowest(by_device: Sequence[Sequence[float]]) -> list[float]:
    """By class."""
    return [max(values) for values in zip(*by_device, strict=True)]


def _fill_ms(groups: Sequence[TimedGroup], stages: Sequence[Stage], *, hides: bool) -> float:
    """One micro-batch through the first ministage of every group, and of the first group once more."""
    result = 0.0
    for i, stage in enumerate(stages[: len(groups) + 1]):
        timed = groups[stage.group]
        forward = _slowest(timed.forward_ms)
        if i == 0 and hides:
            forward = [max(ms, gather) for ms, gather in zip(forward, timed.group.gather_ms, strict=True)]
        cost = _weighted(stage.counts, forward)
        result += cost if i == len(groups) else cost + timed.group.send_next_ms
    return result


def _drain_ms(groups: Sequence[TimedGroup], stages: Sequence[Stage], *, hides: bool) -> float:
    """The same from the end, backward."""
    result = 0.0
    for i, stage in enumerate(stages[::-1][: len(groups) + 1]):
        timed = groups[stage.group]
        both = _slowest(_both(timed))
        if i == 0 and hides:
            both = [max(ms, scatter) for ms, scatter in zip(both, timed.group.scatter_ms, strict=True)]
        cost = _weighted(stage.counts, both)
        result += cost if i == len(groups) else cost + timed.group.send_previous_ms
    return result


def _both(timed: TimedGroup) -> list[list[float]]:
    """Forward and backward, by device and class."""
    pairs = zip(timed.forward_ms, timed.backward_ms, strict=True)
    return [[f + b for f, b in zip(forward, backward, strict=True)] for forward, backward in pairs]


def _steady_ms(timed: TimedGroup, stages: Sequence[Stage]) -> float:
    """All micro-batches of one ministage after the other."""
    group, result = timed.group, 0.0
    collectives = [gather + scatter for gather, scatter in zip(group.gather_ms, group.scatter_ms, strict=True)]
    for i, stage in enumerate(stages):
        forward, backward = _computing_ms(timed, stage, is_first=i == 0)
        forward = max(forward, _weighted(stage.counts, group.gather_ms))
        result += forward + max(backward, _weighted(stage.counts, collectives))
    return result


def _steady_one_by_one_ms(timed: TimedGroup, stages: Sequence[Stage]) -> float:
    """The same with collectives before and after computing."""
    group, result = timed.group, 0.0
    for i, stage in enumerate(stages):
        gathers = 1 if i == len(stages) - 1 else 2
        collectives = gathers * _weighted(stage.counts, group.gather_ms) + _weighted(stage.counts, group.scatter_ms)
        result += collectives + total(_computing_ms(timed, stage, is_first=i == 0))
    return result


def _computing_ms(timed: TimedGroup, stage: Stage, *, is_first: bool) -> tuple[float, float]:
    """All micro-batches of a ministage forward and backward, the slowest device's, behind which sends are hidden."""
    send = max(timed.group.send_next_ms, timed.group.send_previous_ms)
    forward = max(
        max(_weighted(stage.counts, ms), send) * (count - 1 if is_first else count)
        for ms, count in zip(timed.forward_ms, timed.counts, strict=True)
    )
    backward = max(
        max(_weighted(stage.counts, ms), send) * count for ms, count in zip(_both(timed), timed.counts, strict=True)
    )
    return forward, backward

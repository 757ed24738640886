"""Plans for the trainer, by what each rank does and holds."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from schemas.plans import DevicePlan, Engine, Plan, StagePlan, Strategy


def plan_of(
    samples: Sequence[int], microbatches: Sequence[int], shares: Sequence[float], engine: Engine = Engine.LAYERED
) -> Plan:
    """A plan with these figures by rank; what it predicts means nothing.

    Args:
        samples: of a step.
        microbatches: into which these are divided.
        shares: of the state, in any unit.
        engine: that carries it out.
    """
    rows = zip(samples, microbatches, shares, strict=True)
    devices = [_device(rank, *row, sum(shares)) for rank, row in enumerate(rows)]
    return _plan(devices, engine, sum(samples))


def pipeline_plan(
    groups: Sequence[Sequence[int]],
    stages: Sequence[tuple[int, int]],
    microbatches: Sequence[int],
    shares: Sequence[float],
    microbatch: int = 1,
) -> Plan:
    """A pipeline (engine ministage) with these figures.

    Args:
        groups: ranks of each.
        stages: group, and number of layers, of each ministage in the order of layers.
        microbatches: by rank; of each group with layers they add up to the same.
        shares: of the state, by rank, in any unit.
        microbatch: samples of each.
    """
    group_of = {rank: group for group, ranks in enumerate(groups) for rank in ranks}
    devices = [
        _device(rank, count * microbatch, count, share, sum(shares)).model_copy(update={"stage": group_of[rank]})
        for rank, (count, share) in enumerate(zip(microbatches, shares, strict=True))
    ]
    ends = list(accumulate(layers for _, layers in stages))
    plans = tuple(
        StagePlan(
            stage=group,
            turn=[before for before, _ in stages[:place]].count(group),
            ranks=tuple(groups[group]),
            first_layer=end - layers,
            last_layer=end - 1,
        )
        for place, ((group, layers), end) in enumerate(zip(stages, ends, strict=True))
    )
    batch = sum(microbatches[rank] for rank in groups[stages[0][0]]) * microbatch
    return _plan(devices, Engine.MINISTAGE, batch, plans)


def _device(rank: int, samples: int, microbatches: int, share: float, shares: float) -> DevicePlan:
    return DevicePlan(
        rank=rank,
        samples=samples,
        microbatches=microbatches,
        state_share=share / shares,
        planned_bytes=0,
        allowed_bytes=0,
        busy_share=1,
    )


def _plan(devices: Sequence[DevicePlan], engine: Engine, batch: int, stages: tuple[StagePlan, ...] = ()) -> Plan:
    return Plan(
        plan="p",
        job="j",
        engine=engine,
        strategy=Strategy.PIPELINE if stages else Strategy.UNEVEN,
        batch=batch,
        devices=tuple(devices),
        stages=stages,
        step_us=1,
        step_low_us=1,
        step_high_us=1,
    )

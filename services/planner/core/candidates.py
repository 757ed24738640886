"""One strategy's division of a job, as rows of a plan: what each device does and holds, and what a step takes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from schemas.plans import DevicePlan, Engine, StagePlan, Strategy
from services.planner.core import cephalo, zorse
from services.planner.core.comparisons import split_by_speed, split_even, split_whole
from services.planner.core.construction import construction_gib, too_large_to_build
from services.planner.core.inputs import (
    Inputs,
    Quantile,
    data_parallel,
    high_times,
    low_times,
    median_times,
    pipeline,
)
from services.planner.core.pipeline_time import Stage, pipeline_ms
from services.planner.core.profile import GIB, Infeasible, total

EVEN_WITHIN = 0.01
"""Shares of the state that differ by no more from an even one are even."""
_GIB_WITHIN = 1e-9
"""Rounding of sums; less than a byte at 1 GiB."""
_MIB_PER_GIB = 1024
QUANTILES: tuple[Quantile, Quantile, Quantile] = (low_times, median_times, high_times)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plan by one strategy."""

    strategy: Strategy
    engine: Engine
    devices: tuple[DevicePlan, ...]
    step_ms: tuple[float, float, float]
    """At the first decile of measured times, the median, and the ninth decile."""
    stages: tuple[StagePlan, ...] = ()
    microbatch: int = 0
    turns: int = 1

    @property
    def median_ms(self) -> float:
        """Of a step."""
        return self.step_ms[1]


def candidate(inputs: Inputs, strategy: Strategy) -> Candidate | Infeasible:
    """The division by a strategy, or why there is none that fits."""
    if strategy is Strategy.PIPELINE:
        return _pipelined(inputs)
    problem = data_parallel(inputs)
    if problem is None:
        return Infeasible(undividable(inputs))
    found = _division(problem, strategy, inputs)
    if isinstance(found, Infeasible):
        return found
    if (too_large := too_large_to_build(inputs, found[1])) is not None:
        return too_large
    return _carried_out(inputs, problem, strategy, found)


def undividable(inputs: Inputs) -> str:
    """Why a batch cannot be divided into units."""
    batch, devices = inputs.request.batch, len(inputs.request.cluster.devices)
    if batch < devices:
        return f"{devices} devices, and {batch} samples: each device needs one"
    return f"{batch} samples have no divisor that makes {devices} to 512 equal units: take a batch with more divisors"


_Division = tuple[cephalo.Split, tuple[float, ...]]


def _division(problem: cephalo.Problem, strategy: Strategy, inputs: Inputs) -> _Division | Infeasible:
    """Samples and shares of the state."""
    count = len(problem.devices)
    if strategy is Strategy.UNEVEN:
        plan = cephalo.plan(problem)
        return plan if isinstance(plan, Infeasible) else (plan.split, plan.shares)
    if strategy is Strategy.WHOLE:
        return _whole(problem)
    samples = split_even(count, problem.batch)
    if strategy is Strategy.BY_SPEED:
        samples = split_by_speed(_ms_per_sample(problem, inputs), problem.batch)
    if min(samples) == 0:
        return Infeasible(f"rank {samples.index(0)} would have no sample")
    return cephalo.Split(tuple(samples), (1,) * count), (1 / count,) * count


def _whole(problem: cephalo.Problem) -> _Division | Infeasible:
    split = split_whole(problem)
    if isinstance(split, Infeasible):
        return split
    shares = cephalo.split_state(problem, split)
    return shares if isinstance(shares, Infeasible) else (split, shares)


def _ms_per_sample(problem: cephalo.Problem, inputs: Inputs) -> list[float]:
    """Of each device, at the largest micro-batch that was measured."""
    sizes = [inputs.profiles[device.kind].microbatches for device in problem.devices]
    return [cephalo.busy_ms(problem, i, size, 1) / size for i, size in enumerate(sizes)]


def needed_gib(problem: cephalo.Problem, split: cephalo.Split, shares: Sequence[float]) -> list[float]:
    """Of each device: working memory and its part of the state."""
    held = cephalo.held_gib(problem, split)
    return [part + share * problem.state_gib for part, share in zip(held, shares, strict=True)]


def exceeding(problem: cephalo.Problem, split: cephalo.Split, shares: Sequence[float]) -> Infeasible | None:
    """Devices that need more than they may use; None: there is none."""
    rows = list(zip(needed_gib(problem, split, shares), problem.allowed_gib, strict=True))
    over = [(needed - allowed, rank) for rank, (needed, allowed) in enumerate(rows) if needed > allowed + _GIB_WITHIN]
    if not over:
        return None
    _, worst = max(over)
    ranks = ", ".join(str(rank) for _, rank in over[:8]) + (", ..." if len(over) > 8 else "")
    needed, allowed = rows[worst]
    which = f"rank {ranks} needs" if len(over) == 1 else f"ranks {ranks} need up to"
    return Infeasible(f"{which} {needed:.1f} of {allowed:.1f} GiB", total(excess for excess, _ in over))


def _carried_out(
    inputs: Inputs, problem: cephalo.Problem, strategy: Strategy, division: _Division
) -> Candidate | Infeasible:
    """On `fsdp2`, which does no forward pass again, where it can carry the division out and all of it has room."""
    split, shares = division
    even = all(abs(share * len(shares) - 1) <= EVEN_WITHIN for share in shares)
    over = exceeding(problem, split, shares)
    if even and max(split.counts) == 1 and not inputs.has_scalar_parameters:
        unrepeated = data_parallel(inputs, engine=Engine.FSDP2) or problem
        over_unrepeated = exceeding(unrepeated, split, shares)
        if over_unrepeated is None:
            return _data_parallel(inputs, Engine.FSDP2, strategy, division)
        if not inputs.model.chain:
            return over_unrepeated
    if over is None and not inputs.model.chain:
        return Infeasible("uneven state or several micro-batches need a model whose layers are a chain")
    return over or _data_parallel(inputs, Engine.LAYERED, strategy, division)


def _data_parallel(inputs: Inputs, engine: Engine, strategy: Strategy, division: _Division) -> Candidate:
    split, shares = division
    low, problem, high = (data_parallel(inputs, times, engine) for times in QUANTILES)
    assert low is not None
    assert problem is not None
    assert high is not None
    step_ms = [_step_ms(inputs, one, division) for one in (low, problem, high)]
    needed = [*map(max, needed_gib(problem, split, shares), construction_gib(inputs, shares))]
    rows = enumerate(zip(split.samples, split.counts, split.sizes, shares, strict=True))
    devices = tuple(
        DevicePlan(
            rank=rank,
            samples=samples,
            microbatches=count,
            state_share=min(share, 1.0),
            planned_bytes=min(int(needed[rank] * GIB), int(problem.allowed_gib[rank] * GIB)),
            allowed_bytes=int(problem.allowed_gib[rank] * GIB),
            busy_share=min(cephalo.busy_ms(problem, rank, size, count) / step_ms[1], 1.0),
            extrapolated=size > inputs.profiles[problem.devices[rank].kind].microbatches,
            kind=problem.devices[rank].kind,
        )
        for rank, (samples, count, size, share) in rows
    )
    return Candidate(strategy, engine, devices, _ascending(step_ms))


def _step_ms(inputs: Inputs, problem: cephalo.Problem, division: _Division) -> float:
    """Layers, the first all-gather, which nothing hides, and the optimizer."""
    split, shares = division
    first = problem.layers[inputs.model.order[0]].gather_ms if problem.hides_collectives else 0.0
    return cephalo.step_ms(problem, split) + first + optimizer_ms(inputs, shares)


def optimizer_ms(inputs: Inputs, shares: Sequence[float]) -> float:
    """The slowest device's optimizer step over its part of the state."""
    state_mib = inputs.parameters * inputs.request.optimizer_bytes_per_parameter / GIB * _MIB_PER_GIB
    devices = inputs.request.cluster.devices
    return max(
        share * state_mib * inputs.profiles[device.kind].optimizer_us_per_mib / 1_000
        for device, share in zip(devices, shares, strict=True)
    )


def _ascending(step_ms: Sequence[float]) -> tuple[float, float, float]:
    low, median, high = step_ms
    return min(low, median), median, max(high, median)


def _pipelined(inputs: Inputs) -> Candidate | Infeasible:
    if not inputs.model.chain:
        return Infeasible("a pipeline needs a model whose layers are a chain")
    problem = pipeline(inputs)
    plan = zorse.plan(problem)
    if isinstance(plan, Infeasible):
        return plan
    shares = _pipeline_shares(problem, plan)
    if (too_large := too_large_to_build(inputs, shares)) is not None:
        return too_large
    hides = problem.hides_collectives
    retimed = [zorse.retimed(pipeline(inputs, times), plan) for times in QUANTILES]
    optimizer = optimizer_ms(inputs, shares)
    step_ms = [pipeline_ms(groups, plan.stages, hides_collectives=hides) + optimizer for groups in retimed]
    return Candidate(
        Strategy.PIPELINE,
        Engine.MINISTAGE,
        _pipeline_devices(inputs, problem, plan, step_ms[1]),
        _ascending(step_ms),
        _pipeline_stages(plan),
        plan.microbatch,
        plan.turns,
    )


def _parameters(problem: zorse.Problem, stages: Sequence[Stage]) -> int:
    classes = problem.model.classes
    return sum(count * layer.parameters for stage in stages for count, layer in zip(stage.counts, classes, strict=True))


def _pipeline_shares(problem: zorse.Problem, plan: zorse.Plan) -> list[float]:
    """Of the state, by rank: a group's part, evenly."""
    whole = _parameters(problem, plan.stages)
    shares = [0.0] * len(problem.devices)
    for index, group in enumerate(plan.groups):
        for device in group.group.devices:
            part = _parameters(problem, plan.of_group(index))
            shares[device.rank] = part / whole / len(group.group.devices) if whole else 0.0
    return shares


def _pipeline_devices(
    inputs: Inputs, problem: zorse.Problem, plan: zorse.Plan, step_ms: float
) -> tuple[DevicePlan, ...]:
    needed = zorse.device_gib(problem, plan.groups, plan.stages, plan.microbatch)
    shares = _pipeline_shares(problem, plan)
    at_start = construction_gib(inputs, shares)
    rows: dict[int, DevicePlan] = {}
    for index, timed in enumerate(plan.groups):
        layers = [total(counts) for counts in zip(*(stage.counts for stage in plan.of_group(index)), strict=True)]
        for place, device in enumerate(timed.group.devices):
            count = timed.counts[place] if layers else 0
            allowed = int(problem.memory_share * device.memory_gib * GIB)
            pairs = zip(layers, timed.forward_ms[place], timed.backward_ms[place], strict=False)
            busy_ms = count * total(k * (2 * forward + backward) for k, forward, backward in pairs)
            rows[device.rank] = DevicePlan(
                rank=device.rank,
                samples=count * plan.microbatch,
                microbatches=count,
                state_share=shares[device.rank],
                stage=index,
                planned_bytes=min(int(max(needed.get(device.rank, 0.0), at_start[device.rank]) * GIB), allowed),
                allowed_bytes=allowed,
                busy_share=min(busy_ms / step_ms, 1.0),
                extrapolated=plan.microbatch > inputs.profiles[device.kind].microbatches,
                kind=device.kind,
            )
    return tuple(rows[rank] for rank in sorted(rows))


def _pipeline_stages(plan: zorse.Plan) -> tuple[StagePlan, ...]:
    turns = dict.fromkeys(range(len(plan.groups)), 0)
    stages = []
    for stage in plan.stages:
        ranks = tuple(device.rank for device in plan.groups[stage.group].group.devices)
        stages.append(
            StagePlan(
                stage=stage.group,
                turn=turns[stage.group],
                ranks=ranks,
                first_layer=stage.first,
                last_layer=stage.last - 1,
            )
        )
        turns[stage.group] += 1
    return tuple(stages)

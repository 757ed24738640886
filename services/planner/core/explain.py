"""Why a plan is what it is: reasons with the value that decided and what it was compared with. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from schemas.layers import Dtype
from schemas.plans import PlanReason, Strategy
from services.planner.core import cephalo
from services.planner.core.candidates import EVEN_WITHIN, Candidate
from services.planner.core.inputs import Inputs, data_parallel
from services.planner.core.profile import GIB, Infeasible

MAX_STATE_REASONS = 8
"""Devices whose share of the state is explained."""
SHORT = frozenset({Dtype.BFLOAT16, Dtype.FLOAT16})
"""Types that a plan asks for by name: others are the model's own."""
NAMES = {
    Strategy.EVEN: "the even split",
    Strategy.BY_SPEED: "the split by speed alone",
    Strategy.WHOLE: "the split in one micro-batch per device",
    Strategy.UNEVEN: "the uneven split",
    Strategy.PIPELINE: "the pipeline",
}
Candidates = Mapping[Strategy, Candidate | Infeasible]


def reasons(inputs: Inputs, chosen: Candidate, others: Candidates) -> tuple[PlanReason, ...]:
    """What bounds the step and the memory, shares of the state, another sample's cost, and the other strategies."""
    found = [*_another_type(inputs), _bounds_step(inputs, chosen), _bounds_memory(inputs, chosen)]
    problem = data_parallel(inputs, engine=chosen.engine)
    if problem is not None and chosen.strategy is not Strategy.PIPELINE:
        found += _state_shares(problem, chosen)
        found += _one_more_sample(problem, chosen)
    found += [
        _compared(chosen, strategy, other) for strategy, other in others.items() if strategy is not chosen.strategy
    ]
    return tuple(found)


def _another_type(inputs: Inputs) -> list[PlanReason]:
    """Why times may not hold: GPUs compute short types several times as fast as float32, some processors slower."""
    measured, gathered = inputs.model.dtype, inputs.request.gather_dtype
    if measured is gathered or not {measured, gathered} & SHORT:
        return []
    if gathered in SHORT:
        text = f"are computed in {gathered} (--gather): measure them with turnbuckle layers --dtype {gathered}"
    else:
        text = f"are computed in the model's own type: where that is another one, plan with --gather {measured}"
    return [
        PlanReason(
            measured=measured.item_bytes,
            threshold=gathered.item_bytes,
            unit="bytes",
            sentence=f"the step is not to be relied on: layers were measured in {measured}, but {text}",
        )
    ]


def _bounds_step(inputs: Inputs, chosen: Candidate) -> PlanReason:
    busiest = max(chosen.devices, key=lambda device: device.busy_share)
    kind = inputs.request.cluster.devices[busiest.rank].kind
    busy_us = busiest.busy_share * chosen.median_ms * 1_000
    return PlanReason(
        rank=busiest.rank,
        measured=busy_us,
        threshold=chosen.median_ms * 1_000,
        unit="us",
        sentence=f"rank {busiest.rank} ({kind}) bounds the step: it computes {busiest.busy_share:.0%} of the time",
    )


def _bounds_memory(inputs: Inputs, chosen: Candidate) -> PlanReason:
    tightest = min(chosen.devices, key=lambda device: (device.allowed_bytes - device.planned_bytes, device.rank))
    kind = inputs.request.cluster.devices[tightest.rank].kind
    planned, allowed = tightest.planned_bytes / GIB, tightest.allowed_bytes / GIB
    return PlanReason(
        rank=tightest.rank,
        measured=tightest.planned_bytes,
        threshold=tightest.allowed_bytes,
        unit="bytes",
        sentence=f"rank {tightest.rank} ({kind}) has the least memory left: it uses {planned:.1f} of {allowed:.1f} GiB",
    )


def _split_of(chosen: Candidate) -> cephalo.Split:
    return cephalo.Split(
        tuple(device.samples for device in chosen.devices), tuple(device.microbatches for device in chosen.devices)
    )


def _state_shares(problem: cephalo.Problem, chosen: Candidate) -> list[PlanReason]:
    """Why devices hold less than an even share."""
    held, found = cephalo.held_gib(problem, _split_of(chosen)), []
    even_gib = problem.state_gib / len(chosen.devices)
    for device in chosen.devices:
        if device.state_share * len(chosen.devices) >= 1 - EVEN_WITHIN:
            continue
        allowed = problem.allowed_gib[device.rank]
        left = max(0.0, allowed - held[device.rank])
        samples = f"{device.samples} samples" if device.samples > 1 else "1 sample"
        found.append(
            PlanReason(
                rank=device.rank,
                measured=left * GIB,
                threshold=even_gib * GIB,
                unit="bytes",
                sentence=f"rank {device.rank} holds less state: its {samples} need {held[device.rank]:.1f} GiB, which "
                f"leaves {left:.1f} of {allowed:.1f}; an even share is {even_gib:.1f}",
            )
        )
    return found[:MAX_STATE_REASONS]


def _one_more_sample(problem: cephalo.Problem, chosen: Candidate) -> list[PlanReason]:
    """On which device one more sample would cost least, if there is room for it on any."""
    costs = [(cost, device.rank) for device in chosen.devices if (cost := _with_one_more(problem, device.rank, chosen))]
    if not costs:
        return []
    cost_ms, rank = min(costs)
    step_ms = cephalo.step_ms(problem, _split_of(chosen))
    text = (
        f"one more sample costs least on rank {rank}: by the layer profiles it would take {cost_ms:.1f} ms, "
        f"the slowest takes {step_ms:.1f}"
    )
    return [PlanReason(rank=rank, measured=cost_ms * 1_000, threshold=step_ms * 1_000, unit="us", sentence=text)]


def _with_one_more(problem: cephalo.Problem, rank: int, chosen: Candidate) -> float | None:
    """Milliseconds of all layers of a device with one more sample beside its state; None: there is no room."""
    device, limit = chosen.devices[rank], cephalo.limits(problem)[rank]
    samples = device.samples + 1
    room = problem.allowed_gib[rank] - device.state_share * problem.state_gib
    times = [
        cephalo.device_ms(problem, rank, size, samples // size, uneven=size > limit.even)
        for size in range(1, min(samples, problem.max_microbatch) + 1)
        if samples % size == 0 and problem.memory[rank].held(size, samples) <= room
    ]
    return min(times, default=None)


def _compared(chosen: Candidate, strategy: Strategy, other: Candidate | Infeasible) -> PlanReason:
    """Another strategy beside the plan."""
    name = NAMES[strategy]
    if isinstance(other, Infeasible):
        return PlanReason(
            measured=other.missing_gib * GIB,
            threshold=0.0,
            unit="bytes",
            sentence=f"{name} does not fit: {other.reason}",
        )
    ratio = other.median_ms / chosen.median_ms
    sentence = f"{name} is as fast" if abs(ratio - 1) < 0.005 else f"{name} takes {ratio:.2f} times as long"
    return PlanReason(
        measured=other.median_ms * 1_000, threshold=chosen.median_ms * 1_000, unit="us", sentence=sentence
    )

"""What the planner is asked about a place for a job that is to start, and what its answer means in the log. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from pydantic import ValidationError

from schemas.devices import MAX_DEVICES, Cluster, Device, LinkRate
from schemas.plans import Plan, PlanReply, PlanRequest, Strategy
from schemas.scheduling import (
    MAX_PLAN_CHARACTERS,
    MAX_REASON_CHARACTERS,
    ClusterNode,
    JobPlanned,
    JobSpec,
)

_BYTES_PER_S_PER_GBIT_PER_S: Final = 1e9 / 8
_REASONS_KEPT: Final = 2
_STRATEGIES: Final = tuple(strategy for strategy in Strategy if strategy is not Strategy.PIPELINE)
"""No pipelines: no job has been tried as one yet."""


class NotPlannableError(ValueError):
    """Nothing can be asked; the text says why."""


@dataclass(frozen=True, slots=True)
class Rates:
    """What devices send to each other, Gbit/s; 0: not known."""

    inside_gbit_per_s: float = 0.0
    """Of one node."""
    between_gbit_per_s: float = 0.0
    """Of two nodes."""


def plan_request(spec: JobSpec, nodes: Sequence[ClusterNode], rates: Rates) -> PlanRequest:
    """The question about a job whose workers are to be on these nodes, by rank.

    Raises:
        NotPlannableError: a node does not say what its devices are, or what no request can have; or too many.
    """
    if len(nodes) > MAX_DEVICES:
        raise NotPlannableError(f"{len(nodes)} workers are more than the {MAX_DEVICES} devices of a plan")
    try:
        cluster = Cluster(
            devices=tuple(_device(rank, node, spec) for rank, node in enumerate(nodes)),
            inside=_rate(rates.inside_gbit_per_s),
            between=_rate(rates.between_gbit_per_s),
        )
        return PlanRequest(job=spec.job, task=spec.model, cluster=cluster, batch=spec.batch, strategies=_STRATEGIES)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise NotPlannableError(f"the planner cannot be asked: {where}: {first['msg']}") from error


def _device(rank: int, node: ClusterNode, spec: JobSpec) -> Device:
    memory_bytes = node.device_memory_bytes
    if not node.gpus and spec.memory_bytes is not None:
        memory_bytes = spec.memory_bytes
    if not (node.device_kind and memory_bytes):
        raise NotPlannableError(
            f"{node.node} does not say of what kind its devices are and how much memory each has: set "
            "TURNBUCKLE_RUNNER__DEVICE_KIND and __DEVICE_MEMORY_BYTES of its runner"
        )
    return Device(rank=rank, kind=node.device_kind, machine=node.node, node=node.node, memory_bytes=memory_bytes)


def _rate(gbit_per_s: float) -> LinkRate | None:
    return LinkRate(bytes_per_s=gbit_per_s * _BYTES_PER_S_PER_GBIT_PER_S, latency_us=0.0) if gbit_per_s else None


def answered(about: JobPlanned, request: PlanRequest, reply: PlanReply) -> JobPlanned:
    """The answer as the log has it, with what the workers need of the plan.

    Args:
        about: the job, its attempt and the place.
        request: what was asked about it.
        reply: the planner's.
    """
    plan = reply.plan
    if plan is None:
        why = f"{reply.refused}. What would do: {reply.remedy}" if reply.remedy else reply.refused
        return not_planned(about, why).model_copy(update={"missing_bytes": reply.missing_bytes})
    if (len(plan.devices), plan.batch) != (len(about.nodes), request.batch):
        return not_planned(about, "the planner answered another question: are the versions the same?")
    kept = plan.model_copy(update={"alternatives": (), "launch": (), "reasons": plan.reasons[:_REASONS_KEPT]})
    text = kept.model_dump_json()
    if len(text) > MAX_PLAN_CHARACTERS:
        return not_planned(about, f"the plan has {len(text)} characters, at most {MAX_PLAN_CHARACTERS} are stored")
    return about.model_copy(update={"plan": text, "why": _cut(_in_short(plan)), "step_us": plan.step_us})


def not_planned(about: JobPlanned, why: str) -> JobPlanned:
    """There is no plan: its workers divide the batch evenly, or as their program does by itself."""
    return about.model_copy(update={"why": _cut(why)})


def _in_short(plan: Plan) -> str:
    """``whole (engine layered), step 13.4 s (12.8 to 14.1 s), samples by rank: 12 12 35 5``."""
    low_s, step_s, high_s = (us / 1e6 for us in (plan.step_low_us, plan.step_us, plan.step_high_us))
    samples = " ".join(str(device.samples) for device in plan.devices)
    times = f"step {step_s:.3g} s ({low_s:.3g} to {high_s:.3g} s)"
    return f"{plan.strategy} (engine {plan.engine}), {times}, samples by rank: {samples}"


def _cut(text: str) -> str:
    return text if len(text) <= MAX_REASON_CHARACTERS else text[: MAX_REASON_CHARACTERS - 1] + "…"

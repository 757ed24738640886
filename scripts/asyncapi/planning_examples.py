"""Examples of the planner's messages: one small model, a fast and a slow device in one machine."""

from __future__ import annotations

from typing import Final

from schemas.devices import Cluster, Device, LinkRate
from schemas.layers import LayerClass, LayerProfile
from schemas.message import Message
from schemas.plans import Alternative, DevicePlan, Engine, Plan, PlanReason, PlanReply, PlanRequest, Strategy

_NOW: Final = 1_795_284_000_000_000_000
_GIB: Final = 1 << 30
_JOB, _TASK = "resnet-k7qd", "model.py:build"
_FAST: Final = LayerProfile(
    profile="5b0c9e1f22d4a7c3",
    model="0e9d1f4b6a2c8835",
    task=_TASK,
    kind="a6000",
    classes=(
        LayerClass(
            name="Block",
            count=3,
            parameters=50_000_000,
            flat_bytes=200_000_000,
            forward_us=(2_010.0, 3_990.0),
            backward_us=(4_020.0, 8_010.0),
            saved_bytes=(120_000_000, 240_000_000),
            boundary_bytes=2_000_000,
        ),
    ),
    order=(0, 0, 0),
    optimizer_us_per_mib=20.0,
    reserved_bytes=_GIB // 2,
    measured_ns=_NOW,
    node="gpu-07",
)
_CLUSTER: Final = Cluster(
    devices=tuple(
        Device(rank=rank, kind=kind, machine="a", node="gpu-07", memory_bytes=24 * _GIB)
        for rank, kind in enumerate(("a6000", "p40"))
    ),
    inside=LinkRate(bytes_per_s=1.1e10, latency_us=10.0),
)
_PLAN: Final = Plan(
    plan="9c41d02be7a83f55",
    job=_JOB,
    engine=Engine.LAYERED,
    strategy=Strategy.UNEVEN,
    batch=16,
    devices=(
        DevicePlan(
            rank=0,
            samples=12,
            microbatches=6,
            state_share=0.5,
            planned_bytes=3 * _GIB,
            allowed_bytes=18 * _GIB,
            busy_share=1.0,
        ),
        DevicePlan(
            rank=1,
            samples=4,
            microbatches=2,
            state_share=0.5,
            planned_bytes=3 * _GIB,
            allowed_bytes=18 * _GIB,
            busy_share=0.97,
        ),
    ),
    step_us=221_000.0,
    step_low_us=209_000.0,
    step_high_us=233_000.0,
    reasons=(
        PlanReason(
            rank=0,
            measured=221_000.0,
            threshold=214_000.0,
            unit="us",
            sentence="rank 0 (a6000) bounds the step: it computes 100% of the time",
        ),
    ),
    alternatives=(Alternative(strategy=Strategy.EVEN, step_us=430_000.0),),
    launch=("torchrun --standalone --nproc-per-node 2 --no-python turnbuckle run trainer-worker plan.json",),
    profiles=("5b0c9e1f22d4a7c3", "77aa90c1d3e5f201"),
)
EXAMPLES: Final[tuple[Message, ...]] = (
    _FAST,
    PlanRequest(job=_JOB, task=_TASK, cluster=_CLUSTER, batch=16),
    PlanReply(plan=_PLAN),
    _PLAN,
)

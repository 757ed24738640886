"""Examples of what a training says: two unequal ranks whose steps take longer than planned."""

from __future__ import annotations

from typing import Final

from schemas.message import Message
from schemas.plans import DevicePlan, Engine, Plan, Strategy
from schemas.trainings import StepBatch, TrainingChange, TrainingEvent, TrainingGeneration

_NOW: Final = 1_795_284_000_000_000_000
_GIB: Final = 1 << 30
_JOB, _NODE, _TRAINING = "resnet-k7qd", "gpu-07", "3f9a1c20be47"
_PLAN: Final = Plan(
    plan="8d1f0c6b22aa",
    job=_JOB,
    engine=Engine.LAYERED,
    strategy=Strategy.UNEVEN,
    batch=128,
    devices=(
        DevicePlan(
            rank=0,
            samples=96,
            microbatches=2,
            state_share=0.75,
            planned_bytes=9 * _GIB,
            allowed_bytes=12 * _GIB,
            busy_share=1.0,
        ),
        DevicePlan(
            rank=1,
            samples=32,
            microbatches=1,
            state_share=0.25,
            planned_bytes=5 * _GIB,
            allowed_bytes=6 * _GIB,
            busy_share=0.8,
        ),
    ),
    step_us=412_000,
    step_low_us=390_000,
    step_high_us=435_000,
)

EXAMPLES: Final[tuple[Message, ...]] = (
    StepBatch(
        job=_JOB,
        node=_NODE,
        generation=2,
        training=_TRAINING,
        rank=1,
        time_ns=_NOW,
        step=(1_201, 1_202),
        step_us=(447_120, 448_310),
        compute_us=(301_400, 303_020),
        gather_us=(88_250, 87_900),
        scatter_us=(51_700, 51_960),
        samples=(32, 32),
        memory_bytes=(4_903_141_376, 4_903_141_376),
    ),
    TrainingEvent(
        job=_JOB,
        node=_NODE,
        generation=2,
        training=_TRAINING,
        sequence=0,
        change=TrainingChange.STARTED,
        time_ns=_NOW,
        total=10_000,
        plan=_PLAN,
        predicted_step_us=412_000,
        checkpoint="saved",
    ),
    TrainingGeneration(
        job=_JOB,
        node=_NODE,
        pid=4_711,
        incarnation=_NOW,
        time_ns=_NOW,
        number=3,
        workers=4,
        plan=_PLAN.plan,
        first_step=1_203,
        is_formed=True,
        holder="c0mR4zJ1dQ7eXhV2kP9sTw",
    ),
)

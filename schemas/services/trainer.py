"""Training by a plan: what ``turnbuckle train`` says, by hand; in a job its runner says it."""

from __future__ import annotations

from typing import Final

from schemas.service import BucketUse, Channel, Delivery, Service
from schemas.services.aggregator import AGGREGATOR_END, AGGREGATOR_PLACE
from schemas.streams import TRAININGS
from schemas.subjects import STEPS, TRAINING_EVENTS
from schemas.trainings import StepBatch, TrainingEvent

SERVICE: Final = Service(
    name="trainer",
    channels=(
        Channel(
            STEPS,
            StepBatch,
            Delivery.CORE,
            ("runner", "trainer"),
            ("cli",),
            "what steps of a training took in one rank, in parts, and its memory",
        ),
        Channel(
            TRAINING_EVENTS,
            TrainingEvent,
            Delivery.JETSTREAM,
            ("runner", "trainer"),
            ("planner", "cli"),
            "a training by a plan was started, goes on at a checkpoint, drifts from the plan, has saved, or ended",
        ),
    ),
    asks=(AGGREGATOR_PLACE, AGGREGATOR_END),
    buckets=(BucketUse(TRAININGS, writes=True, reads=True),),
)

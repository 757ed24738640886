"""Finished runs of plans: what a step took beside what its plan had predicted."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from schemas.devices import MAX_DEVICES
from schemas.jobs import Name
from schemas.message import Count, Message
from schemas.plans import Engine
from schemas.scheduling import JobName

StepTime = Annotated[float, Field(ge=1e-3, le=1e15)]
"""Microseconds: from a nanosecond to 30 years."""


class MeasuredRun(Message):
    """One run of a training job by a plan; a line of the file by which `turnbuckle plan` corrects later plans."""

    type_name: ClassVar[str] = "turnbuckle.training.v1.MeasuredRun"

    plan: Name
    """`Plan.plan`."""
    job: JobName
    engine: Engine
    kinds: Annotated[tuple[Name, ...], Field(min_length=1, max_length=MAX_DEVICES)]
    """`Device.kind` of the plan's devices, each once."""
    profiles: Annotated[tuple[Name, ...], Field(max_length=MAX_DEVICES)] = ()
    """`LayerProfile.profile` of each that the plan was made of."""
    predicted_step_us: StepTime
    """By the layer profiles alone, without what earlier runs had corrected."""
    step_us: StepTime
    """Median of its steps, each as long as its slowest rank; the first ones, which load code, do not count."""
    step_p10_us: StepTime
    step_p90_us: StepTime
    steps: Annotated[int, Field(ge=1)]
    """That count."""
    ended_ns: Count

    @property
    def ratio(self) -> float:
        """Measured by predicted."""
        return self.step_us / self.predicted_step_us

    @model_validator(mode="after")
    def _deciles_in_order(self) -> Self:
        if not self.step_p10_us <= self.step_us <= self.step_p90_us:
            raise ValueError(
                f"{self.step_p10_us:g}, {self.step_us:g}, {self.step_p90_us:g} us are not in ascending order"
            )
        return self

"""Plans of training jobs over unequal devices: who computes how many samples, and holds which part of the state."""

from __future__ import annotations

import math
from collections import defaultdict
from enum import StrEnum
from typing import Annotated, ClassVar, Final, Self

from pydantic import Field, model_validator

from schemas.devices import MAX_DEVICES, Cluster, DeviceRank
from schemas.jobs import MAX_NAME_CHARACTERS, Name, NonNegativeFloat, PositiveFloat
from schemas.layers import MAX_LAYERS, Dtype, LayerProfile
from schemas.message import Count, Message
from schemas.predictions import Objective
from schemas.scheduling import MAX_PLANNED_BATCH, JobName, Text

MAX_BATCH: Final = MAX_PLANNED_BATCH
MAX_STAGES: Final = MAX_LAYERS
MAX_PLAN_REASONS: Final = 50
MAX_PROFILES: Final = 64
_SHARES_WITHIN: Final = 1e-6

Batch = Annotated[int, Field(ge=1, le=MAX_BATCH)]
# NaN would pass a bound written as ge or le.
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Figure = Annotated[float, Field(allow_inf_nan=False)]
Sentence = Annotated[str, Field(max_length=1_000)]


class Strategy(StrEnum):
    """How work is divided."""

    EVEN = "even"
    """The same number of samples and the same state for each device."""
    BY_SPEED = "by_speed"
    """Samples in proportion to speed, in one micro-batch; the state even."""
    WHOLE = "whole"
    """The fastest division of samples in one micro-batch per device; the state where there is room."""
    UNEVEN = "uneven"
    """The fastest division of samples in any number of micro-batches; the state where there is room (Cephalo)."""
    PIPELINE = "pipeline"
    """A pipeline of groups of devices, each with a part of the layers (Zorse)."""


class Engine(StrEnum):
    """What carries a plan out."""

    FSDP2 = "fsdp2"
    """torch's ``fully_shard``: even state, one micro-batch each."""
    LAYERED = "layered"
    """Each layer is gathered once for all micro-batches of a device: uneven state, any number of micro-batches."""
    MINISTAGE = "ministage"
    """Groups of devices as a pipeline, each with one or more parts of the layers in turn."""


class RuleSet(StrEnum):
    """By whose rules a plan was made."""

    CORRECTED = "corrected"
    """Those of this project: every plan fits."""
    RELEASED = "released"
    """Those of the released planners of Cephalo and Zorse, with their mistakes: for comparison."""


class PlanRequest(Message):
    """Plan one training job."""

    type_name: ClassVar[str] = "turnbuckle.planning.v1.PlanRequest"

    job: JobName
    task: Annotated[str, Field(max_length=MAX_NAME_CHARACTERS)] = ""
    """`LayerProfile.task`, `model` or `profile` of one that the planner knows; empty: `profiles` has them."""
    profiles: Annotated[tuple[LayerProfile, ...], Field(max_length=MAX_PROFILES)] = ()
    """One per kind of device."""
    cluster: Cluster
    batch: Batch
    """Samples per step, of all devices together."""
    optimizer_bytes_per_parameter: Annotated[float, Field(gt=0, le=1_024, allow_inf_nan=False)] = 16.0
    """Parameter, gradient and the optimizer's moments: 16 for AdamW in float32, 12 for SGD with momentum."""
    gather_dtype: Dtype = Dtype.FLOAT32
    """In which parameters are gathered; gradients are reduced in float32."""
    max_microbatch: Batch = MAX_BATCH
    memory_share: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = 0.75
    """Of a device's memory that may be planned with."""
    objective: Objective = Objective.TIME
    strategies: tuple[Strategy, ...] = tuple(Strategy)
    """To choose from."""

    @model_validator(mode="after")
    def _profiles_or_task(self) -> Self:
        if bool(self.task) == bool(self.profiles):
            raise ValueError("give either the task of known profiles, or profiles")
        if not self.strategies:
            raise ValueError("give at least one strategy")
        return self


class DevicePlan(Message):
    """What one device does and holds in each step."""

    type_name: ClassVar[str] = "turnbuckle.planning.v1.DevicePlan"

    rank: DeviceRank
    samples: Annotated[int, Field(ge=0, le=MAX_BATCH)]
    """0: the device is not used."""
    microbatches: Annotated[int, Field(ge=0, le=MAX_BATCH)]
    """All of one device have the same number of samples."""
    state_share: Share
    """Of the job's parameters, gradients and moments."""
    stage: Annotated[int, Field(ge=0, lt=MAX_DEVICES)] = 0
    """Group of devices in a pipeline: `StagePlan.stage`."""
    planned_bytes: Count
    allowed_bytes: Count
    busy_share: Share
    """Of the step, computing."""
    extrapolated: bool = False
    """Its micro-batch is larger than what was measured."""
    kind: str = ""
    """`Device.kind`; empty: the plan's writer did not say."""

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if (self.samples == 0) != (self.microbatches == 0):
            raise ValueError(f"rank {self.rank}: {self.samples} samples in {self.microbatches} micro-batches")
        if self.microbatches and self.samples % self.microbatches:
            raise ValueError(
                f"rank {self.rank}: {self.microbatches} micro-batches do not divide {self.samples} samples"
            )
        return self

    @property
    def microbatch(self) -> int:
        """Samples of one micro-batch."""
        return self.samples // self.microbatches if self.microbatches else 0


class StagePlan(Message):
    """Layers that a group of devices has in one turn (a ministage)."""

    type_name: ClassVar[str] = "turnbuckle.planning.v1.StagePlan"

    stage: Annotated[int, Field(ge=0, lt=MAX_DEVICES)]
    """The group, by its place in the pipeline."""
    turn: Annotated[int, Field(ge=0, lt=MAX_LAYERS)] = 0
    ranks: Annotated[tuple[DeviceRank, ...], Field(min_length=1, max_length=MAX_DEVICES)]
    first_layer: Annotated[int, Field(ge=0, lt=MAX_LAYERS)]
    last_layer: Annotated[int, Field(ge=0, lt=MAX_LAYERS)]
    """Included."""
    routes_digest: str = ""
    """Of which device sends which micro-batch to which; empty: not computed yet."""

    @model_validator(mode="after")
    def _has_layers(self) -> Self:
        if self.last_layer < self.first_layer:
            raise ValueError(f"stage {self.stage}: layers {self.first_layer} to {self.last_layer}")
        return self


class Alternative(Message):
    """Another strategy for the same job, or why there is no plan by it."""

    type_name: ClassVar[str] = "turnbuckle.planning.v1.Alternative"

    strategy: Strategy
    step_us: PositiveFloat | None = None
    """None: it does not fit."""
    refused: Sentence = ""
    usd_per_step: NonNegativeFloat = 0.0
    """0: prices are not known."""


class PlanReason(Message):
    """Why the plan is what it is, with the value that decided and what it was compared with."""

    type_name: ClassVar[str] = "turnbuckle.planning.v1.PlanReason"

    rank: DeviceRank | None = None
    """Of the device it speaks of; None: the whole plan."""
    measured: Figure
    threshold: Figure
    unit: str
    """Of both: ``us``, ``bytes``, ``samples``, ``ratio``."""
    sentence: Sentence


class Plan(Message):
    """What each device does in a training job, what a step takes, and why."""

    type_name: ClassVar[str] = "turnbuckle.planning.v1.Plan"

    plan: Name
    """Digest of the request and the rules: the same request has the same plan."""
    job: JobName
    engine: Engine
    strategy: Strategy
    batch: Batch
    gather_dtype: Dtype = Dtype.FLOAT32
    microbatch: Annotated[int, Field(ge=0, le=MAX_BATCH)] = 0
    """Of a pipeline, the same for all devices; 0: each device has its own."""
    turns: Annotated[int, Field(ge=1, le=MAX_LAYERS)] = 1
    """Parts of the layers that each group of a pipeline has in turn (interleave degree)."""
    devices: Annotated[tuple[DevicePlan, ...], Field(min_length=1, max_length=MAX_DEVICES)]
    stages: Annotated[tuple[StagePlan, ...], Field(max_length=MAX_STAGES)] = ()
    """Of a pipeline, in the order of layers."""
    step_us: PositiveFloat
    step_low_us: PositiveFloat
    step_high_us: PositiveFloat
    profiled_step_us: NonNegativeFloat = 0.0
    """By the layer profiles alone; `step_us` is that, corrected by measured runs. 0: `step_us` is not corrected."""
    measured_runs: Count = 0
    """Earlier runs that the step and its interval rest on; 0: they are by the layer profiles alone."""
    reasons: Annotated[tuple[PlanReason, ...], Field(max_length=MAX_PLAN_REASONS)] = ()
    alternatives: tuple[Alternative, ...] = ()
    launch: tuple[Text, ...] = ()
    """Command lines, one per machine."""
    profiles: tuple[Name, ...] = ()
    """`LayerProfile.profile` of each that was used."""
    rules: RuleSet = RuleSet.CORRECTED
    usd_per_step: NonNegativeFloat = 0.0
    """0: prices are not known."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        ranks = [device.rank for device in self.devices]
        if ranks != list(range(len(ranks))):
            raise ValueError(f"devices have to be listed by rank from 0 to {len(ranks) - 1}")
        held = math.fsum(device.state_share for device in self.devices)
        if abs(held - 1) > _SHARES_WITHIN:
            raise ValueError(f"shares of the state add up to {held:.6f} instead of 1")
        samples: defaultdict[int, int] = defaultdict(int)
        for device in self.devices:
            samples[device.stage] += device.samples
        wrong = {stage: count for stage, count in samples.items() if count not in {0, self.batch}}
        if wrong or not any(samples.values()):
            raise ValueError(
                f"devices of one stage have {max(wrong.values(), default=0)} samples instead of {self.batch}"
            )
        return self

    @model_validator(mode="after")
    def _interval(self) -> Self:
        if not self.step_low_us <= self.step_us <= self.step_high_us:
            raise ValueError(
                f"{self.step_low_us:g}, {self.step_us:g}, {self.step_high_us:g} us are not in ascending order"
            )
        return self


class PlanReply(Message):
    """Reply to PlanRequest: a plan, or why there is none."""

    type_name: ClassVar[str] = "turnbuckle.planning.v1.PlanReply"

    plan: Plan | None = None
    refused: Sentence = ""
    missing_bytes: Count = 0
    """Of memory; 0: that is not what is missing."""
    missing_profiles: tuple[Name, ...] = ()
    """Kinds of devices without a layer profile of the model; none: that is not what is missing."""
    remedy: Sentence = ""
    """The least change with which there is a plan."""
    alternatives: tuple[Alternative, ...] = ()

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if self.plan is not None and self.refused:
            raise ValueError("a plan and a refusal")
        return self

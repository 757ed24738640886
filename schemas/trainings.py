"""Trainings that carry out a plan: what each step took, and what happened. Times: nanoseconds since the epoch."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Final, Self

from pydantic import Field, model_validator

from schemas.devices import MAX_DEVICES, DeviceRank
from schemas.jobs import MAX_NAME_CHARACTERS, Name, NonNegativeFloat
from schemas.measured_runs import MeasuredRun
from schemas.message import Count, Message
from schemas.plans import Plan, Sentence
from schemas.scheduling import JobName, Text

MAX_STEP_ROWS: Final = 400
"""Of one batch: a rank that makes more steps a second sends several."""
TRAINING_SOCKET_VARIABLE: Final = "TURNBUCKLE_TRAINING_SOCKET"
"""In the environment of a job's workers: the datagram socket on which their runner takes these messages."""

StepColumn = Annotated[tuple[Count, ...], Field(max_length=MAX_STEP_ROWS)]


class StepBatch(Message):
    """Steps of one rank since its last batch, a row each; ranks report once a second, each at its own time."""

    type_name: ClassVar[str] = "turnbuckle.training.v1.StepBatch"

    job: JobName
    node: Name
    generation: Count = 0
    """Attempt of the scheduler's job; 0: started by hand."""
    training: Name
    """One start of the command: drawn anew by each."""
    rank: DeviceRank
    time_ns: Count
    step: StepColumn
    """From 0, with those of earlier starts."""
    step_us: StepColumn
    compute_us: StepColumn
    gather_us: StepColumn
    scatter_us: StepColumn
    samples: StepColumn
    """That this rank computed."""
    memory_bytes: StepColumn
    """The most that the rank has used so far: resident, or allocated on its GPU."""

    @model_validator(mode="after")
    def _same_length(self) -> Self:
        for name in STEP_COLUMNS:
            if len(getattr(self, name)) != len(self.step):
                raise ValueError(f"column {name} has {len(getattr(self, name))} rows instead of {len(self.step)}")
        return self


STEP_COLUMNS: Final = ("step", "step_us", "compute_us", "gather_us", "scatter_us", "samples", "memory_bytes")


class TrainingChange(StrEnum):
    """What happened to a training."""

    STARTED = "started"
    """Its ranks are being started, by `TrainingEvent.plan`."""
    RESUMED = "resumed"
    """It goes on at a checkpoint, after `TrainingEvent.step`."""
    DRIFT = "drift"
    """Its steps have left the plan's interval: `measured_step_us` is their median, `cause` says which bound."""
    SAVED = "saved"
    READY = "ready"
    """Of an elastic training, as the next three: `worker` has loaded what it needs, and can join."""
    JOINED = "joined"
    """`worker` is a member from this generation on."""
    LEFT = "left"
    """`worker` has ended: it was to leave, or was killed, and `cause` says which."""
    GENERATION = "generation"
    """Its workers train in a new process group; `cause` says why, `workers` how many they are."""
    CONTINUED = "continued"
    """The first step of a generation has begun, `pause_us` after the end of the last step of the one before."""
    ENDED = "ended"
    """With `exit_code`; 0: done, or saved and stopped."""


class TrainingEvent(Message):
    """One change of a training."""

    type_name: ClassVar[str] = "turnbuckle.training.v1.TrainingEvent"

    job: JobName
    node: Name
    generation: Count = 0
    """As `StepBatch.generation`."""
    training: Name
    """As `StepBatch.training`."""
    sequence: Count
    """Among the events of this start, from 0."""
    change: TrainingChange
    time_ns: Count
    step: Count = 0
    """Steps that are done, with those of earlier starts."""
    total: Count = 0
    """Steps of the whole training."""
    plan: Plan | None = None
    """Of `STARTED`, without alternatives and command lines; None: it is too large for one event."""
    measured_step_us: NonNegativeFloat = 0.0
    """Median of what was measured last; 0: no step was."""
    predicted_step_us: NonNegativeFloat = 0.0
    cause: Sentence = ""
    """Of `DRIFT`, `LEFT`, `GENERATION`, `CONTINUED` and `ENDED`: why."""
    run: MeasuredRun | None = None
    """Of `ENDED`: what the steps of this start took beside the prediction; None: later plans learn nothing from it."""
    exit_code: Annotated[int, Field(ge=-255, le=255)] | None = None
    """Of `ENDED`."""
    checkpoint: Text = ""
    """The directory; empty: none."""
    worker: Annotated[str, Field(max_length=MAX_NAME_CHARACTERS)] = ""
    """Of an elastic training."""
    workers: Count = 0
    """That train; 0: the training is not elastic, or none does yet."""
    usd: NonNegativeFloat = 0.0
    """What its workers have cost so far; 0: prices are not known."""
    pause_us: Count = 0
    """Of `CONTINUED`."""

    @property
    def message_id(self) -> str:
        """For deduplication."""
        return f"{self.job}.{self.generation}.{self.training}.{self.sequence}"


class TrainingGeneration(Message):
    """Registration of an elastic training's coordinator, with the generation of workers that it has ordered last.

    Kept in KV under the training's name, with a time to live; written over its own revision only.
    """

    type_name: ClassVar[str] = "turnbuckle.training.v1.TrainingGeneration"

    job: JobName
    node: Name
    """Where the coordinator runs."""
    pid: Count
    """Of the coordinator."""
    incarnation: Count
    """When it was started, by its host's wall clock."""
    time_ns: Count
    number: Count = 0
    """Of the generation; 0: none is ordered yet."""
    workers: Annotated[int, Field(ge=0, le=MAX_DEVICES)] = 0
    """That the generation has."""
    plan: Name
    """`Plan.plan`, a digest."""
    first_step: Count = 0
    """From which it trains. Until it has formed: steps that were known to be done when it was ordered."""
    is_formed: bool = False
    """Its members have said that they train."""
    holder: str = ""
    """Random token in a lock file, as in `NodeInfo`."""

"""Training jobs: task features, configuration, price, duration and cost (thesis 4.3.1, Table 4.1)."""

from __future__ import annotations

from datetime import date
from enum import StrEnum
from typing import Annotated, ClassVar, Final

from pydantic import Field

from schemas.message import Count, Message

Attributes = dict[str, float | str]
"""Additional features of imported sets by name: numbers, or text as categories."""

PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
MAX_NAME_CHARACTERS: Final = 200
MAX_DURATION_S: Final = 10 * 365.25 * 86_400
"""Ten years: a longer training is a wrong unit, and one such record makes a model useless."""
MAX_COST_USD: Final = 1e9
MAX_USD_PER_HOUR: Final = 1e6
"""Of one machine: listed ones cost some hundred dollars."""
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARACTERS)]


class TaskFeatures(Message):
    """The application features of Table 4.1. Batch size is part of the `Configuration`: it is varied with it.

    A zero means not known, where zero is no sensible value.
    """

    type_name: ClassVar[str] = "turnbuckle.job.v1.TaskFeatures"

    task: Name
    """The application: the unit of leave-one-out evaluation, and of recognising a known task."""
    parameter_count: Count = 0
    """Trainable parameters."""
    frozen_parameter_count: Count = 0
    layers: tuple[str, ...] = ()
    """Types of the layers in the order of registration, such as ``Conv2d``, ``ReLU``, ``Linear``; leaves only."""
    input_elements: Count = 0
    """Product of one sample's input dimensions."""
    output_elements: Count = 0
    """Product of one sample's output dimensions."""
    optimizer: str = ""
    learning_rate: NonNegativeFloat = 0.0
    epochs: Count = 0
    samples_per_epoch: Count = 0
    steps: Count = 0
    """Optimizer steps of the whole training, where it is counted in steps and not in epochs."""
    forward_flops: NonNegativeFloat = 0.0
    """Of one sample."""
    step_flops: NonNegativeFloat = 0.0
    """Of one sample in a training step: forward and backward pass."""
    step_bytes: NonNegativeFloat = 0.0
    """Read and written by the operators for one sample in a training step, in single precision."""
    step_weight_bytes: NonNegativeFloat = 0.0
    """Of weights and gradients, read and written once a training step, whatever its batch."""
    activation_bytes: NonNegativeFloat = 0.0
    """Kept of the forward pass for the backward pass, for one sample, in single precision."""
    attributes: Attributes = Field(default_factory=dict)


class Configuration(Message):
    """Machines of one type, their number, and the batch size."""

    type_name: ClassVar[str] = "turnbuckle.job.v1.Configuration"

    instance_type: Name
    provider: str = ""
    """``gcp``, ``emulated``, ``cluster`` (its own nodes), or what an imported set calls it."""
    workers: Annotated[int, Field(ge=1, le=100_000)]
    """Machines, the master included."""
    batch_size: Count = 0
    """Per worker; 0: not known, or the task has none."""
    vcpu: NonNegativeFloat = 0.0
    """Per machine."""
    memory_gb: NonNegativeFloat = 0.0
    disk_gb: NonNegativeFloat = 0.0
    network_gbps: NonNegativeFloat = 0.0
    accelerator: str = ""
    """Name of the machine's GPUs or TPUs, such as ``T4`` or ``A100-80GB``; empty: none, or not known."""
    accelerators: Count = 0
    """Per machine."""
    accelerator_memory_gb: NonNegativeFloat = 0.0
    """Of one accelerator."""
    attributes: Attributes = Field(default_factory=dict)


class Price(Message):
    """Hourly price of one machine on a day, and its catalogue."""

    type_name: ClassVar[str] = "turnbuckle.job.v1.Price"

    usd_per_hour: NonNegativeFloat
    spot_usd_per_hour: NonNegativeFloat | None = None
    as_of: date
    source: str
    """The catalogue's name, such as ``gcp-vertex`` or ``emulated``."""
    snapshot: str = ""
    """The catalogue snapshot's digest: the same text is the same snapshot."""


class JobState(StrEnum):
    """How a job ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    OUT_OF_MEMORY = "out_of_memory"
    TIMED_OUT = "timed_out"
    """Stopped at a limit: `duration_s` is a lower bound."""
    CANCELLED = "cancelled"


class CostKind(StrEnum):
    """Where a cost comes from."""

    BILLED = "billed"
    """Read from the provider's billing records, credits added."""
    DERIVED = "derived"
    """Price times machines times duration."""


class JobRecord(Message):
    """One finished job. `job` is unique: publishing it twice stores it once."""

    type_name: ClassVar[str] = "turnbuckle.job.v1.JobRecord"

    job: Name
    dataset: Name
    """Which collection it belongs to: ``vertex``, ``emulated``, ``scheduled``, or an imported set's name."""
    task: TaskFeatures
    configuration: Configuration
    state: JobState
    duration_s: PositiveFloat | None = None
    """Start to end of the training; None if it did not start or end."""
    cost_usd: NonNegativeFloat | None = None
    cost_kind: CostKind = CostKind.DERIVED
    price: Price | None = None
    started_ns: Count = 0
    """Wall clock; 0: not known."""
    repeat: Count = 0
    """Counts runs of the same task on the same configuration."""
    contended: bool = False
    """The workers' limits exceeded the machine's capacity: it shows contention, not scaling."""
    load_average: NonNegativeFloat | None = None
    """Of the emulating machine, over the minute before the start."""
    local_run: str = ""
    """`RunProfile.run` of the task's local run; empty: none."""
    reason: str = ""
    """Why it did not succeed."""
    submitted_ns: Count = 0
    """Wall clock, of a job that waited for slots; 0: not known."""
    preemptions: Count = 0
    restoring_s: NonNegativeFloat = 0.0
    """Spent on starting again after preemptions; not part of `duration_s`."""
    lost_s: NonNegativeFloat = 0.0
    """Run time of attempts that could not save their state; not part of `duration_s`."""


def implausible_field(record: JobRecord) -> str:
    """Return which time, cost or price of a record cannot be; empty: none.

    Not part of the schema: a message that was stored once stays readable.
    """
    for name in ("duration_s", "restoring_s", "lost_s"):
        seconds = getattr(record, name)
        if seconds is not None and seconds > MAX_DURATION_S:
            return f"{name}: {seconds:.3g} s is more than ten years"
    if record.cost_usd is not None and record.cost_usd > MAX_COST_USD:
        return f"cost_usd: {record.cost_usd:.3g} dollars is more than a billion"
    if record.price is not None and record.price.usd_per_hour > MAX_USD_PER_HOUR:
        return f"price.usd_per_hour: {record.price.usd_per_hour:.3g} is more than a million"
    return ""


def without_zero_prices(price: Price | None) -> Price | None:
    """Return a price, or None for one of 0: catalogues write 0 where they have no price, and no machine is free."""
    if price is None or not price.usd_per_hour:
        return None
    return price if price.spot_usd_per_hour != 0 else price.model_copy(update={"spot_usd_per_hour": None})

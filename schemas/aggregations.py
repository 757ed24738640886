"""Shared aggregation of replicated training jobs: requests for it, and which aggregator has which range.

The key of a job stands in the answer to its own request only, never in a bucket or an event.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Final

from pydantic import ConfigDict, Field

from schemas.message import Count, Message
from schemas.scheduling import JobName

MAX_RANKS: Final = 4_096
MAX_RANGES: Final = 4_096
MAX_VALUES: Final = 1 << 36
APPLICATION: Final = "aggregation"
"""All aggregators together, to allocator and agents."""
LEADER_KEY: Final = "leader"
"""Of the one entry of the bucket `aggregators`."""

Attempt = Annotated[int, Field(ge=1, lt=1 << 53)]
Claim = Annotated[str, Field(pattern=r"^[0-9a-f]{32,128}$", repr=False)]
"""A secret in hexadecimal digits, at least 128 random bits: who has it may ask for the job's key."""
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
"""SHA-256 in hexadecimal digits."""
Reason = Annotated[str, Field(max_length=1_000)]


class OptimizerKind(StrEnum):
    """Optimizer of ``torch.optim`` that works element by element."""

    SGD = "sgd"
    ADAM = "adam"
    ADAMW = "adamw"


class AggregationOptimizer(Message):
    """What makes a step out of the sum of gradients."""

    model_config = ConfigDict(allow_inf_nan=False)  # joins the base's
    type_name: ClassVar[str] = "turnbuckle.aggregation.v1.AggregationOptimizer"

    kind: OptimizerKind
    lr: Annotated[float, Field(gt=0)]
    """Learning rate."""
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Of sgd."""
    beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """Of adam and adamw, as `beta2`."""
    beta2: Annotated[float, Field(ge=0, lt=1)] = 0.999
    weight_decay: Annotated[float, Field(ge=0)] = 0.0

    @property
    def vectors(self) -> int:
        """Moments per value at most."""
        return 1 if self.kind is OptimizerKind.SGD else 2


class AggregationRequest(Message):
    """Place a job on an aggregator. The same request has the same answer, so that each rank may ask."""

    type_name: ClassVar[str] = "turnbuckle.aggregation.v1.AggregationRequest"

    job: JobName
    attempt: Attempt
    """Rises whenever the job's ranks begin anew, with parameters that they have; ranges of the one before are freed."""
    claim: Claim
    """The job's own; repeated in each of its requests."""
    ranks: Annotated[int, Field(ge=1, le=MAX_RANKS)]
    values: Annotated[int, Field(ge=1, le=MAX_VALUES)]
    """Length of the flat fp32 vector."""
    optimizer: AggregationOptimizer


class AggregatedRange(Message):
    """Values [first, last) of a job's flat vector, and who sums them."""

    type_name: ClassVar[str] = "turnbuckle.aggregation.v1.AggregatedRange"

    first: Count
    last: Count
    version: Count
    """Rises with each move of the range, and with each attempt."""
    address: str
    """HOST:PORT."""


class AggregationReply(Message):
    """Answer to AggregationRequest."""

    type_name: ClassVar[str] = "turnbuckle.aggregation.v1.AggregationReply"

    job: JobName
    attempt: Attempt
    key: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", repr=False)]
    """Of the job's workers in this attempt, in hexadecimal digits."""
    ranges: Annotated[tuple[AggregatedRange, ...], Field(max_length=MAX_RANGES)]
    """In order, without gaps."""


class AggregationEndRequest(Message):
    """Free a job's ranges: it has ended."""

    type_name: ClassVar[str] = "turnbuckle.aggregation.v1.AggregationEndRequest"

    job: JobName
    claim: Claim


class AggregationEndReply(Message):
    """Answer to AggregationEndRequest."""

    type_name: ClassVar[str] = "turnbuckle.aggregation.v1.AggregationEndReply"

    known: bool
    """False: it had ended before, or was never there."""


class Aggregation(Message):
    """A job's assignment: value of the bucket `aggregations`, changed over its own revision only."""

    type_name: ClassVar[str] = "turnbuckle.aggregation.v1.Aggregation"

    job: JobName
    attempt: Attempt
    claim_sha256: Digest
    """Of its claim's hexadecimal digits."""
    ranks: Annotated[int, Field(ge=1, le=MAX_RANKS)]
    values: Annotated[int, Field(ge=1, le=MAX_VALUES)]
    optimizer: AggregationOptimizer
    ranges: Annotated[tuple[AggregatedRange, ...], Field(max_length=MAX_RANGES)]
    incarnation: Count
    """Of the service whose aggregator has them."""
    lost: Reason = ""
    """Why parameters and moments are not there any more; empty: they are."""
    time_ns: Count


class AggregatorInfo(Message):
    """Registration of the leading aggregator service: kept in KV with a time to live."""

    type_name: ClassVar[str] = "turnbuckle.aggregation.v1.AggregatorInfo"

    host: str
    """Of its aggregators' addresses."""
    incarnation: Count
    holder: str
    """Random token of the process."""
    version: str


class AggregationChange(StrEnum):
    """What became of a job's ranges."""

    PLACED = "placed"
    RESTORED = "restored"
    """Placed again after a loss, with its workers' parameters, and the moments of their checkpoint if they have one."""
    MOVED = "moved"
    """To another aggregator, bit by bit."""
    LOST = "lost"
    """Their aggregator has died."""
    ENDED = "ended"


class AggregationEvent(Message):
    """A change of a job's aggregation."""

    type_name: ClassVar[str] = "turnbuckle.aggregation.v1.AggregationEvent"

    job: JobName
    attempt: Attempt
    change: AggregationChange
    reason: Reason
    addresses: tuple[str, ...] = ()
    """Of the aggregators that have its ranges now."""
    bit_identical: bool = True
    """False: results differ from those of a run in which nothing was lost."""
    time_ns: Count

"""Examples of the aggregator's messages: a small model on one aggregator."""

from __future__ import annotations

from typing import Final

from schemas.aggregations import (
    AggregatedRange,
    Aggregation,
    AggregationChange,
    AggregationEndReply,
    AggregationEndRequest,
    AggregationEvent,
    AggregationOptimizer,
    AggregationReply,
    AggregationRequest,
    AggregatorInfo,
    OptimizerKind,
)
from schemas.message import Message

_NOW: Final = 1_795_284_000_000_000_000
_JOB: Final = "resnet-k7qd"
_CLAIM: Final = "5f" * 32
_OPTIMIZER: Final = AggregationOptimizer(kind=OptimizerKind.ADAMW, lr=0.001, weight_decay=0.01)
_RANGES: Final = (
    AggregatedRange(first=0, last=4_194_304, version=1, address="10.0.0.7:40123"),
    AggregatedRange(first=4_194_304, last=6_000_000, version=1, address="10.0.0.7:40123"),
)
EXAMPLES: Final[tuple[Message, ...]] = (
    AggregationRequest(job=_JOB, attempt=1, claim=_CLAIM, ranks=4, values=6_000_000, optimizer=_OPTIMIZER),
    AggregationReply(job=_JOB, attempt=1, key="a3" * 32, ranges=_RANGES),
    AggregationEndRequest(job=_JOB, claim=_CLAIM),
    AggregationEndReply(known=True),
    Aggregation(
        job=_JOB,
        attempt=1,
        claim_sha256="0c" * 32,
        ranks=4,
        values=6_000_000,
        optimizer=_OPTIMIZER,
        ranges=_RANGES,
        incarnation=_NOW,
        time_ns=_NOW,
    ),
    AggregatorInfo(host="10.0.0.7", incarnation=_NOW, holder="Xb2kq0w3Qn6fWg5cLr9yTA", version="0.1.0"),
    AggregationEvent(
        job=_JOB,
        attempt=1,
        change=AggregationChange.PLACED,
        reason="on aggregator 0: new",
        addresses=("10.0.0.7:40123",),
        time_ns=_NOW,
    ),
)

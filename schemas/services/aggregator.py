"""Gradients of replicated training jobs."""

from __future__ import annotations

from typing import Final

from schemas.aggregations import (
    APPLICATION,
    AggregationEndReply,
    AggregationEndRequest,
    AggregationEvent,
    AggregationReply,
    AggregationRequest,
)
from schemas.service import BucketUse, Channel, Delivery, Endpoint, Service
from schemas.streams import AGGREGATIONS, AGGREGATORS, APPS
from schemas.subjects import AGGREGATION_EVENTS
from schemas.telemetry_specs import MetricSpec, SpanSpec

AGGREGATOR_PLACE: Final = Endpoint(
    "aggregator",
    "place",
    AggregationRequest,
    AggregationReply,
    "have a replicated training job's gradients aggregated: where, with which key",
)
AGGREGATOR_END: Final = Endpoint(
    "aggregator", "end", AggregationEndRequest, AggregationEndReply, "free the ranges of a training job that has ended"
)

SERVICE: Final = Service(
    name="aggregator",
    channels=(
        Channel(
            AGGREGATION_EVENTS,
            AggregationEvent,
            Delivery.JETSTREAM,
            ("aggregator",),
            ("cli",),
            "ranges of a replicated training job were placed, moved, lost, restored or freed",
        ),
    ),
    endpoints=(AGGREGATOR_PLACE, AGGREGATOR_END),
    buckets=(
        BucketUse(APPS, key=APPLICATION, reads=True),
        BucketUse(AGGREGATORS, writes=True, reads=True),
        BucketUse(AGGREGATIONS, writes=True, reads=True),
    ),
    dashboard="Aggregator: jobs, processes, moves",
    metrics=(
        MetricSpec("turnbuckle_aggregator_leading_info", "gauge", "1 while this instance leads, else 0"),
        MetricSpec("turnbuckle_aggregator_jobs", "gauge", "training jobs that are aggregated"),
        MetricSpec("turnbuckle_aggregator_running_aggregators", "gauge", "aggregators that run"),
        MetricSpec("turnbuckle_aggregator_requests_total", "counter", "requests to place or end a job", ("outcome",)),
        MetricSpec("turnbuckle_aggregator_moves_total", "counter", "jobs moved from one aggregator to another"),
        MetricSpec("turnbuckle_aggregator_lost_jobs_total", "counter", "jobs whose aggregator has died or was ended"),
    ),
    spans=(
        SpanSpec("aggregator.place", "a training job's ranges placed on an aggregator", ("turnbuckle.job",)),
        SpanSpec("aggregator.move", "a training job's ranges moved to another aggregator", ("turnbuckle.job",)),
    ),
)

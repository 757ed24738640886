"""Limits of all containers of an application, and who decides them."""

from __future__ import annotations

from typing import Final, Literal

from schemas.limits import LimitDecisions
from schemas.oom import MemoryReply, MemoryRequest
from schemas.queries import ExplainReply, ExplainRequest, StateReply, StateRequest
from schemas.savings import Savings
from schemas.service import BucketUse, Channel, Delivery, Deployment, Endpoint, Service
from schemas.streams import APPS, LEASES, NODES
from schemas.subjects import LIMIT_DECISIONS, MEMORY_REQUESTS, REPLICA_EXPLAIN, REPLICA_STATE, SAVINGS
from schemas.telemetry_specs import AlertSpec, MetricSpec, SpanSpec

_OF_AN_APPLICATION: Final[tuple[tuple[str, Literal["counter", "gauge"], str], ...]] = (
    ("containers", "gauge", "containers that agents report of the application, admitted or not"),
    (
        "refused_containers",
        "gauge",
        "of these, with no more than their floor because the application has no capacity left",
    ),
    ("cpu_limit_cores", "gauge", "the application's CPU limit"),
    ("cpu_allocated_cores", "gauge", "sum of its containers' CPU limits; what is left of its limit is its pool"),
    ("memory_limit_bytes", "gauge", "the application's memory limit"),
    ("memory_allocated_bytes", "gauge", "sum of its containers' memory limits and its reserves"),
    ("memory_reserve_bytes", "gauge", "of this, reserves that agents may grant without a request"),
    ("memory_usage_bytes", "gauge", "memory that its containers use"),
    ("cpu_usage_seconds_total", "counter", "CPU time that its containers used"),
    ("cpu_unused_seconds_total", "counter", "CPU time within their limits that they did not use (slack)"),
    ("cpu_throttled_seconds_total", "counter", "time that they were throttled, summed over CPUs"),
    ("cpu_periods_total", "counter", "CFS periods of its containers"),
    ("cpu_throttled_periods_total", "counter", "of these, periods in which a container was throttled"),
    ("oom_kills_total", "counter", "OOM kills in its containers"),
    ("cpu_excess_seconds_total", "counter", "mode observe: CPU time used above the limits that were decided"),
    ("savings_covered_seconds_total", "counter", "time for which baseline and held are counted"),
    ("cpu_baseline_seconds_total", "counter", "CPU time within the limits that its containers came with"),
    ("cpu_held_seconds_total", "counter", "CPU time within the limits that were decided"),
    ("memory_baseline_byte_seconds_total", "counter", "memory limits that its containers came with, times time"),
    ("memory_held_byte_seconds_total", "counter", "memory limits that were decided, and reserves, times time"),
)
ALLOCATOR_STATE: Final = Endpoint(
    "allocator", "state", StateRequest, StateReply, "applications, containers, limits and pools", read_only=True
)
ALLOCATOR_EXPLAIN: Final = Endpoint(
    "allocator",
    "explain",
    ExplainRequest,
    ExplainReply,
    "why limits are what they are, with measured value and threshold",
    read_only=True,
)

SERVICE: Final = Service(
    name="allocator",
    channels=(
        Channel(
            LIMIT_DECISIONS,
            LimitDecisions,
            Delivery.CORE,
            ("allocator",),
            ("cli",),
            "limit changes decided for one application, with reasons and pools",
        ),
        Channel(
            MEMORY_REQUESTS,
            MemoryRequest,
            Delivery.REQUEST,
            ("agent",),
            ("allocator",),
            "a node's reserve for an application runs out: its owner refills it or says why not",
            reply=MemoryReply,
        ),
        Channel(
            REPLICA_STATE,
            StateRequest,
            Delivery.REQUEST,
            ("cli", "kubeoperator"),
            ("allocator",),
            "state of the applications that one replica owns",
            reply=StateReply,
            title="ReplicaState",
            read_only=True,
        ),
        Channel(
            REPLICA_EXPLAIN,
            ExplainRequest,
            Delivery.REQUEST,
            ("cli",),
            ("allocator",),
            "why limits are what they are, from the replica that decided",
            reply=ExplainReply,
            title="ReplicaExplain",
            read_only=True,
        ),
        Channel(
            SAVINGS,
            Savings,
            Delivery.JETSTREAM,
            ("allocator",),
            ("cli",),
            "what an application held in a day beside what it would hold without limits, and how it was throttled",
        ),
    ),
    endpoints=(ALLOCATOR_STATE, ALLOCATOR_EXPLAIN),
    buckets=(
        BucketUse(APPS, watches=True),
        BucketUse(LEASES, writes=True, watches=True),
        BucketUse(NODES, watches=True),
    ),
    dashboard="Allocator: decisions, ownership, reports",
    metrics=(
        MetricSpec("turnbuckle_allocator_applications", "gauge", "applications that are announced"),
        MetricSpec("turnbuckle_allocator_owned_applications", "gauge", "applications that this replica decides for"),
        MetricSpec(
            "turnbuckle_allocator_ownerless_applications",
            "gauge",
            "announced applications that no member can serve, as this replica knows",
        ),
        MetricSpec("turnbuckle_allocator_members", "gauge", "replicas that share the applications, as this one knows"),
        MetricSpec("turnbuckle_allocator_containers", "gauge", "containers that agents report, admitted or not"),
        MetricSpec(
            "turnbuckle_allocator_refused_containers",
            "gauge",
            "containers with no more than their floor because the application has no capacity left",
        ),
        MetricSpec("turnbuckle_allocator_steps_total", "counter", "allocation steps"),
        MetricSpec("turnbuckle_allocator_changes_total", "counter", "limits changed by decisions"),
        MetricSpec("turnbuckle_allocator_limit_updates_total", "counter", "limit updates sent to agents"),
        MetricSpec(
            "turnbuckle_allocator_unacknowledged_limit_updates_total", "counter", "limit updates without a usable reply"
        ),
        MetricSpec("turnbuckle_allocator_memory_requests_total", "counter", "requests to refill a node's reserve"),
        MetricSpec("turnbuckle_allocator_refused_memory_requests_total", "counter", "such requests that were denied"),
        MetricSpec("turnbuckle_allocator_takeovers_total", "counter", "applications acquired, new ones included"),
        MetricSpec(
            "turnbuckle_allocator_nodes_not_reported",
            "gauge",
            "nodes that have to report before any limit of an acquired application is raised, or were set aside",
        ),
        MetricSpec(
            "turnbuckle_allocator_nodes_set_aside",
            "gauge",
            "registered nodes that are not waited for any more: they neither report nor acknowledge orders",
        ),
        MetricSpec(
            "turnbuckle_allocator_dropped_batches_total",
            "counter",
            "batches dropped before decoding: their node sent more than any agent does",
        ),
        MetricSpec(
            "turnbuckle_allocator_dropped_memory_requests_total",
            "counter",
            "memory requests dropped before decoding, as batches",
        ),
        MetricSpec(
            "turnbuckle_allocator_unregistered_batches_total",
            "counter",
            "batches of nodes that are not registered; dropped",
        ),
        MetricSpec(
            "turnbuckle_allocator_quarantined_nodes",
            "gauge",
            "nodes of which nothing is received for a while: they sent far more than any agent does",
        ),
        MetricSpec(
            "turnbuckle_allocator_ignored_epochs_total",
            "counter",
            "newer epochs of applications that a node claimed more often than is believed",
        ),
        MetricSpec(
            "turnbuckle_allocator_lost_applications_total",
            "counter",
            "applications lost since other replicas had removed this one",
        ),
        MetricSpec(
            "turnbuckle_allocator_failed_renewals_total",
            "counter",
            "heartbeats of this replica that could not be stored",
        ),
        MetricSpec("turnbuckle_allocator_stale_batches_total", "counter", "batches discarded as stale"),
        MetricSpec(
            "turnbuckle_allocator_out_of_order_batches_total",
            "counter",
            "batches older than the newest one of the node",
        ),
        MetricSpec(
            "turnbuckle_allocator_subject_mismatch_total", "counter", "messages of another type than their subject's"
        ),
        MetricSpec(
            "turnbuckle_allocator_invalid_samples_total", "counter", "samples with values that no kernel reports"
        ),
        MetricSpec(
            "turnbuckle_allocator_step_seconds",
            "histogram",
            "an allocation step: from batches to limit updates on the bus",
        ),
        *(
            MetricSpec(f"turnbuckle_app_{name}", kind, description, ("app",))
            for name, kind, description in _OF_AN_APPLICATION
        ),
    ),
    spans=(
        SpanSpec(
            "allocator.decide",
            "an allocation step that changed limits",
            ("turnbuckle.batches", "turnbuckle.changes", "turnbuckle.limit_updates", "turnbuckle.apps"),
        ),
        SpanSpec(
            "allocator.grant_memory",
            "a node's reserve refilled, or why it was denied",
            (
                *(
                    "turnbuckle.app",
                    "turnbuckle.node",
                    "turnbuckle.container",
                    "turnbuckle.limit_updates",
                    "turnbuckle.rejection",
                ),
                *("turnbuckle.memory.wanted_bytes", "turnbuckle.memory.granted_bytes"),
                "turnbuckle.memory.reclaiming_bytes",
            ),
        ),
    ),
    alerts=(
        AlertSpec(
            "TurnbuckleApplicationWithoutOwner",
            "critical",
            "max(turnbuckle_allocator_applications) > sum(turnbuckle_allocator_owned_applications)"
            ' or absent(up{job="turnbuckle", service="allocator"} == 1)',
            "some applications have no owner",
            holds_for="15s",
        ),
        AlertSpec(
            "TurnbuckleContainersRefused",
            "warning",
            "turnbuckle_allocator_refused_containers > 0",
            "containers find no room in their application's limit",
            holds_for="1m",
        ),
        AlertSpec(
            "TurnbuckleApplicationThrottled",
            "warning",
            "sum by (app) (rate(turnbuckle_app_cpu_throttled_periods_total[5m]))"
            " / sum by (app) (rate(turnbuckle_app_cpu_periods_total[5m])) > 0.25",
            "containers of {{ $labels.app }} are throttled in {{ $value | humanizePercentage }} of their periods",
            holds_for="10m",
        ),
        AlertSpec(
            "TurnbuckleApplicationMemoryFull",
            "warning",
            "max by (app) (turnbuckle_app_memory_usage_bytes / turnbuckle_app_memory_limit_bytes) > 0.95",
            "{{ $labels.app }} uses {{ $value | humanizePercentage }} of its memory limit",
            holds_for="5m",
        ),
        AlertSpec(
            "TurnbuckleStepSlow",
            "warning",
            "histogram_quantile(0.99, sum by (instance, le)"
            " (rate(turnbuckle_allocator_step_seconds_bucket[5m]))) > 0.05",
            "steps of the allocator at {{ $labels.instance }} take {{ $value | humanizeDuration }}",
            holds_for="5m",
        ),
    ),
    deployment=Deployment(memory="512m"),
)

"""One host's tc rules."""

from __future__ import annotations

from typing import Final

from schemas.network import (
    DiffReply,
    DiffRequest,
    NetworkStateReply,
    NetworkStateRequest,
    RouteEvent,
    RulesReply,
    RulesRequest,
    TcEvent,
)
from schemas.service import BucketUse, Channel, Delivery, Service
from schemas.streams import RECONCILERS
from schemas.subjects import RECONCILER_DIFF, RECONCILER_RULES, RECONCILER_STATE, ROUTE_EVENTS, TC_EVENTS
from schemas.telemetry_specs import AlertSpec, MetricSpec, SpanSpec

SERVICE: Final = Service(
    name="reconciler",
    per_host=True,
    channels=(
        Channel(
            ROUTE_EVENTS,
            RouteEvent,
            Delivery.JETSTREAM,
            ("reconciler",),
            ("cli", "reconciler", "scheduler"),
            "paths and links of a node changed, disagree between kernel, FRR and BFD, were overridden, or drained",
            from_all_hosts=True,
        ),
        Channel(
            TC_EVENTS,
            TcEvent,
            Delivery.JETSTREAM,
            ("reconciler",),
            ("cli",),
            "every tc rule that a node's reconciler wrote, with cause and outcome",
        ),
        Channel(
            RECONCILER_STATE,
            NetworkStateRequest,
            Delivery.REQUEST,
            ("cli",),
            ("reconciler",),
            "links, VTEPs, paths and rule counts of one node",
            reply=NetworkStateReply,
            read_only=True,
        ),
        Channel(
            RECONCILER_DIFF,
            DiffRequest,
            Delivery.REQUEST,
            ("cli",),
            ("reconciler",),
            "what a node's reconciler would write now",
            reply=DiffReply,
            read_only=True,
        ),
        Channel(
            RECONCILER_RULES,
            RulesRequest,
            Delivery.REQUEST,
            ("cli",),
            ("reconciler",),
            "the rules installed on a node",
            reply=RulesReply,
            read_only=True,
        ),
    ),
    buckets=(BucketUse(RECONCILERS, own_key=True, reads=True),),
    metrics=(
        MetricSpec(
            "turnbuckle_reconciler_rules",
            "gauge",
            "tc filters: desired, in sync with that, managed by this reconciler, unmanaged on the same ports",
            ("set",),
        ),
        MetricSpec("turnbuckle_reconciler_offloaded_rules", "gauge", "filters in sync that are in hardware (in_hw)"),
        MetricSpec(
            "turnbuckle_reconciler_full_reconciles_total",
            "counter",
            "full reconciles: dump of the kernel's state, diff, apply",
        ),
        MetricSpec("turnbuckle_reconciler_route_reconciles_total", "counter", "reconciles of links and routes only"),
        MetricSpec(
            "turnbuckle_reconciler_failed_reconciles_total", "counter", "full reconciles aborted by a netlink error"
        ),
        MetricSpec("turnbuckle_reconciler_writes_total", "counter", "netlink writes acknowledged by the kernel"),
        MetricSpec("turnbuckle_reconciler_refused_writes_total", "counter", "netlink writes that failed"),
        MetricSpec("turnbuckle_reconciler_overruns_total", "counter", "netlink receive buffer overruns (ENOBUFS)"),
        MetricSpec("turnbuckle_reconciler_last_full_reconcile_seconds", "gauge", "duration of the last full reconcile"),
        MetricSpec(
            "turnbuckle_reconciler_last_lag_seconds", "gauge", "from the first event to rules that are verified"
        ),
        MetricSpec(
            "turnbuckle_reconciler_problems", "gauge", "conditions that keep rules from being in sync", ("kind",)
        ),
        MetricSpec(
            "turnbuckle_reconciler_unpublished_operations", "gauge", "operations whose event is not published yet"
        ),
        MetricSpec("turnbuckle_reconciler_paths", "gauge", "destinations whose next hops are compared"),
        MetricSpec(
            "turnbuckle_reconciler_path_disagreements",
            "gauge",
            "of these, destinations where kernel, FRR and BFD disagree",
        ),
        MetricSpec(
            "turnbuckle_reconciler_path_alarms_total", "counter", "disagreements that lasted beyond the alarm threshold"
        ),
        MetricSpec("turnbuckle_reconciler_frr_answers_info", "gauge", "1 while FRR answers, else 0"),
        MetricSpec(
            "turnbuckle_reconciler_flushed_overrides_total",
            "counter",
            "overrides deleted because their fast path was unresponsive",
        ),
    ),
    spans=(
        SpanSpec(
            "reconciler.reconcile",
            "from the first kernel event of a burst to rules that are verified",
            (
                *("turnbuckle.causes", "turnbuckle.rules.written", "turnbuckle.rules.refused"),
                *("turnbuckle.rules.desired", "turnbuckle.rules.in_sync", "turnbuckle.rules.verified"),
            ),
        ),
    ),
    alerts=(
        AlertSpec(
            "TurnbuckleRulesWrong",
            "warning",
            "turnbuckle_reconciler_problems > 0",
            "{{ $labels.kind }} keeps tc rules from being right at {{ $labels.instance }}",
            holds_for="1m",
        ),
    ),
)

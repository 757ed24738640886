"""Names of every metric, span and attribute that a service may emit; the runtime refuses any other.

What all services have stands here, what one has beside its other declarations (`schemas.services`). Spans are for
decisions and commands: one costs 20-46 us, so none per sample. Attributes follow the semantic conventions if there is
one (``messaging.*``, ``error.type``); others begin with ``turnbuckle.``.
"""

from __future__ import annotations

from typing import Final

from schemas.services import SERVICES
from schemas.telemetry_specs import AlertSpec, AttributeSpec, MetricSpec, SpanSpec

_ATTRIBUTES: Final = (
    AttributeSpec("service", "name of the service, such as agent"),
    AttributeSpec("version", "version of the service"),
    AttributeSpec(
        "reason",
        "why a message (disconnected, slow), a span (overflow, refused) or work event (forged, old) was dropped",
    ),
    AttributeSpec("change", "what became of a slab of a swap device (mapped, evicted, ...)"),
    AttributeSpec("cause", "of a slab that was not mapped: no_room, refused, unusable, ..."),
    AttributeSpec("kind", "what was wrong with a message (malformed, invalid, ...), or what a problem is about"),
    AttributeSpec(
        "outcome", "of a request to plan: planned, refused, busy (too many wait, or no time is left) or failed"
    ),
    AttributeSpec("set", "which rules: desired, in_sync, managed or unmanaged"),
    AttributeSpec("error.type", "kind of error, or the code of a rejection"),
    AttributeSpec("messaging.system", "nats"),
    AttributeSpec("messaging.operation.name", "publish, request, respond or process"),
    AttributeSpec("messaging.operation.type", "send or process"),
    AttributeSpec("messaging.destination.name", "subject"),
    AttributeSpec("messaging.destination.template", "subject with the names of its ids, without the root"),
    AttributeSpec("messaging.message.id", "Nats-Msg-Id, by which the stream deduplicates"),
    AttributeSpec("app", "application"),
    AttributeSpec("turnbuckle.app", "application"),
    AttributeSpec("turnbuckle.apps", "applications, 20 at most"),
    AttributeSpec("turnbuckle.node", "host"),
    AttributeSpec("turnbuckle.container", "key of the container"),
    AttributeSpec("phase", "what training jobs do: waiting, running, stopping"),
    AttributeSpec("turnbuckle.starts", "attempts of jobs that begin"),
    AttributeSpec("turnbuckle.stops", "attempts of jobs that have to stop"),
    AttributeSpec("turnbuckle.live_jobs", "jobs that have not ended"),
    AttributeSpec("turnbuckle.epoch", "epoch of the allocator that decided"),
    AttributeSpec("turnbuckle.limit_update_seq", "sequence number of the limit update"),
    AttributeSpec("turnbuckle.rows", "containers in a limit update"),
    AttributeSpec("turnbuckle.rows_failed", "of them, those whose limits could not be set"),
    AttributeSpec("turnbuckle.changes", "limits that were changed"),
    AttributeSpec("turnbuckle.limit_updates", "limit updates that were sent"),
    AttributeSpec("turnbuckle.batches", "batches of samples in the step"),
    AttributeSpec("turnbuckle.rejection", "why not, in a sentence"),
    AttributeSpec(
        "turnbuckle.oom.kinds",
        "what happened, in order: near_limit, oom_wait, grant, grant_denied, oom_killer_enabled, kill",
    ),
    AttributeSpec("turnbuckle.memory.usage_bytes", "in use"),
    AttributeSpec("turnbuckle.memory.limit_bytes", "limit in force afterwards; -1: none"),
    AttributeSpec("turnbuckle.memory.wanted_bytes", "requested"),
    AttributeSpec("turnbuckle.memory.granted_bytes", "granted"),
    AttributeSpec("turnbuckle.memory.reclaiming_bytes", "being reclaimed from other containers"),
    AttributeSpec("turnbuckle.causes", "kinds of events that triggered the reconcile"),
    AttributeSpec("turnbuckle.rules.written", "writes acknowledged by the kernel"),
    AttributeSpec("turnbuckle.rules.refused", "writes that failed"),
    AttributeSpec("turnbuckle.rules.desired", "filters that should be there"),
    AttributeSpec("turnbuckle.rules.in_sync", "of them, those that the kernel holds as desired"),
    AttributeSpec("turnbuckle.rules.verified", "whether the last dump equals the desired state"),
    AttributeSpec("turnbuckle.job", "name of a job"),
    AttributeSpec("turnbuckle.jobs", "names of jobs, 20 at most"),
    AttributeSpec("turnbuckle.devices", "devices that a job is planned for"),
    AttributeSpec("turnbuckle.batch", "samples of a step, of all devices"),
    AttributeSpec("turnbuckle.action", "what was ordered: run, check, stop, kill, pace or forget"),
    AttributeSpec("job", "a training job that is paced"),
    AttributeSpec("result", "of a sample of a job's iterations: taken, old, forged or garbage"),
    AttributeSpec("state", "of a training job's worker: starting, running or stopping"),
    AttributeSpec("turnbuckle.records", "records that are published, or trained on"),
    AttributeSpec("turnbuckle.model", "version of the model that answers, or is trained"),
    AttributeSpec("turnbuckle.configurations", "configurations in the query; 0: all of the catalogue's"),
)
_MESSAGE: Final = (
    "messaging.system",
    "messaging.operation.name",
    "messaging.operation.type",
    "messaging.destination.name",
    "messaging.destination.template",
)
_METRICS: Final = (
    MetricSpec("turnbuckle_build_info", "gauge", "always 1; which version runs", ("service", "version")),
    MetricSpec("turnbuckle_event_loop_lag_seconds", "gauge", "age of the event loop's last heartbeat"),
    MetricSpec("turnbuckle_bus_connected_info", "gauge", "1 while the server can be reached, else 0"),
    MetricSpec("turnbuckle_bus_published_messages_total", "counter", "observations sent"),
    MetricSpec("turnbuckle_bus_received_messages_total", "counter", "messages received, decodable or not"),
    MetricSpec("turnbuckle_bus_dropped_messages_total", "counter", "observations dropped", ("reason",)),
    MetricSpec("turnbuckle_bus_undecodable_messages_total", "counter", "messages that could not be decoded", ("kind",)),
    MetricSpec("turnbuckle_bus_handler_errors_total", "counter", "exceptions raised by message handlers"),
    MetricSpec("turnbuckle_bus_reconnects_total", "counter", "reconnections to the server"),
    MetricSpec("turnbuckle_bus_published_events_total", "counter", "events acknowledged by JetStream"),
    MetricSpec("turnbuckle_bus_dropped_events_total", "counter", "events lost because the outbox was full"),
    MetricSpec("turnbuckle_bus_pending_events", "gauge", "events in the outbox, not acknowledged by JetStream yet"),
    MetricSpec("turnbuckle_telemetry_exported_spans_total", "counter", "spans accepted by the collector"),
    MetricSpec("turnbuckle_telemetry_lost_spans_total", "counter", "spans lost on the way to a collector", ("reason",)),
    MetricSpec("turnbuckle_telemetry_failed_metric_exports_total", "counter", "metric exports that failed"),
    *(metric for service in SERVICES for metric in service.metrics),
)
_SPANS: Final = (
    SpanSpec("bus.request", "a command sent, until its reply", _MESSAGE, "client", "request"),
    SpanSpec("bus.respond", "a command answered", _MESSAGE, "server", "respond"),
    SpanSpec(
        "bus.publish",
        "an event, until its stream has acknowledged it",
        (*_MESSAGE, "messaging.message.id"),
        "producer",
        "publish",
    ),
    SpanSpec("bus.append", "an entry of a log, until it is taken or refused", _MESSAGE, "producer", "append"),
    SpanSpec("bus.handle_event", "a stored event handled", _MESSAGE, "consumer", "process"),
    SpanSpec("cli.advise", "`turnbuckle advise`: the query and its reply", ("turnbuckle.job",)),
    *(span for service in SERVICES for span in service.spans),
)

EVERY_SPAN: Final = ("error.type",)
"""Attributes that any span may have."""
ATTRIBUTES: Final[dict[str, AttributeSpec]] = {attribute.name: attribute for attribute in _ATTRIBUTES}
METRICS: Final[dict[str, MetricSpec]] = {metric.name: metric for metric in _METRICS}
SPANS: Final[dict[str, SpanSpec]] = {span.name: span for span in _SPANS}
ALERTS: Final = (
    *(
        AlertSpec(
            "TurnbuckleServiceDown",
            "critical",
            'up{job=~"turnbuckle|reconciler"} == 0',
            "{{ $labels.service }} at {{ $labels.instance }} does not answer",
            holds_for="30s",
        ),
        AlertSpec(
            "TurnbuckleBusLost",
            "critical",
            "turnbuckle_bus_connected_info == 0",
            "{{ $labels.instance }} cannot reach NATS",
            holds_for="15s",
        ),
        AlertSpec(
            "TurnbuckleEventsLost",
            "critical",
            "increase(turnbuckle_bus_dropped_events_total[5m]) > 0",
            "{{ $labels.instance }} has dropped events: its outbox was full",
        ),
        AlertSpec(
            "TurnbuckleWritesRefused",
            "warning",
            "increase(turnbuckle_agent_refused_writes_total[5m]) > 0"
            " or increase(turnbuckle_reconciler_refused_writes_total[5m]) > 0",
            "the kernel refuses writes at {{ $labels.instance }}",
        ),
    ),
    *(alert for service in SERVICES for alert in service.alerts),
)

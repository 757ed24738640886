"""Names of every metric, span and attribute that a service may emit; the runtime refuses any other.

Metrics follow Prometheus: ``turnbuckle_<noun>_<unit>``, base units, ``_total`` for counters, few label values (never a
job, container or concrete subject); `MetricSpec.otel_name` is the same metric in OpenTelemetry's words. Spans are for
decisions and commands: one costs 20-46 us, so none per sample. Attributes follow the semantic conventions where there
is one (``messaging.*``, ``error.type``); ours begin with ``turnbuckle.``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

_UNITS: Final = (("_bytes", "By"), ("_seconds", "s"))
"""Endings of metric names, and their units in OpenTelemetry (UCUM)."""


@dataclass(frozen=True, slots=True)
class AttributeSpec:
    """An attribute of a span or a label of a metric."""

    name: str
    description: str


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """A number that is read when someone asks for it."""

    name: str
    kind: Literal["counter", "gauge"]
    description: str
    labels: tuple[str, ...] = ()

    @property
    def otel_unit(self) -> str:
        """UCUM unit, or nothing: ``By``, ``s``."""
        return next((unit for ending, unit in _UNITS if self._stem.endswith(ending)), "")

    @property
    def otel_name(self) -> str:
        """``turnbuckle.agent.ticks``: what OpenTelemetry's exporters for Prometheus turn into `name` again."""
        stem = self._stem
        ending = next((ending for ending, _ in _UNITS if stem.endswith(ending)), "")
        return ".".join(stem.removesuffix(ending).split("_", 2))

    @property
    def _stem(self) -> str:
        return self.name.removesuffix("_total")


SpanKind = Literal["internal", "client", "server", "producer", "consumer"]


@dataclass(frozen=True, slots=True)
class SpanSpec:
    """An operation that took time."""

    name: str
    description: str
    attributes: tuple[str, ...] = ()
    kind: SpanKind = "internal"
    operation: str = ""
    """Of a messaging span: ``messaging.operation.name``, which its exported name begins with."""

    def title(self, destination: str) -> str:
        """The exported name: of messaging spans operation and destination template, as the conventions want it."""
        return f"{self.operation} {destination}".rstrip() if self.operation else self.name


_ATTRIBUTES: Final = (
    AttributeSpec("service", "name of the service, such as agent"),
    AttributeSpec("version", "version of the service"),
    AttributeSpec("reason", "why a message (disconnected, slow) or a span (overflow, refused) was lost"),
    AttributeSpec("kind", "what was wrong with a message (malformed, invalid, ...), or what a problem is about"),
    AttributeSpec("set", "which rules: desired, right, own or foreign"),
    AttributeSpec("error.type", "what went wrong, in a word: the kind of error, or the code of a refusal"),
    AttributeSpec("messaging.system", "nats"),
    AttributeSpec("messaging.operation.name", "publish, request, respond or process"),
    AttributeSpec("messaging.operation.type", "send or process"),
    AttributeSpec("messaging.destination.name", "subject"),
    AttributeSpec("messaging.destination.template", "subject with the names of its ids, without the root"),
    AttributeSpec("messaging.message.id", "Nats-Msg-Id, by which the stream tells doubles"),
    AttributeSpec("turnbuckle.app", "application"),
    AttributeSpec("turnbuckle.node", "host"),
    AttributeSpec("turnbuckle.container", "key of the container"),
    AttributeSpec("turnbuckle.epoch", "epoch of the allocator that decided"),
    AttributeSpec("turnbuckle.order_seq", "number of the order"),
    AttributeSpec("turnbuckle.rows", "containers that an order is about"),
    AttributeSpec("turnbuckle.rows_failed", "of them, those whose limits could not be set"),
    AttributeSpec("turnbuckle.changes", "limits that were decided anew"),
    AttributeSpec("turnbuckle.orders", "orders that were sent"),
    AttributeSpec("turnbuckle.batches", "batches of observations that a decision rests upon"),
    AttributeSpec("turnbuckle.refusal", "why not, in a sentence"),
    AttributeSpec("turnbuckle.oom.kinds", "what happened, in order: near, trap, grant, refusal, release, kill"),
    AttributeSpec("turnbuckle.memory.usage_bytes", "in use"),
    AttributeSpec("turnbuckle.memory.limit_bytes", "limit that now holds; -1: none"),
    AttributeSpec("turnbuckle.memory.wanted_bytes", "asked for"),
    AttributeSpec("turnbuckle.memory.granted_bytes", "granted"),
    AttributeSpec("turnbuckle.memory.reclaiming_bytes", "being taken back from others"),
    AttributeSpec("turnbuckle.causes", "kinds of events that made a look due"),
    AttributeSpec("turnbuckle.rules.written", "writes that the kernel took"),
    AttributeSpec("turnbuckle.rules.refused", "writes that it refused"),
    AttributeSpec("turnbuckle.rules.desired", "filters that should be there"),
    AttributeSpec("turnbuckle.rules.right", "of them, those that are"),
    AttributeSpec("turnbuckle.rules.verified", "whether the last look showed what should be there"),
    AttributeSpec("turnbuckle.job", "name of a job"),
    AttributeSpec("turnbuckle.jobs", "names of jobs, 20 at most"),
    AttributeSpec("turnbuckle.records", "records that are published, or learned from"),
    AttributeSpec("turnbuckle.model", "version of the model that answers, or is trained"),
    AttributeSpec("turnbuckle.configurations", "configurations that were asked about; 0: all of the catalogue's"),
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
    MetricSpec("turnbuckle_bus_undecodable_messages_total", "counter", "messages that were none of ours", ("kind",)),
    MetricSpec("turnbuckle_bus_handler_errors_total", "counter", "exceptions raised by message handlers"),
    MetricSpec("turnbuckle_bus_reconnects_total", "counter", "times that the connection came back"),
    MetricSpec("turnbuckle_bus_published_facts_total", "counter", "facts acknowledged by JetStream"),
    MetricSpec("turnbuckle_bus_dropped_facts_total", "counter", "facts lost because the outbox was full"),
    MetricSpec("turnbuckle_bus_pending_facts", "gauge", "facts that wait for JetStream"),
    MetricSpec("turnbuckle_telemetry_exported_spans_total", "counter", "spans that the collector took"),
    MetricSpec("turnbuckle_telemetry_lost_spans_total", "counter", "spans lost on the way to a collector", ("reason",)),
    MetricSpec("turnbuckle_telemetry_failed_metric_exports_total", "counter", "metric exports that were not taken"),
    MetricSpec("turnbuckle_agent_containers", "gauge", "containers that are sampled"),
    MetricSpec("turnbuckle_agent_ticks_total", "counter", "samples of all containers"),
    MetricSpec("turnbuckle_agent_late_ticks_total", "counter", "periods that were skipped because the agent was late"),
    MetricSpec("turnbuckle_agent_quota_writes_total", "counter", "CPU quotas written to the kernel"),
    MetricSpec("turnbuckle_agent_memory_writes_total", "counter", "memory limits written to the kernel"),
    MetricSpec("turnbuckle_agent_no_op_writes_total", "counter", "writes of a value that the kernel held already"),
    MetricSpec("turnbuckle_agent_refused_writes_total", "counter", "writes that the kernel refused"),
    MetricSpec("turnbuckle_agent_refused_orders_total", "counter", "orders beyond what is announced, in part at least"),
    MetricSpec("turnbuckle_agent_failed_rows_total", "counter", "rows of limit orders that were not carried out"),
    MetricSpec(
        "turnbuckle_agent_node_refusals_total", "counter", "raises of memory that the node had no room for, in part"
    ),
    MetricSpec("turnbuckle_agent_node_allocatable_bytes", "gauge", "what memory limits and reserves may add up to"),
    MetricSpec("turnbuckle_agent_node_committed_bytes", "gauge", "what memory limits and reserves add up to"),
    MetricSpec("turnbuckle_agent_guarded_containers", "gauge", "containers whose memory is guarded"),
    MetricSpec("turnbuckle_agent_reserve_bytes", "gauge", "memory that may be granted without asking"),
    MetricSpec("turnbuckle_agent_memory_grants_total", "counter", "limits raised out of the reserve"),
    MetricSpec("turnbuckle_agent_memory_granted_bytes_total", "counter", "by how much they were raised"),
    MetricSpec("turnbuckle_agent_memory_traps_total", "counter", "times that tasks had to wait at a limit"),
    MetricSpec("turnbuckle_agent_memory_requests_total", "counter", "requests for memory sent to the allocator"),
    MetricSpec("turnbuckle_agent_memory_refusals_total", "counter", "shortages that nobody could or would help in"),
    MetricSpec("turnbuckle_agent_memory_releases_total", "counter", "waits that were ended by the kernel's kill"),
    MetricSpec("turnbuckle_agent_memory_refused_cuts_total", "counter", "lower limits that would have been dangerous"),
    MetricSpec("turnbuckle_agent_memory_polls_total", "counter", "close looks at containers that grow fast or wait"),
    MetricSpec("turnbuckle_agent_memory_limit_hits_total", "counter", "limit hits after which calls can have failed"),
    MetricSpec("turnbuckle_agent_oom_kills_total", "counter", "kills by the kernel in managed containers"),
    MetricSpec("turnbuckle_agent_drifts_total", "counter", "limits or guards that other hands have changed"),
    MetricSpec("turnbuckle_allocator_applications", "gauge", "applications that are announced"),
    MetricSpec("turnbuckle_allocator_owned_applications", "gauge", "applications that this replica decides for"),
    MetricSpec("turnbuckle_allocator_containers", "gauge", "containers that are heard of, admitted or not"),
    MetricSpec("turnbuckle_allocator_refused_containers", "gauge", "containers that found no room"),
    MetricSpec("turnbuckle_allocator_steps_total", "counter", "decision steps"),
    MetricSpec("turnbuckle_allocator_changes_total", "counter", "limits changed by decisions"),
    MetricSpec("turnbuckle_allocator_orders_total", "counter", "orders sent to agents"),
    MetricSpec("turnbuckle_allocator_lost_orders_total", "counter", "orders without a usable reply"),
    MetricSpec("turnbuckle_allocator_memory_requests_total", "counter", "requests to refill a node's reserve"),
    MetricSpec("turnbuckle_allocator_refused_memory_requests_total", "counter", "such requests with nothing left"),
    MetricSpec("turnbuckle_allocator_takeovers_total", "counter", "applications taken over, new ones included"),
    MetricSpec("turnbuckle_allocator_unheard_nodes", "gauge", "nodes to be heard before more is handed out"),
    MetricSpec("turnbuckle_allocator_lost_leases_total", "counter", "applications taken away by another replica"),
    MetricSpec("turnbuckle_allocator_failed_renewals_total", "counter", "own heartbeats that could not be stored"),
    MetricSpec("turnbuckle_allocator_stale_batches_total", "counter", "batches that came too late to act upon"),
    MetricSpec("turnbuckle_allocator_overtaken_batches_total", "counter", "batches older than what was known"),
    MetricSpec("turnbuckle_allocator_misplaced_messages_total", "counter", "batches expected, another type came"),
    MetricSpec("turnbuckle_allocator_absurd_rows_total", "counter", "rows with values that no kernel reports"),
    MetricSpec(
        "turnbuckle_reconciler_rules", "gauge", "filters that should be there, are there, are others'", ("set",)
    ),
    MetricSpec("turnbuckle_reconciler_offloaded_rules", "gauge", "right filters that the NIC holds"),
    MetricSpec("turnbuckle_reconciler_passes_total", "counter", "looks at everything, with what followed"),
    MetricSpec("turnbuckle_reconciler_glances_total", "counter", "looks at links and routes only"),
    MetricSpec("turnbuckle_reconciler_failed_passes_total", "counter", "looks that brought nothing: the kernel failed"),
    MetricSpec("turnbuckle_reconciler_writes_total", "counter", "writes that the kernel took"),
    MetricSpec("turnbuckle_reconciler_refused_writes_total", "counter", "writes that the kernel refused"),
    MetricSpec("turnbuckle_reconciler_overruns_total", "counter", "times that kernel events were lost (ENOBUFS)"),
    MetricSpec("turnbuckle_reconciler_last_pass_seconds", "gauge", "duration of the last look at everything"),
    MetricSpec("turnbuckle_reconciler_last_lag_seconds", "gauge", "from the first event to rules that are verified"),
    MetricSpec("turnbuckle_reconciler_problems", "gauge", "what keeps rules from being right, by kind", ("kind",)),
    MetricSpec("turnbuckle_reconciler_waiting_operations", "gauge", "audited writes that wait for the bus"),
    MetricSpec("turnbuckle_reconciler_paths", "gauge", "destinations whose next hops are compared"),
    MetricSpec("turnbuckle_reconciler_path_disagreements", "gauge", "of these, where kernel, FRR and BFD disagree"),
    MetricSpec("turnbuckle_reconciler_path_alarms_total", "counter", "disagreements that lasted"),
    MetricSpec("turnbuckle_reconciler_frr_answers_info", "gauge", "1 while FRR answers, else 0"),
    MetricSpec(
        "turnbuckle_reconciler_emptied_overrides_total",
        "counter",
        "overrides deleted, their fast path being silent",
    ),
    MetricSpec("turnbuckle_fast_path_overrides_total", "counter", "routes written ahead of FRR"),
    MetricSpec("turnbuckle_fast_path_releases_total", "counter", "routes handed back to FRR"),
    MetricSpec("turnbuckle_fast_path_faults_total", "counter", "faults of uplinks that were answered"),
    MetricSpec("turnbuckle_fast_path_refused_writes_total", "counter", "overrides that the kernel refused"),
    MetricSpec("turnbuckle_fast_path_stalls_total", "counter", "times that the hot loop stood still for long"),
    MetricSpec("turnbuckle_fast_path_held_overrides", "gauge", "destinations that are overridden"),
    MetricSpec("turnbuckle_fast_path_routes", "gauge", "destinations that are looked after"),
    MetricSpec("turnbuckle_fast_path_blind_info", "gauge", "1 while an input is lost, else 0"),
    MetricSpec(
        "turnbuckle_fast_path_admin_down_sessions", "gauge", "uplinks whose BFD session was closed administratively"
    ),
    MetricSpec("turnbuckle_fast_path_damped_info", "gauge", "1 while faults are left to FRR alone, else 0"),
    MetricSpec("turnbuckle_fast_path_peer_messages_total", "counter", "datagrams between hosts", ("kind",)),
    MetricSpec("turnbuckle_collector_cloud_configured_info", "gauge", "1 where a cloud is looked after, else 0"),
    MetricSpec("turnbuckle_collector_looks_total", "counter", "looks at the cloud's jobs"),
    MetricSpec("turnbuckle_collector_failed_looks_total", "counter", "looks that brought nothing"),
    MetricSpec("turnbuckle_collector_unfinished_jobs", "gauge", "cloud jobs that wait or run"),
    MetricSpec("turnbuckle_collector_unsettled_jobs", "gauge", "finished jobs whose cost is not believed yet"),
    MetricSpec("turnbuckle_collector_problem_jobs", "gauge", "what keeps finished jobs from being recorded"),
    MetricSpec("turnbuckle_collector_journal_records", "gauge", "records on disk"),
    MetricSpec("turnbuckle_collector_unpublished_records", "gauge", "of these, not known to be on the bus"),
    MetricSpec("turnbuckle_collector_published_records_total", "counter", "records that this process published"),
    MetricSpec(
        "turnbuckle_collector_already_stored_records_total", "counter", "records that the bus was found to have already"
    ),
    MetricSpec("turnbuckle_advisor_records", "gauge", "jobs that are known"),
    MetricSpec("turnbuckle_advisor_local_runs", "gauge", "local runs that are known"),
    MetricSpec("turnbuckle_advisor_rejected_records_total", "counter", "records with values that nothing can have"),
    MetricSpec("turnbuckle_advisor_answered_questions_total", "counter", "questions that were answered"),
    MetricSpec("turnbuckle_advisor_refused_questions_total", "counter", "questions that could not be answered"),
    MetricSpec("turnbuckle_advisor_trainings_total", "counter", "models that this replica has trained"),
    MetricSpec("turnbuckle_advisor_failed_trainings_total", "counter", "trainings that brought no model"),
    MetricSpec("turnbuckle_advisor_unusable_models_total", "counter", "stored models that could not be used"),
)
_SPANS: Final = (
    SpanSpec("bus.request", "a command sent, until its reply", _MESSAGE, "client", "request"),
    SpanSpec("bus.respond", "a command answered", _MESSAGE, "server", "respond"),
    SpanSpec(
        "bus.publish", "a fact, until a stream holds it", (*_MESSAGE, "messaging.message.id"), "producer", "publish"
    ),
    SpanSpec("bus.handle_fact", "a stored fact handled", _MESSAGE, "consumer", "process"),
    SpanSpec(
        "agent.handle_oom",
        "memory near or at its limit: what was found, done and asked for",
        (
            *("turnbuckle.app", "turnbuckle.node", "turnbuckle.container", "turnbuckle.oom.kinds"),
            *("turnbuckle.memory.usage_bytes", "turnbuckle.memory.limit_bytes", "turnbuckle.memory.granted_bytes"),
            "turnbuckle.memory.wanted_bytes",
        ),
    ),
    SpanSpec(
        "agent.apply_limits",
        "an order that moves memory carried out, until every limit in it is settled",
        (
            *("turnbuckle.node", "turnbuckle.epoch", "turnbuckle.order_seq", "turnbuckle.rows"),
            *("turnbuckle.rows_failed", "turnbuckle.refusal"),
        ),
    ),
    SpanSpec(
        "allocator.decide",
        "a step that changed limits",
        ("turnbuckle.batches", "turnbuckle.changes", "turnbuckle.orders"),
    ),
    SpanSpec(
        "allocator.grant_memory",
        "a node's reserve refilled, or why not",
        (
            *("turnbuckle.app", "turnbuckle.node", "turnbuckle.container", "turnbuckle.orders", "turnbuckle.refusal"),
            *("turnbuckle.memory.wanted_bytes", "turnbuckle.memory.granted_bytes"),
            "turnbuckle.memory.reclaiming_bytes",
        ),
    ),
    SpanSpec(
        "reconciler.reconcile",
        "from the first kernel event of a burst to rules that are verified",
        (
            *("turnbuckle.causes", "turnbuckle.rules.written", "turnbuckle.rules.refused"),
            *("turnbuckle.rules.desired", "turnbuckle.rules.right", "turnbuckle.rules.verified"),
        ),
    ),
    SpanSpec("collector.record", "finished jobs seen in the cloud and written down", ("turnbuckle.jobs",)),
    SpanSpec("collector.publish", "records handed to the bus", ("turnbuckle.records",)),
    SpanSpec("advisor.predict", "configurations predicted", ("turnbuckle.model", "turnbuckle.configurations")),
    SpanSpec("advisor.rank", "configurations ranked", ("turnbuckle.model", "turnbuckle.configurations")),
    SpanSpec("advisor.explain", "one prediction explained", ("turnbuckle.model", "turnbuckle.configurations")),
    SpanSpec("advisor.train", "a model trained", ("turnbuckle.model", "turnbuckle.records")),
    SpanSpec("cli.advise", "`turnbuckle advise`: the question and its answer", ("turnbuckle.job",)),
)

EVERY_SPAN: Final = ("error.type",)
"""Attributes that any span may have."""
ATTRIBUTES: Final[dict[str, AttributeSpec]] = {attribute.name: attribute for attribute in _ATTRIBUTES}
METRICS: Final[dict[str, MetricSpec]] = {metric.name: metric for metric in _METRICS}
SPANS: Final[dict[str, SpanSpec]] = {span.name: span for span in _SPANS}

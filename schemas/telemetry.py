"""Names of every metric, span and attribute that a service may emit; the runtime refuses any other.

Metrics follow Prometheus: ``turnbuckle_<noun>_<unit>``, base units, ``_total`` for counters, few label values (never a
job, container or concrete subject); `MetricSpec.otel_name` is the same metric under OpenTelemetry's naming. Spans are
for decisions and commands: one costs 20-46 us, so none per sample. Attributes follow the semantic conventions if there
is one (``messaging.*``, ``error.type``); others begin with ``turnbuckle.``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

_UNITS: Final = (("_bytes", "By"), ("_seconds", "s"))
"""Endings of metric names, and their units in OpenTelemetry (UCUM)."""
_PRODUCT: Final = "_byte_seconds"
"""An annotation in OpenTelemetry: its exporters for Prometheus put no name to products of units (By.s)."""
DURATION_BUCKETS_S: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Upper bounds of a histogram's buckets: half a millisecond is a step of few containers, a period has 100 ms."""


@dataclass(frozen=True, slots=True)
class AttributeSpec:
    """An attribute of a span or a label of a metric."""

    name: str
    description: str


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """A counter or gauge, which is read on demand, or a histogram of durations (`DURATION_BUCKETS_S`)."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    description: str
    labels: tuple[str, ...] = ()

    @property
    def otel_unit(self) -> str:
        """UCUM unit: ``By``, ``s``; else what is counted, in the singular: ``{write}``, ``{core}``; of flags none."""
        if self._stem.endswith(_PRODUCT):
            return "{byte_second}"
        counted = self._stem.rpartition("_")[2]
        if counted == "info":
            return ""  # "1" would be a ratio to exporters for Prometheus
        return next((unit for ending, unit in _UNITS if self._stem.endswith(ending)), f"{{{_singular(counted)}}}")

    @property
    def otel_name(self) -> str:
        """``turnbuckle.agent.samples``: what OpenTelemetry's exporters for Prometheus turn into `name` again."""
        stem = self._stem
        endings = () if stem.endswith(_PRODUCT) else _UNITS
        ending = next((ending for ending, _ in endings if stem.endswith(ending)), "")
        return ".".join(stem.removesuffix(ending).split("_", 2))

    @property
    def _stem(self) -> str:
        return self.name.removesuffix("_total")


def _singular(noun: str) -> str:
    return re.sub(r"(?<=ch|ss)es$|s$", "", re.sub(r"ies$", "y", noun))


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
        """The exported name: of messaging spans operation and destination template, by the semantic conventions."""
        return f"{self.operation} {destination}".rstrip() if self.operation else self.name


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
    MetricSpec("turnbuckle_agent_containers", "gauge", "containers that are sampled"),
    MetricSpec("turnbuckle_agent_samples_total", "counter", "samples of all containers"),
    MetricSpec(
        "turnbuckle_agent_skipped_samples_total", "counter", "sampling periods skipped because the agent was late"
    ),
    MetricSpec("turnbuckle_agent_quota_writes_total", "counter", "CPU quotas written to the kernel"),
    MetricSpec("turnbuckle_agent_memory_writes_total", "counter", "memory limits written to the kernel"),
    MetricSpec("turnbuckle_agent_no_op_writes_total", "counter", "writes of a value that was in the kernel already"),
    MetricSpec("turnbuckle_agent_refused_writes_total", "counter", "writes that the kernel refused"),
    MetricSpec(
        "turnbuckle_agent_refused_limits",
        "gauge",
        "limits of containers that the kernel refuses at present, CPU and memory",
    ),
    MetricSpec(
        "turnbuckle_agent_rejected_limit_updates_total",
        "counter",
        "limit updates that exceed the announced AppSpec, wholly or in part",
    ),
    MetricSpec(
        "turnbuckle_agent_failed_limit_update_rows_total", "counter", "rows of limit updates that could not be applied"
    ),
    MetricSpec(
        "turnbuckle_agent_node_budget_rejections_total",
        "counter",
        "memory increases beyond the node's memory budget, wholly or in part",
    ),
    MetricSpec(
        "turnbuckle_agent_node_allocatable_bytes",
        "gauge",
        "allocatable memory: upper bound for what is committed",
    ),
    MetricSpec(
        "turnbuckle_agent_node_committed_bytes",
        "gauge",
        "memory limits of enforced containers, reserves, and what other containers use",
    ),
    MetricSpec(
        "turnbuckle_agent_node_cpu_budget_rejections_total",
        "counter",
        "CPU limit increases beyond the node's CPU budget, wholly or in part",
    ),
    MetricSpec(
        "turnbuckle_agent_node_allocatable_cores", "gauge", "upper bound for the sum of CPU limits; 0: there is none"
    ),
    MetricSpec("turnbuckle_agent_node_committed_cores", "gauge", "sum of CPU limits"),
    MetricSpec(
        "turnbuckle_agent_guarded_containers",
        "gauge",
        "containers whose memory limit the agent raises before the OOM killer acts",
    ),
    MetricSpec(
        "turnbuckle_agent_reserve_bytes", "gauge", "memory that the agent may grant without a request to the allocator"
    ),
    MetricSpec("turnbuckle_agent_memory_grants_total", "counter", "memory limits raised out of the node's reserve"),
    MetricSpec("turnbuckle_agent_memory_granted_bytes_total", "counter", "sum of these increases"),
    MetricSpec(
        "turnbuckle_agent_oom_waits_total",
        "counter",
        "times that tasks were blocked at their memory limit instead of killed",
    ),
    MetricSpec("turnbuckle_agent_memory_requests_total", "counter", "requests for memory sent to the allocator"),
    MetricSpec(
        "turnbuckle_agent_memory_grants_denied_total",
        "counter",
        "memory shortages without a grant: denied by the allocator or the node, or no reply",
    ),
    MetricSpec(
        "turnbuckle_agent_oom_killer_enabled_total", "counter", "waits that ended with the OOM killer enabled again"
    ),
    MetricSpec(
        "turnbuckle_agent_memory_rejected_decreases_total",
        "counter",
        "memory limit decreases rejected because usage was too close",
    ),
    MetricSpec(
        "turnbuckle_agent_memory_polls_total", "counter", "extra memory readings of containers that grow fast or wait"
    ),
    MetricSpec(
        "turnbuckle_agent_memory_limit_hits_total",
        "counter",
        "limit hits after which system calls can have failed (ENOMEM)",
    ),
    MetricSpec("turnbuckle_agent_oom_kills_total", "counter", "OOM kills in managed containers"),
    MetricSpec(
        "turnbuckle_agent_app_oom_waits_total",
        "counter",
        "times that tasks of an application were blocked at their memory limit instead of killed",
        ("app",),
    ),
    MetricSpec(
        "turnbuckle_agent_app_memory_grants_denied_total",
        "counter",
        "memory shortages of an application without a grant",
        ("app",),
    ),
    MetricSpec(
        "turnbuckle_agent_memory_grant_seconds", "histogram", "from memory near or at its limit to the raised limit"
    ),
    MetricSpec(
        "turnbuckle_agent_limit_update_seconds",
        "histogram",
        "from a limit update's arrival until every limit in it is applied; decreases wait for their period's end",
    ),
    MetricSpec("turnbuckle_agent_drifts_total", "counter", "limits or OOM settings that were modified externally"),
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
        "turnbuckle_allocator_failed_renewals_total", "counter", "heartbeats of this replica that could not be stored"
    ),
    MetricSpec("turnbuckle_allocator_stale_batches_total", "counter", "batches discarded as stale"),
    MetricSpec(
        "turnbuckle_allocator_out_of_order_batches_total", "counter", "batches older than the newest one of the node"
    ),
    MetricSpec(
        "turnbuckle_allocator_subject_mismatch_total", "counter", "messages of another type than their subject's"
    ),
    MetricSpec("turnbuckle_allocator_invalid_samples_total", "counter", "samples with values that no kernel reports"),
    MetricSpec(
        "turnbuckle_allocator_step_seconds", "histogram", "an allocation step: from batches to limit updates on the bus"
    ),
    *(
        MetricSpec(f"turnbuckle_app_{name}", kind, description, ("app",))
        for name, kind, description in _OF_AN_APPLICATION
    ),
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
    MetricSpec("turnbuckle_reconciler_last_lag_seconds", "gauge", "from the first event to rules that are verified"),
    MetricSpec("turnbuckle_reconciler_problems", "gauge", "conditions that keep rules from being in sync", ("kind",)),
    MetricSpec("turnbuckle_reconciler_unpublished_operations", "gauge", "operations whose event is not published yet"),
    MetricSpec("turnbuckle_reconciler_paths", "gauge", "destinations whose next hops are compared"),
    MetricSpec(
        "turnbuckle_reconciler_path_disagreements", "gauge", "of these, destinations where kernel, FRR and BFD disagree"
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
    MetricSpec("turnbuckle_fast_path_overrides_total", "counter", "route overrides written ahead of FRR"),
    MetricSpec(
        "turnbuckle_fast_path_removed_overrides_total", "counter", "route overrides removed, FRR's route in force again"
    ),
    MetricSpec("turnbuckle_fast_path_faults_total", "counter", "uplink failures that were handled"),
    MetricSpec("turnbuckle_fast_path_refused_writes_total", "counter", "overrides that the kernel refused"),
    MetricSpec("turnbuckle_fast_path_loop_stalls_total", "counter", "stalls of the data-plane process's loop"),
    MetricSpec("turnbuckle_fast_path_active_overrides", "gauge", "destinations with an override"),
    MetricSpec("turnbuckle_fast_path_routes", "gauge", "destinations that are protected"),
    MetricSpec("turnbuckle_fast_path_input_lost_info", "gauge", "1 while an input is lost, else 0"),
    MetricSpec(
        "turnbuckle_fast_path_admin_down_sessions", "gauge", "uplinks whose BFD session is administratively down"
    ),
    MetricSpec("turnbuckle_fast_path_flap_damped_info", "gauge", "1 while flap damping suspends overrides, else 0"),
    MetricSpec("turnbuckle_fast_path_peer_messages_total", "counter", "datagrams between hosts", ("kind",)),
    MetricSpec("turnbuckle_collector_cloud_configured_info", "gauge", "1 where a cloud is configured, else 0"),
    MetricSpec("turnbuckle_collector_cloud_polls_total", "counter", "polls of the cloud's jobs"),
    MetricSpec("turnbuckle_collector_cloud_poll_errors_total", "counter", "polls that failed"),
    MetricSpec("turnbuckle_collector_unfinished_jobs", "gauge", "cloud jobs that are pending or running"),
    MetricSpec("turnbuckle_collector_cost_pending_jobs", "gauge", "finished jobs whose billed cost is not final yet"),
    MetricSpec("turnbuckle_collector_scheduled_jobs_total", "counter", "jobs of the scheduler that were recorded"),
    MetricSpec("turnbuckle_collector_problem_jobs", "gauge", "finished jobs that cannot be recorded"),
    MetricSpec("turnbuckle_collector_journal_records", "gauge", "records in the journal"),
    MetricSpec("turnbuckle_collector_unpublished_records", "gauge", "of these, not known to be published"),
    MetricSpec("turnbuckle_collector_published_records_total", "counter", "records that this process published"),
    MetricSpec("turnbuckle_collector_already_stored_records_total", "counter", "records found in the stream already"),
    MetricSpec("turnbuckle_advisor_records", "gauge", "job records in the training set"),
    MetricSpec("turnbuckle_advisor_local_runs", "gauge", "local run profiles in the training set"),
    MetricSpec("turnbuckle_advisor_rejected_records_total", "counter", "records with invalid values"),
    MetricSpec("turnbuckle_advisor_answered_queries_total", "counter", "queries answered"),
    MetricSpec("turnbuckle_advisor_rejected_queries_total", "counter", "queries answered with an error"),
    MetricSpec("turnbuckle_advisor_trainings_total", "counter", "models trained by this replica"),
    MetricSpec("turnbuckle_advisor_failed_trainings_total", "counter", "trainings that failed"),
    MetricSpec("turnbuckle_advisor_unusable_models_total", "counter", "stored models that could not be loaded"),
    MetricSpec("turnbuckle_kubeoperator_reconciles_total", "counter", "reconciles of objects since the start"),
    MetricSpec("turnbuckle_kubeoperator_announcements_total", "counter", "applications announced or withdrawn"),
    MetricSpec("turnbuckle_kubeoperator_applications", "gauge", "objects that declare an application"),
    MetricSpec("turnbuckle_kubeoperator_refused_applications", "gauge", "objects whose declaration was refused"),
    MetricSpec("turnbuckle_planner_layer_profiles", "gauge", "layer profiles that are known"),
    MetricSpec("turnbuckle_planner_measured_runs", "gauge", "measured runs that are known, which correct plans"),
    MetricSpec("turnbuckle_planner_requests_total", "counter", "requests to plan", ("outcome",)),
    MetricSpec("turnbuckle_planner_waiting_requests", "gauge", "requests that wait for others to be planned"),
    MetricSpec("turnbuckle_planner_planning_seconds", "histogram", "how long planning took, without waiting"),
    MetricSpec("turnbuckle_aggregator_leading_info", "gauge", "1 while this instance leads, else 0"),
    MetricSpec("turnbuckle_aggregator_jobs", "gauge", "training jobs that are aggregated"),
    MetricSpec("turnbuckle_aggregator_running_aggregators", "gauge", "aggregators that run"),
    MetricSpec("turnbuckle_aggregator_requests_total", "counter", "requests to place or end a job", ("outcome",)),
    MetricSpec("turnbuckle_aggregator_moves_total", "counter", "jobs moved from one aggregator to another"),
    MetricSpec("turnbuckle_aggregator_lost_jobs_total", "counter", "jobs whose aggregator has died or was ended"),
    MetricSpec("turnbuckle_memory_offered_bytes", "gauge", "memory that other hosts may still take here"),
    MetricSpec("turnbuckle_memory_held_bytes", "gauge", "slabs of other hosts held here, in bytes"),
    MetricSpec("turnbuckle_memory_evictions_total", "counter", "slabs of other hosts whose memory was wanted back"),
    MetricSpec("turnbuckle_memory_slabs", "gauge", "slabs of this host's swap devices", ("state",)),
    MetricSpec("turnbuckle_memory_requests_total", "counter", "requests of other hosts for a slab", ("outcome",)),
    MetricSpec("turnbuckle_memory_changes_total", "counter", "changes of this host's slabs", ("change",)),
    MetricSpec("turnbuckle_memory_not_mapped_total", "counter", "tries to map a slab that failed", ("cause",)),
    MetricSpec("turnbuckle_memory_failed_steps_total", "counter", "steps of the mapper that failed, tried again"),
    MetricSpec("turnbuckle_scheduler_leading_info", "gauge", "1 while this replica leads, else 0"),
    MetricSpec("turnbuckle_scheduler_jobs", "gauge", "jobs that have not ended", ("phase",)),
    MetricSpec("turnbuckle_scheduler_slots", "gauge", "slots of all known nodes"),
    MetricSpec("turnbuckle_scheduler_taken_slots", "gauge", "slots that jobs hold"),
    MetricSpec("turnbuckle_scheduler_silent_nodes", "gauge", "nodes whose runner's registration has expired"),
    MetricSpec("turnbuckle_scheduler_decisions_total", "counter", "looks at the order of the jobs"),
    MetricSpec("turnbuckle_scheduler_decision_seconds", "histogram", "duration of a look at the order of the jobs"),
    MetricSpec("turnbuckle_scheduler_appended_entries_total", "counter", "entries appended to the log by this replica"),
    MetricSpec("turnbuckle_scheduler_append_conflicts_total", "counter", "appends refused: another replica was faster"),
    MetricSpec("turnbuckle_scheduler_log_bytes", "gauge", "size of the log of the jobs"),
    MetricSpec("turnbuckle_scheduler_snapshot_sequence", "gauge", "log entry of the newest known snapshot; 0: none"),
    MetricSpec("turnbuckle_scheduler_snapshot_age_entries", "gauge", "log entries that are newer than that snapshot"),
    MetricSpec("turnbuckle_scheduler_failed_snapshots_total", "counter", "snapshots that could not be stored or used"),
    MetricSpec("turnbuckle_scheduler_orders_total", "counter", "orders sent to runners"),
    MetricSpec("turnbuckle_scheduler_unanswered_orders_total", "counter", "orders that no runner answered in time"),
    MetricSpec(
        "turnbuckle_scheduler_ignored_work_events_total",
        "counter",
        "workers' events not taken over",
        ("reason",),
    ),
    MetricSpec(
        "turnbuckle_scheduler_iteration_samples_total",
        "counter",
        "samples of jobs' iterations: taken, old, forged, or garbage",
        ("result",),
    ),
    MetricSpec("turnbuckle_runner_slots", "gauge", "slots of this node"),
    MetricSpec("turnbuckle_runner_taken_slots", "gauge", "of these, held by workers that have not ended"),
    MetricSpec("turnbuckle_runner_workers", "gauge", "workers of training jobs that have not ended", ("state",)),
    MetricSpec("turnbuckle_runner_starts_total", "counter", "workers started"),
    MetricSpec("turnbuckle_runner_kills_total", "counter", "workers killed because they had not stopped in time"),
    MetricSpec("turnbuckle_runner_unsaved_workers_total", "counter", "workers that stopped without saving their state"),
    MetricSpec("turnbuckle_runner_fenced_workers_total", "counter", "workers stopped after too long without the bus"),
    MetricSpec("turnbuckle_runner_mltcp_loaded", "gauge", "1: workers can have the congestion control mltcp"),
    MetricSpec("turnbuckle_runner_mltcp_flows_total", "counter", "connections of which MLTCP has learned an iteration"),
    MetricSpec("turnbuckle_runner_mltcp_iterations_total", "counter", "iterations of connections that MLTCP has seen"),
    MetricSpec(
        "turnbuckle_runner_mltcp_lost_total", "counter", "of these, those that were overwritten before they were read"
    ),
    MetricSpec("turnbuckle_runner_paced_jobs", "gauge", "training jobs that are paced"),
    MetricSpec("turnbuckle_runner_pauses_total", "counter", "pauses of training jobs between two iterations"),
    MetricSpec("turnbuckle_runner_paused_seconds_total", "counter", "of training jobs, between two iterations"),
    MetricSpec("turnbuckle_runner_refused_pauses_total", "counter", "pauses that a job's timeout does not allow"),
    MetricSpec(
        "turnbuckle_runner_phase_error_seconds",
        "gauge",
        "how much later (below 0: earlier) than wanted a paced job began to send last",
        ("job",),
    ),
    MetricSpec("turnbuckle_slurm_nodes", "gauge", "nodes of the Slurm cluster"),
    MetricSpec("turnbuckle_slurm_jobs", "gauge", "training jobs in Slurm with a worker that has not ended"),
    MetricSpec("turnbuckle_slurm_orders_total", "counter", "orders of the scheduler"),
    MetricSpec("turnbuckle_slurm_refused_orders_total", "counter", "of these, refused"),
    MetricSpec("turnbuckle_slurm_failed_commands_total", "counter", "commands of Slurm that failed"),
    MetricSpec("turnbuckle_slurm_command_seconds", "histogram", "how long commands of Slurm took"),
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
    SpanSpec(
        "agent.handle_oom",
        "memory near or at its limit: measurement, grant or request",
        (
            *("turnbuckle.app", "turnbuckle.node", "turnbuckle.container", "turnbuckle.oom.kinds"),
            *("turnbuckle.memory.usage_bytes", "turnbuckle.memory.limit_bytes", "turnbuckle.memory.granted_bytes"),
            "turnbuckle.memory.wanted_bytes",
        ),
    ),
    SpanSpec(
        "agent.apply_limits",
        "a limit update that changes memory, until every limit in it is applied",
        (
            *("turnbuckle.node", "turnbuckle.epoch", "turnbuckle.limit_update_seq", "turnbuckle.rows"),
            *("turnbuckle.rows_failed", "turnbuckle.rejection", "turnbuckle.apps"),
        ),
    ),
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
    SpanSpec(
        "reconciler.reconcile",
        "from the first kernel event of a burst to rules that are verified",
        (
            *("turnbuckle.causes", "turnbuckle.rules.written", "turnbuckle.rules.refused"),
            *("turnbuckle.rules.desired", "turnbuckle.rules.in_sync", "turnbuckle.rules.verified"),
        ),
    ),
    SpanSpec(
        "collector.record",
        "jobs that have ended, in a cloud or on the cluster, written to the journal",
        ("turnbuckle.jobs",),
    ),
    SpanSpec("collector.publish", "records handed to the bus", ("turnbuckle.records",)),
    SpanSpec("advisor.predict", "configurations predicted", ("turnbuckle.model", "turnbuckle.configurations")),
    SpanSpec("advisor.rank", "configurations ranked", ("turnbuckle.model", "turnbuckle.configurations")),
    SpanSpec("advisor.explain", "one prediction explained", ("turnbuckle.model", "turnbuckle.configurations")),
    SpanSpec("advisor.train", "a model trained", ("turnbuckle.model", "turnbuckle.records")),
    SpanSpec(
        "planner.plan",
        "a training job divided over devices, or why that cannot be",
        ("turnbuckle.job", "turnbuckle.devices", "turnbuckle.batch"),
    ),
    SpanSpec("aggregator.place", "a training job's ranges placed on an aggregator", ("turnbuckle.job",)),
    SpanSpec("aggregator.move", "a training job's ranges moved to another aggregator", ("turnbuckle.job",)),
    SpanSpec("memory.map", "a slab of this host's swap device mapped to remote memory", ("turnbuckle.node",)),
    SpanSpec("memory.take", "memory of this host given to another one for a slab", ("turnbuckle.node",)),
    SpanSpec(
        "scheduler.decide",
        "a look at the order of the jobs",
        ("turnbuckle.starts", "turnbuckle.stops", "turnbuckle.live_jobs"),
    ),
    SpanSpec(
        "runner.order",
        "an order of the scheduler about a job's workers on one node",
        ("turnbuckle.job", "turnbuckle.node", "turnbuckle.action"),
    ),
    SpanSpec(
        "runner.worker", "a training job's worker, from its start to its end", ("turnbuckle.job", "turnbuckle.node")
    ),
    SpanSpec("cli.advise", "`turnbuckle advise`: the query and its reply", ("turnbuckle.job",)),
)

EVERY_SPAN: Final = ("error.type",)
"""Attributes that any span may have."""
ATTRIBUTES: Final[dict[str, AttributeSpec]] = {attribute.name: attribute for attribute in _ATTRIBUTES}
METRICS: Final[dict[str, MetricSpec]] = {metric.name: metric for metric in _METRICS}
SPANS: Final[dict[str, SpanSpec]] = {span.name: span for span in _SPANS}

"""Containers of one host: samples, limits, memory."""

from __future__ import annotations

from typing import Final

from schemas.cfs import CfsBatch
from schemas.containers import ContainerEvent
from schemas.limits import LimitReply, LimitsApplied, LimitUpdate
from schemas.oom import OomEvent
from schemas.service import BucketUse, Channel, Delivery, Service
from schemas.streams import APPS, NODES, POD_SELECTORS
from schemas.subjects import CFS, CONTAINER_EVENTS, LIMIT_UPDATES, LIMITS_APPLIED, OOM_EVENTS
from schemas.telemetry_specs import AlertSpec, MetricSpec, SpanSpec

SERVICE: Final = Service(
    name="agent",
    per_host=True,
    channels=(
        Channel(
            CFS,
            CfsBatch,
            Delivery.CORE,
            ("agent",),
            ("allocator", "cli"),
            "CPU and memory of one application's containers on one node in one period",
        ),
        Channel(
            LIMITS_APPLIED,
            LimitsApplied,
            Delivery.CORE,
            ("agent",),
            ("cli",),
            "limits in force after a limit update, and which of its rows were not applied",
        ),
        Channel(
            CONTAINER_EVENTS,
            ContainerEvent,
            Delivery.JETSTREAM,
            ("agent", "allocator"),
            ("cli", "kubeoperator"),
            "a container started, exited, was released, rejected or refused, or its limits were modified externally",
        ),
        Channel(
            LIMIT_UPDATES,
            LimitUpdate,
            Delivery.REQUEST,
            ("allocator",),
            ("agent",),
            "new limits for containers of one node; with no rows a fence; reserves per application",
            reply=LimitReply,
        ),
        Channel(
            OOM_EVENTS,
            OomEvent,
            Delivery.JETSTREAM,
            ("agent",),
            ("cli", "kubeoperator"),
            "a container's memory near or at its limit: grants, denied grants, OOM waits, kills",
        ),
    ),
    buckets=(
        BucketUse(APPS, reads=True),
        BucketUse(NODES, own_key=True, reads=True),
        BucketUse(POD_SELECTORS, reads=True),
    ),
    dashboard="Agent: containers, writes, memory",
    metrics=(
        MetricSpec("turnbuckle_agent_containers", "gauge", "containers that are sampled"),
        MetricSpec("turnbuckle_agent_samples_total", "counter", "samples of all containers"),
        MetricSpec(
            "turnbuckle_agent_skipped_samples_total", "counter", "sampling periods skipped because the agent was late"
        ),
        MetricSpec("turnbuckle_agent_quota_writes_total", "counter", "CPU quotas written to the kernel"),
        MetricSpec("turnbuckle_agent_memory_writes_total", "counter", "memory limits written to the kernel"),
        MetricSpec(
            "turnbuckle_agent_no_op_writes_total", "counter", "writes of a value that was in the kernel already"
        ),
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
            "turnbuckle_agent_failed_limit_update_rows_total",
            "counter",
            "rows of limit updates that could not be applied",
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
            "turnbuckle_agent_node_allocatable_cores",
            "gauge",
            "upper bound for the sum of CPU limits; 0: there is none",
        ),
        MetricSpec("turnbuckle_agent_node_committed_cores", "gauge", "sum of CPU limits"),
        MetricSpec(
            "turnbuckle_agent_guarded_containers",
            "gauge",
            "containers whose memory limit the agent raises before the OOM killer acts",
        ),
        MetricSpec(
            "turnbuckle_agent_reserve_bytes",
            "gauge",
            "memory that the agent may grant without a request to the allocator",
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
            "turnbuckle_agent_memory_polls_total",
            "counter",
            "extra memory readings of containers that grow fast or wait",
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
    ),
    spans=(
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
    ),
    alerts=(
        AlertSpec(
            "TurnbuckleAgentsMissing",
            "critical",
            'absent(up{job="turnbuckle", service="agent"} == 1)',
            "no agent runs: limits stay what they are",
            holds_for="30s",
        ),
        AlertSpec(
            "TurnbuckleMemoryKills",
            "warning",
            "increase(turnbuckle_agent_oom_kills_total[5m]) > 0",
            "the kernel has killed in managed containers at {{ $labels.instance }}",
        ),
        AlertSpec(
            "TurnbuckleAgentLate",
            "warning",
            "rate(turnbuckle_agent_skipped_samples_total[5m]) > 0.5",
            "the agent at {{ $labels.instance }} misses more than one period in twenty",
            holds_for="5m",
        ),
        AlertSpec(
            "TurnbuckleMemoryGrantsDenied",
            "warning",
            "sum by (app) (increase(turnbuckle_agent_app_memory_grants_denied_total[5m])) > 0",
            "{{ $labels.app }} needed memory that nobody could give",
        ),
    ),
)

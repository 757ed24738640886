"""Which training jobs run."""

from __future__ import annotations

from typing import Final

from schemas.scheduling import (
    ControlReply,
    ControlRequest,
    JobExplainReply,
    JobExplainRequest,
    QueueReply,
    QueueRequest,
    ScheduleEvent,
    SchedulerHeartbeat,
    SubmitReply,
    SubmitRequest,
)
from schemas.service import BucketUse, Channel, Delivery, Deployment, Endpoint, Service
from schemas.services.advisor import ADVISOR_PREDICT
from schemas.services.planner import PLANNER_PLAN
from schemas.streams import APPS, JOB_SPECS, ROUTE_STREAM, RUNNERS, SCHEDULE_STREAM, SNAPSHOTS, WORK_STREAM
from schemas.subjects import SCHEDULE, SCHEDULER_HEARTBEATS
from schemas.telemetry_specs import MetricSpec, SpanSpec

SCHEDULER_SUBMIT: Final = Endpoint("scheduler", "submit", SubmitRequest, SubmitReply, "run a training job")
SCHEDULER_CONTROL: Final = Endpoint(
    "scheduler",
    "control",
    ControlRequest,
    ControlReply,
    "cancel, preempt or release a training job; drain or undrain a node",
)
SCHEDULER_QUEUE: Final = Endpoint(
    "scheduler",
    "queue",
    QueueRequest,
    QueueReply,
    "training jobs in their order, with reasons, and nodes",
    read_only=True,
)
SCHEDULER_EXPLAIN: Final = Endpoint(
    "scheduler", "explain", JobExplainRequest, JobExplainReply, "all decisions about one training job", read_only=True
)

SERVICE: Final = Service(
    name="scheduler",
    channels=(
        Channel(
            SCHEDULE,
            ScheduleEvent,
            Delivery.JETSTREAM,
            ("scheduler",),
            ("cli", "collector", "scheduler"),
            "what happened to training jobs: submissions, requests, decisions, what workers did; in one order",
        ),
        Channel(
            SCHEDULER_HEARTBEATS,
            SchedulerHeartbeat,
            Delivery.CORE,
            ("scheduler",),
            ("cli", "scheduler"),
            "the leading scheduler is alive",
        ),
    ),
    endpoints=(SCHEDULER_SUBMIT, SCHEDULER_CONTROL, SCHEDULER_QUEUE, SCHEDULER_EXPLAIN),
    asks=(ADVISOR_PREDICT, PLANNER_PLAN),
    replays=(ROUTE_STREAM, SCHEDULE_STREAM, WORK_STREAM),
    looks_up=(SCHEDULE_STREAM,),
    object_stores=(SNAPSHOTS,),
    buckets=(
        BucketUse(APPS, writes=True, reads=True),
        BucketUse(RUNNERS, watches=True),
        BucketUse(JOB_SPECS, writes=True, reads=True),
    ),
    dashboard="Scheduler: jobs, slots, decisions",
    metrics=(
        MetricSpec("turnbuckle_scheduler_leading_info", "gauge", "1 while this replica leads, else 0"),
        MetricSpec("turnbuckle_scheduler_jobs", "gauge", "jobs that have not ended", ("phase",)),
        MetricSpec("turnbuckle_scheduler_slots", "gauge", "slots of all known nodes"),
        MetricSpec("turnbuckle_scheduler_taken_slots", "gauge", "slots that jobs hold"),
        MetricSpec("turnbuckle_scheduler_silent_nodes", "gauge", "nodes whose runner's registration has expired"),
        MetricSpec("turnbuckle_scheduler_decisions_total", "counter", "looks at the order of the jobs"),
        MetricSpec("turnbuckle_scheduler_decision_seconds", "histogram", "duration of a look at the order of the jobs"),
        MetricSpec(
            "turnbuckle_scheduler_appended_entries_total", "counter", "entries appended to the log by this replica"
        ),
        MetricSpec(
            "turnbuckle_scheduler_append_conflicts_total", "counter", "appends refused: another replica was faster"
        ),
        MetricSpec("turnbuckle_scheduler_log_bytes", "gauge", "size of the log of the jobs"),
        MetricSpec(
            "turnbuckle_scheduler_snapshot_sequence", "gauge", "log entry of the newest known snapshot; 0: none"
        ),
        MetricSpec(
            "turnbuckle_scheduler_snapshot_age_entries", "gauge", "log entries that are newer than that snapshot"
        ),
        MetricSpec(
            "turnbuckle_scheduler_failed_snapshots_total", "counter", "snapshots that could not be stored or used"
        ),
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
    ),
    spans=(
        SpanSpec(
            "scheduler.decide",
            "a look at the order of the jobs",
            ("turnbuckle.starts", "turnbuckle.stops", "turnbuckle.live_jobs"),
        ),
    ),
    deployment=Deployment(
        memory="256m", profile="jobs", why_profile="it runs what is submitted on hosts that have a runner"
    ),
)

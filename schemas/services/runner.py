"""Workers of training jobs on one host."""

from __future__ import annotations

from typing import Final

from schemas.scheduling import IterationSample, WorkerLogReply, WorkerLogRequest, WorkEvent, WorkOrder, WorkReply
from schemas.service import BucketUse, Channel, Delivery, Service
from schemas.streams import RUNNERS
from schemas.subjects import ITERATIONS, WORK_EVENTS, WORK_ORDERS, WORKER_LOGS
from schemas.telemetry_specs import MetricSpec, SpanSpec

SERVICE: Final = Service(
    name="runner",
    per_host=True,
    channels=(
        Channel(
            ITERATIONS,
            IterationSample,
            Delivery.CORE,
            ("runner",),
            ("cli", "scheduler"),
            "the traffic of one iteration of a training job: period, sending time, bytes, and what its pace made of it",
        ),
        Channel(
            WORK_EVENTS,
            WorkEvent,
            Delivery.JETSTREAM,
            ("runner", "slurm"),
            ("cli", "scheduler"),
            "a worker of a training job was started, is ready, has stopped, ended, failed, or is lost",
        ),
        Channel(
            WORK_ORDERS,
            WorkOrder,
            Delivery.REQUEST,
            ("scheduler",),
            ("runner", "slurm"),
            "start, check, stop, kill, pace or forget a training job's workers on one node",
            reply=WorkReply,
        ),
        Channel(
            WORKER_LOGS,
            WorkerLogRequest,
            Delivery.REQUEST,
            ("cli",),
            ("runner", "slurm"),
            "what a worker wrote to its standard output and error",
            reply=WorkerLogReply,
        ),
    ),
    buckets=(BucketUse(RUNNERS, own_key=True, reads=True),),
    metrics=(
        MetricSpec("turnbuckle_runner_slots", "gauge", "slots of this node"),
        MetricSpec("turnbuckle_runner_taken_slots", "gauge", "of these, held by workers that have not ended"),
        MetricSpec("turnbuckle_runner_workers", "gauge", "workers of training jobs that have not ended", ("state",)),
        MetricSpec("turnbuckle_runner_starts_total", "counter", "workers started"),
        MetricSpec("turnbuckle_runner_kills_total", "counter", "workers killed because they had not stopped in time"),
        MetricSpec(
            "turnbuckle_runner_unsaved_workers_total", "counter", "workers that stopped without saving their state"
        ),
        MetricSpec(
            "turnbuckle_runner_fenced_workers_total", "counter", "workers stopped after too long without the bus"
        ),
        MetricSpec("turnbuckle_runner_mltcp_loaded", "gauge", "1: workers can have the congestion control mltcp"),
        MetricSpec(
            "turnbuckle_runner_mltcp_flows_total", "counter", "connections of which MLTCP has learned an iteration"
        ),
        MetricSpec(
            "turnbuckle_runner_mltcp_iterations_total", "counter", "iterations of connections that MLTCP has seen"
        ),
        MetricSpec(
            "turnbuckle_runner_mltcp_lost_total",
            "counter",
            "of these, those that were overwritten before they were read",
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
    ),
    spans=(
        SpanSpec(
            "runner.order",
            "an order of the scheduler about a job's workers on one node",
            ("turnbuckle.job", "turnbuckle.node", "turnbuckle.action"),
        ),
        SpanSpec(
            "runner.worker", "a training job's worker, from its start to its end", ("turnbuckle.job", "turnbuckle.node")
        ),
    ),
)

"""Records of training jobs and local runs."""

from __future__ import annotations

from typing import Final

from schemas.jobs import JobRecord
from schemas.layers import LayerProfile
from schemas.runs import RunProfile, RunSample
from schemas.service import Channel, Delivery, Service
from schemas.streams import JOB_STREAM, RUN_STREAM, SCHEDULE_STREAM
from schemas.subjects import JOB_RECORDS, LAYER_PROFILES, RUN_PROFILES, RUN_SAMPLES
from schemas.telemetry_specs import MetricSpec, SpanSpec

SERVICE: Final = Service(
    name="collector",
    channels=(
        Channel(
            RUN_SAMPLES,
            RunSample,
            Delivery.CORE,
            ("collector",),
            ("cli",),
            "what one worker of a local run used in the last second",
        ),
        Channel(
            RUN_PROFILES,
            RunProfile,
            Delivery.JETSTREAM,
            ("collector",),
            ("advisor", "cli"),
            "a local run has ended: the task's features and its workers' series",
        ),
        Channel(
            JOB_RECORDS,
            JobRecord,
            Delivery.JETSTREAM,
            ("collector",),
            ("advisor", "cli"),
            "a training job has ended: features, configuration, time, cost, and the price that held",
        ),
        Channel(
            LAYER_PROFILES,
            LayerProfile,
            Delivery.JETSTREAM,
            ("collector",),
            ("cli", "planner"),
            "time and memory of a model's layers on one kind of device, measured",
        ),
    ),
    replays=(SCHEDULE_STREAM,),
    looks_up=(RUN_STREAM, JOB_STREAM),
    metrics=(
        MetricSpec("turnbuckle_collector_cloud_configured_info", "gauge", "1 where a cloud is configured, else 0"),
        MetricSpec("turnbuckle_collector_cloud_polls_total", "counter", "polls of the cloud's jobs"),
        MetricSpec("turnbuckle_collector_cloud_poll_errors_total", "counter", "polls that failed"),
        MetricSpec("turnbuckle_collector_unfinished_jobs", "gauge", "cloud jobs that are pending or running"),
        MetricSpec(
            "turnbuckle_collector_cost_pending_jobs", "gauge", "finished jobs whose billed cost is not final yet"
        ),
        MetricSpec("turnbuckle_collector_scheduled_jobs_total", "counter", "jobs of the scheduler that were recorded"),
        MetricSpec("turnbuckle_collector_problem_jobs", "gauge", "finished jobs that cannot be recorded"),
        MetricSpec("turnbuckle_collector_journal_records", "gauge", "records in the journal"),
        MetricSpec("turnbuckle_collector_unpublished_records", "gauge", "of these, not known to be published"),
        MetricSpec("turnbuckle_collector_published_records_total", "counter", "records that this process published"),
        MetricSpec(
            "turnbuckle_collector_already_stored_records_total", "counter", "records found in the stream already"
        ),
    ),
    spans=(
        SpanSpec(
            "collector.record",
            "jobs that have ended, in a cloud or on the cluster, written to the journal",
            ("turnbuckle.jobs",),
        ),
        SpanSpec("collector.publish", "records handed to the bus", ("turnbuckle.records",)),
    ),
)

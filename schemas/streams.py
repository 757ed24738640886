"""JetStream streams and KV buckets as data; the runtime declares them, idempotently, at start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from schemas.subjects import (
    AGGREGATION_EVENTS,
    CONTAINER_EVENTS,
    JOB_RECORDS,
    LAYER_PROFILES,
    OOM_EVENTS,
    PLANS,
    PREDICTIONS,
    ROUTE_EVENTS,
    RUN_PROFILES,
    SAVINGS,
    SCHEDULE,
    SLAB_EVENTS,
    TC_EVENTS,
    TRAINING_EVENTS,
    WORK_EVENTS,
    Subject,
    SubjectTemplate,
)

_DAY_S: Final = 86_400.0
_KIB: Final = 1 << 10
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """A stream of durable events. Its name begins with the subject root: installations can share a server."""

    name: str
    templates: tuple[SubjectTemplate, ...]
    max_age_s: float
    """0: for ever."""
    max_bytes: int
    duplicate_window_s: float = 120.0
    max_messages_per_host: int | None = None
    """Maximum of stored events per host, for streams that hosts write: the oldest are removed. None: no limit."""
    max_message_bytes: int | None = None
    """Maximum size of an event; times `max_messages_per_host`: the most that one host can store."""
    newest_per_subject: bool = False
    """Of each subject only the newest event is kept: events are cumulative."""

    def stored_by_host(self, root: str) -> tuple[str, str] | None:
        """Pattern of the subjects that are published, and the server's mapping to those that are stored (NATS ADR-33).

        A limit per subject is a limit per host only if a host has one subject; otherwise it could invent an application
        for each event. None: stored as published.
        """
        (template, *others) = self.templates
        if self.max_messages_per_host is None or template.parameters == ("node",):
            return None
        assert not others
        fixed = [part for part in template.text.split(".") if not part.startswith("{")]
        node = template.parameters.index("node") + 1
        return template.pattern(root).text, ".".join((root, *fixed, f"{{{{wildcard({node})}}}}"))

    def stream_name(self, root: str) -> str:
        """The name on the server."""
        return f"{root.upper()}_{self.name}"

    def subjects(self, root: str) -> tuple[Subject, ...]:
        """Patterns of the subjects that the stream stores."""
        return tuple(template.pattern(root) for template in self.templates)


@dataclass(frozen=True, slots=True)
class ObjectStoreSpec:
    """A bucket of named objects of any size, each replaced atomically."""

    name: str
    description: str
    max_bytes: int

    def bucket_name(self, root: str) -> str:
        """The name on the server."""
        return f"{root}_{self.name}"


@dataclass(frozen=True, slots=True)
class BucketSpec:
    """A KV bucket of current state, one revision deep."""

    name: str
    description: str
    ttl_s: float | None = None
    written_by_hosts: bool = False
    """Each host writes the key of its own name. Only then: a host's writes reach no one but by reading the bucket."""
    secret: bool = False
    """People may not read it."""

    def bucket_name(self, root: str) -> str:
        """The name on the server."""
        return f"{root}_{self.name}"


CONTAINER_STREAM: Final = StreamSpec(
    "CONTAINER", (CONTAINER_EVENTS,), 7 * _DAY_S, 96 * _MIB, max_messages_per_host=4_000, max_message_bytes=8 * _KIB
)
OOM_STREAM: Final = StreamSpec(
    "OOM", (OOM_EVENTS,), 7 * _DAY_S, 64 * _MIB, max_messages_per_host=4_000, max_message_bytes=4 * _KIB
)
ROUTE_STREAM: Final = StreamSpec(
    "ROUTE", (ROUTE_EVENTS,), 7 * _DAY_S, 64 * _MIB, max_messages_per_host=1_000, max_message_bytes=32 * _KIB
)
TC_STREAM: Final = StreamSpec(
    "TC", (TC_EVENTS,), 7 * _DAY_S, 128 * _MIB, max_messages_per_host=1_000, max_message_bytes=64 * _KIB
)
RUN_STREAM: Final = StreamSpec("RUN", (RUN_PROFILES,), max_age_s=0.0, max_bytes=64 * _MIB)
JOB_STREAM: Final = StreamSpec("JOB", (JOB_RECORDS,), max_age_s=0.0, max_bytes=64 * _MIB)
"""The advisor's training data: some 50,000 records."""
PREDICTION_STREAM: Final = StreamSpec("PREDICTION", (PREDICTIONS,), max_age_s=30 * _DAY_S, max_bytes=16 * _MIB)
LAYER_STREAM: Final = StreamSpec(
    "LAYERS", (LAYER_PROFILES,), max_age_s=0.0, max_bytes=16 * _MIB, newest_per_subject=True
)
"""What plans are made of: a profile measured again replaces the one before."""
PLAN_STREAM: Final = StreamSpec("PLAN", (PLANS,), max_age_s=30 * _DAY_S, max_bytes=16 * _MIB)
SAVINGS_STREAM: Final = StreamSpec(
    "SAVINGS", (SAVINGS,), max_age_s=400 * _DAY_S, max_bytes=32 * _MIB, newest_per_subject=True
)
"""Some 40,000 days of an application."""
SCHEDULE_STREAM: Final = StreamSpec(
    "SCHEDULE", (SCHEDULE,), max_age_s=0.0, max_bytes=128 * _MIB, max_message_bytes=512 * _KIB
)
"""All that happened to training jobs: each event names the sequence that it follows (`Bus.append`)."""
WORK_STREAM: Final = StreamSpec(
    "WORK", (WORK_EVENTS,), 7 * _DAY_S, 32 * _MIB, max_messages_per_host=4_000, max_message_bytes=4 * _KIB
)
"""Until the leading scheduler has taken them over into `SCHEDULE_STREAM`."""
TRAINING_STREAM: Final = StreamSpec(
    "TRAIN",
    (TRAINING_EVENTS,),
    30 * _DAY_S,
    32 * _MIB,
    max_messages_per_host=500,
    max_message_bytes=32 * _KIB,
)
AGGREGATION_STREAM: Final = StreamSpec("AGGREGATE", (AGGREGATION_EVENTS,), max_age_s=30 * _DAY_S, max_bytes=16 * _MIB)
SLAB_STREAM: Final = StreamSpec(
    "SLAB", (SLAB_EVENTS,), 30 * _DAY_S, 32 * _MIB, max_messages_per_host=1_000, max_message_bytes=4 * _KIB
)
STREAMS: Final = (
    CONTAINER_STREAM,
    OOM_STREAM,
    ROUTE_STREAM,
    TC_STREAM,
    RUN_STREAM,
    JOB_STREAM,
    PREDICTION_STREAM,
    LAYER_STREAM,
    PLAN_STREAM,
    SAVINGS_STREAM,
    SCHEDULE_STREAM,
    WORK_STREAM,
    TRAINING_STREAM,
    AGGREGATION_STREAM,
    SLAB_STREAM,
)

APPS: Final = BucketSpec("apps", "AppSpec by application name")
LEASES: Final = BucketSpec("leases", "the allocator replicas that share the applications, and their heartbeats")
NODES: Final = BucketSpec(
    "nodes", "registration of each node's agent, renewed by heartbeats", ttl_s=30.0, written_by_hosts=True
)
RECONCILERS: Final = BucketSpec(
    "reconcilers", "registration of each node's reconciler, as in nodes", ttl_s=30.0, written_by_hosts=True
)
POD_SELECTORS: Final = BucketSpec("pod_selectors", "which pods join which application, as Kubernetes declares it")
RUNNERS: Final = BucketSpec(
    "runners", "registration of each node's runner, as in nodes", ttl_s=30.0, written_by_hosts=True
)
JOB_SPECS: Final = BucketSpec(
    "job_specs", "specs of training jobs that have not ended, environment included", secret=True
)
TRAININGS: Final = BucketSpec(
    "trainings", "coordinator and newest generation of each elastic training, renewed as in nodes", ttl_s=30.0
)
AGGREGATORS: Final = BucketSpec("aggregators", "registration of the aggregator service that leads", ttl_s=30.0)
AGGREGATIONS: Final = BucketSpec("aggregations", "ranges of replicated training jobs and their aggregators, by job")
MEMORY_HOSTS: Final = BucketSpec(
    "memory_hosts",
    "registration of each host's memory service and what it offers, as in nodes",
    ttl_s=30.0,
    written_by_hosts=True,
)
BUCKETS: Final = (
    *(APPS, LEASES, NODES, RECONCILERS, POD_SELECTORS, RUNNERS, JOB_SPECS),
    *(TRAININGS, AGGREGATORS, AGGREGATIONS, MEMORY_HOSTS),
)

MODELS: Final = ObjectStoreSpec("models", "the advisor's trained models by version", 96 * _MIB)
SNAPSHOTS: Final = ObjectStoreSpec("snapshots", "the scheduler's state at entries of its log", 32 * _MIB)
"""Two of them: each may have half of it."""
OBJECT_STORES: Final = (MODELS, SNAPSHOTS)

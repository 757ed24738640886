"""The subject table: message, senders, receivers and delivery of each subject."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final

from schemas.aggregations import (
    AggregationEndReply,
    AggregationEndRequest,
    AggregationEvent,
    AggregationReply,
    AggregationRequest,
)
from schemas.cfs import CfsBatch
from schemas.containers import ContainerEvent
from schemas.jobs import JobRecord
from schemas.kubeoperator import KubeoperatorStateReply, KubeoperatorStateRequest
from schemas.layers import LayerProfile
from schemas.limits import LimitDecisions, LimitReply, LimitsApplied, LimitUpdate
from schemas.message import Message
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
from schemas.oom import MemoryReply, MemoryRequest, OomEvent
from schemas.plans import Plan, PlanReply, PlanRequest
from schemas.predictions import (
    AdviceExplainReply,
    AdviceExplainRequest,
    Prediction,
    PredictReply,
    PredictRequest,
    RankReply,
    RankRequest,
    TrainReply,
    TrainRequest,
)
from schemas.queries import ExplainReply, ExplainRequest, StateReply, StateRequest
from schemas.remote_memory import SlabEvent, SlabReply, SlabRequest
from schemas.runs import RunProfile, RunSample
from schemas.savings import Savings
from schemas.scheduling import (
    ControlReply,
    ControlRequest,
    IterationSample,
    JobExplainReply,
    JobExplainRequest,
    QueueReply,
    QueueRequest,
    ScheduleEvent,
    SchedulerHeartbeat,
    SubmitReply,
    SubmitRequest,
    WorkerLogReply,
    WorkerLogRequest,
    WorkEvent,
    WorkOrder,
    WorkReply,
)
from schemas.subjects import (
    AGGREGATION_EVENTS,
    CFS,
    CONTAINER_EVENTS,
    ITERATIONS,
    JOB_RECORDS,
    LAYER_PROFILES,
    LIMIT_DECISIONS,
    LIMIT_UPDATES,
    LIMITS_APPLIED,
    MEMORY_REQUESTS,
    OOM_EVENTS,
    PLANS,
    PREDICTIONS,
    RECONCILER_DIFF,
    RECONCILER_RULES,
    RECONCILER_STATE,
    REPLICA_EXPLAIN,
    REPLICA_STATE,
    ROUTE_EVENTS,
    RUN_PROFILES,
    RUN_SAMPLES,
    SAVINGS,
    SCHEDULE,
    SCHEDULER_HEARTBEATS,
    SLAB_EVENTS,
    SLAB_REQUESTS,
    STEPS,
    TC_EVENTS,
    TRAINING_EVENTS,
    WORK_EVENTS,
    WORK_ORDERS,
    WORKER_LOGS,
    SubjectError,
    SubjectTemplate,
    untoken,
)
from schemas.trainings import StepBatch, TrainingEvent


class Delivery(StrEnum):
    """Delivery semantics of a message."""

    CORE = "core"
    """Lossy, newest wins."""
    JETSTREAM = "jetstream"
    """Stored, acknowledged, deduplicated."""
    REQUEST = "request"
    """Request and reply, with a deadline."""


@dataclass(frozen=True, slots=True)
class Channel:
    """One line of the subject table."""

    template: SubjectTemplate
    message: type[Message]
    delivery: Delivery
    senders: tuple[str, ...]
    receivers: tuple[str, ...]
    summary: str
    reply: type[Message] | None = None
    title: str = ""
    """Distinguishes channels of the same message type."""

    @property
    def name(self) -> str:
        """Unique among channels and requests of endpoints."""
        return self.title or self.message.__name__


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One query of a NATS micro service; its subject is ``<root>.cmd.<service>.<name>``."""

    service: str
    name: str
    request: type[Message]
    reply: type[Message]
    summary: str

    @property
    def template(self) -> SubjectTemplate:
        """The endpoint's subject."""
        return SubjectTemplate(f"cmd.{self.service}.{self.name}")


CHANNELS: Final = (
    Channel(
        CFS,
        CfsBatch,
        Delivery.CORE,
        ("agent",),
        ("allocator", "cli"),
        "CPU and memory of one application's containers on one node in one period",
    ),
    Channel(
        LIMIT_DECISIONS,
        LimitDecisions,
        Delivery.CORE,
        ("allocator",),
        ("cli",),
        "limit changes decided for one application, with reasons and pools",
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
        MEMORY_REQUESTS,
        MemoryRequest,
        Delivery.REQUEST,
        ("agent",),
        ("allocator",),
        "a node's reserve for an application runs out: its owner refills it or says why not",
        reply=MemoryReply,
    ),
    Channel(
        OOM_EVENTS,
        OomEvent,
        Delivery.JETSTREAM,
        ("agent",),
        ("cli", "kubeoperator"),
        "a container's memory near or at its limit: grants, denied grants, OOM waits, kills",
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
    ),
    Channel(
        ROUTE_EVENTS,
        RouteEvent,
        Delivery.JETSTREAM,
        ("reconciler",),
        ("cli", "reconciler", "scheduler"),
        "paths and links of a node changed, disagree between kernel, FRR and BFD, were overridden, or drained",
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
    ),
    Channel(
        RECONCILER_DIFF,
        DiffRequest,
        Delivery.REQUEST,
        ("cli",),
        ("reconciler",),
        "what a node's reconciler would write now",
        reply=DiffReply,
    ),
    Channel(
        RECONCILER_RULES,
        RulesRequest,
        Delivery.REQUEST,
        ("cli",),
        ("reconciler",),
        "the rules installed on a node",
        reply=RulesReply,
    ),
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
        PREDICTIONS,
        Prediction,
        Delivery.JETSTREAM,
        ("advisor",),
        ("cli",),
        "a prediction, with its model's version and the day of its prices",
    ),
    Channel(
        LAYER_PROFILES,
        LayerProfile,
        Delivery.JETSTREAM,
        ("collector",),
        ("cli", "planner"),
        "time and memory of a model's layers on one kind of device, measured",
    ),
    Channel(
        PLANS,
        Plan,
        Delivery.JETSTREAM,
        ("planner",),
        ("cli",),
        "how a training job is divided over unequal devices, what a step takes, and why",
    ),
    Channel(
        SAVINGS,
        Savings,
        Delivery.JETSTREAM,
        ("allocator",),
        ("cli",),
        "what an application held in a day beside what it would hold without limits, and how it was throttled",
    ),
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
    Channel(
        STEPS,
        StepBatch,
        Delivery.CORE,
        ("runner", "trainer"),
        ("cli",),
        "what steps of a training took in one rank, in parts, and its memory",
    ),
    Channel(
        TRAINING_EVENTS,
        TrainingEvent,
        Delivery.JETSTREAM,
        ("runner", "trainer"),
        ("planner", "cli"),
        "a training by a plan was started, goes on at a checkpoint, drifts from the plan, has saved, or ended",
    ),
    Channel(
        AGGREGATION_EVENTS,
        AggregationEvent,
        Delivery.JETSTREAM,
        ("aggregator",),
        ("cli",),
        "ranges of a replicated training job were placed, moved, lost, restored or freed",
    ),
    Channel(
        SLAB_REQUESTS,
        SlabRequest,
        Delivery.REQUEST,
        ("memory",),
        ("memory",),
        "a host asks another one for memory for a slab of its swap device",
        reply=SlabReply,
    ),
    Channel(
        SLAB_EVENTS,
        SlabEvent,
        Delivery.JETSTREAM,
        ("memory",),
        ("cli", "memory"),
        "a slab of a swap device went to remote memory, is wanted back by its daemon, or fell back to its disk",
    ),
)

ALLOCATOR_STATE: Final = Endpoint(
    "allocator", "state", StateRequest, StateReply, "applications, containers, limits and pools"
)
ALLOCATOR_EXPLAIN: Final = Endpoint(
    "allocator",
    "explain",
    ExplainRequest,
    ExplainReply,
    "why limits are what they are, with measured value and threshold",
)
ADVISOR_PREDICT: Final = Endpoint(
    "advisor", "predict", PredictRequest, PredictReply, "time and cost of each configuration, with intervals"
)
ADVISOR_RANK: Final = Endpoint(
    "advisor", "rank", RankRequest, RankReply, "the best configurations, the Pareto front, and runs worth making next"
)
ADVISOR_EXPLAIN: Final = Endpoint(
    "advisor", "explain", AdviceExplainRequest, AdviceExplainReply, "why one configuration is predicted as it is"
)
ADVISOR_TRAIN: Final = Endpoint("advisor", "train", TrainRequest, TrainReply, "train anew on every record known")
AGGREGATOR_PLACE: Final = Endpoint(
    "aggregator",
    "place",
    AggregationRequest,
    AggregationReply,
    "have a replicated training job's gradients aggregated: where, with which key",
)
AGGREGATOR_END: Final = Endpoint(
    "aggregator", "end", AggregationEndRequest, AggregationEndReply, "free the ranges of a training job that has ended"
)
KUBEOPERATOR_STATE: Final = Endpoint(
    "kubeoperator", "state", KubeoperatorStateRequest, KubeoperatorStateReply, "applications that Kubernetes declares"
)
PLANNER_PLAN: Final = Endpoint(
    "planner", "plan", PlanRequest, PlanReply, "divide a training job over unequal devices, or say why that cannot be"
)
SCHEDULER_SUBMIT: Final = Endpoint("scheduler", "submit", SubmitRequest, SubmitReply, "run a training job")
SCHEDULER_CONTROL: Final = Endpoint(
    "scheduler",
    "control",
    ControlRequest,
    ControlReply,
    "cancel, preempt or release a training job; drain or undrain a node",
)
SCHEDULER_QUEUE: Final = Endpoint(
    "scheduler", "queue", QueueRequest, QueueReply, "training jobs in their order, with reasons, and nodes"
)
SCHEDULER_EXPLAIN: Final = Endpoint(
    "scheduler", "explain", JobExplainRequest, JobExplainReply, "all decisions about one training job"
)
ENDPOINTS: Final = (
    ALLOCATOR_STATE,
    ALLOCATOR_EXPLAIN,
    ADVISOR_PREDICT,
    ADVISOR_RANK,
    ADVISOR_EXPLAIN,
    ADVISOR_TRAIN,
    AGGREGATOR_PLACE,
    AGGREGATOR_END,
    KUBEOPERATOR_STATE,
    PLANNER_PLAN,
    SCHEDULER_SUBMIT,
    SCHEDULER_CONTROL,
    SCHEDULER_QUEUE,
    SCHEDULER_EXPLAIN,
)

_PARAMETERS: Final = {
    tuple(channel.template.text.split(".")[:2]): channel.template.parameters
    for channel in CHANNELS
    if channel.template.parameters
}
"""Ids in a subject by its first tokens behind the root, such as ``("obs", "cfs")``."""


@lru_cache(maxsize=1 << 16)
def _ids(subject: str) -> tuple[tuple[str, str | None], ...]:
    """The ids in a subject by name, None where one is not escaped well; empty: it is none of a channel that has ids."""
    kind, values = subject.split(".")[1:3], subject.split(".")[3:]
    names = _PARAMETERS.get(tuple(kind), ())
    return tuple(zip(names, map(_untoken, values), strict=True)) if len(names) == len(values) else ()


def _untoken(value: str) -> str | None:
    with suppress(SubjectError):
        return untoken(value)
    return None


def contradicted_id(subject: str, message: Message) -> str | None:
    """The first id of a subject that the message on it contradicts, or None.

    A server permits by subject: a host may only use subjects with its own name. What a message says of the host,
    application or job that it comes from counts only where the subject says the same.
    """
    for name, value in _ids(subject):
        field = getattr(message, name, None)
        if isinstance(field, str) and field != value:
            return name
    return None

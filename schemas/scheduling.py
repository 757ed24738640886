"""Training jobs: what is submitted, decided, ordered and done (services/scheduler). Times: nanoseconds since the epoch.

The stream `SCHEDULE` is the only record of what happened to jobs: one subject, written by the leading scheduler only,
each event with the sequence that it must follow. What runners report (`WorkEvent`) counts from where it stands there.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, ClassVar, Final, Self

from pydantic import Field, StringConstraints, model_validator

from schemas.jobs import (
    MAX_NAME_CHARACTERS,
    Attributes,
    Configuration,
    Name,
    NonNegativeFloat,
    PositiveFloat,
    TaskFeatures,
)
from schemas.message import Count, Message

MAX_WORKERS: Final = 4_096
MAX_SLOTS_PER_WORKER: Final = 1_024
MAX_REASON_CHARACTERS: Final = 500
MAX_LOG_BYTES: Final = 256 << 10
MAX_PLANNED_BATCH: Final = 65_536
"""As `schemas.plans`, which imports this module, has it."""
MAX_PLAN_CHARACTERS: Final = 64 << 10
MAX_COMPARED: Final = 40
CLUSTER: Final = "cluster"
"""Provider of the cluster's own nodes, as the advisor knows them."""
MAX_PERIOD_MS: Final = 3_600_000
MAX_TRAFFIC_PHASES: Final = 64
MLTCP: Final = "mltcp"
"""Congestion control that makes jobs take turns; so begin the names of its variants, too."""
AUTOMATIC: Final = "auto"
"""Congestion control of a job: ``mltcp`` where its runner has loaded it, else the host's default."""
CONGESTION_CONTROL_PATTERN: Final = r"^[a-z0-9_]{0,15}$"
NAME_ENDING_LETTERS: Final = "bcdfghjkmnpqrstvwxz"
NAME_ENDING_LENGTH: Final = 4
"""``-`` and so many of these letters make a file's name a job's name: no vowels, so that no word ends like this."""
MASKED: Final = "***"
"""Value of an environment variable wherever others than the scheduler and the runners may read it."""

JOB_NAME_PATTERN: Final = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
JobName = Annotated[str, StringConstraints(pattern=JOB_NAME_PATTERN)]
"""A DNS label (RFC 1123), so that it can name an application, a control group and a directory."""
Reason = Annotated[str, Field(max_length=MAX_REASON_CHARACTERS)]
Rank = Annotated[int, Field(ge=0, lt=MAX_WORKERS)]
Text = Annotated[str, Field(max_length=4_096)]
_NAME_ENDING: Final = re.compile(f"(?<=.)-[{NAME_ENDING_LETTERS}]{{{NAME_ENDING_LENGTH}}}$")
_BYTES_PER_GB: Final = 2.0**30
"""As local runs have it."""


def task_of(job: str, task: TaskFeatures | None) -> TaskFeatures:
    """By which the advisor knows a job: what it was submitted with, else its name without the ending that is added."""
    return task or TaskFeatures(task=_NAME_ENDING.sub("", job))


class Preemption(StrEnum):
    """How a job gives up its slots."""

    NEVER = "never"
    """It keeps them until it has ended."""
    RESTART = "restart"
    """Its workers may be killed; it begins anew."""
    CHECKPOINT = "checkpoint"
    """SIGTERM; within the grace period its workers save their state and exit with 0 or 143 (128 + SIGTERM). The same
    command goes on from there."""


class RunTime(Message):
    """Run time without interruptions, seconds: the median, and an interval that holds nine of ten jobs."""

    type_name: ClassVar[str] = "turnbuckle.scheduling.v1.RunTime"

    low_s: NonNegativeFloat
    median_s: NonNegativeFloat
    high_s: NonNegativeFloat

    @model_validator(mode="after")
    def _ascending(self) -> Self:
        if not self.low_s <= self.median_s <= self.high_s:
            raise ValueError(f"{self.low_s:g}, {self.median_s:g}, {self.high_s:g} s is not low <= median <= high")
        return self


class EstimateSource(StrEnum):
    """Who estimated a job's run time."""

    NONE = "none"
    JOB = "job"
    """The job file."""
    ADVISOR = "advisor"

    @property
    def words(self) -> str:
        """For people: whose estimate it is."""
        return "job file" if self is EstimateSource.JOB else str(self)


ELASTIC_IS_SIMULATED: Final = (
    "elastic jobs are simulated only, by `turnbuckle jobs simulate`: a job that runs keeps its number of workers. "
    "Leave out min_workers, max_workers, deadline and budget_slot_hours"
)
"""Why a job is refused that asks for numbers of workers that change."""


class JobSpec(Message):
    """One training job: `workers` processes of the same command, started together or not at all."""

    type_name: ClassVar[str] = "turnbuckle.scheduling.v1.JobSpec"

    job: JobName
    """Unique among the jobs that have not ended."""
    workers: Annotated[int, Field(ge=1, le=MAX_WORKERS)] = 1
    slots: Annotated[int, Field(ge=1, le=MAX_SLOTS_PER_WORKER)] = 1
    """Of each worker, all on one node: GPUs where the node has any, else shares of its cores."""
    cpu_cores: PositiveFloat | None = None
    """Of each worker. None: its slots' share of the node's cores."""
    memory_bytes: Annotated[int, Field(ge=1 << 20, le=1 << 62)] | None = None
    """Of each worker. None: its slots' share of the node's memory."""
    command: Annotated[tuple[Text, ...], Field(min_length=1, max_length=1_000)]
    """Run as it stands, without a shell."""
    directory: Text
    """Working directory, absolute; the same path on every node."""
    environment: Annotated[dict[str, Text], Field(max_length=1_000)] = Field(default_factory=dict)
    """In addition to the runner's variables for workers. Masked in events and replies."""
    preemption: Preemption = Preemption.NEVER
    grace_s: Annotated[float, Field(gt=0, le=86_400)] = 30.0
    """From SIGTERM to SIGKILL."""
    checkpoint_directory: Text = ""
    """``TURNBUCKLE_CHECKPOINT_DIR``; relative to `directory`. Empty: ``turnbuckle-checkpoints/JOB``."""
    retries: Annotated[int, Field(ge=0, le=100)] = 0
    """So often it is started again after a worker has failed."""
    task: TaskFeatures | None = None
    """By which the advisor knows it."""
    run: str = ""
    """Its local run (`RunProfile.run`)."""
    estimate_s: PositiveFloat | None = None
    """Run time that the user expects; it goes before the advisor's."""
    model: Annotated[str, Field(max_length=MAX_NAME_CHARACTERS)] = ""
    """Of which the planner has layer profiles (`PlanRequest.task`): its plan says how the workers divide the work."""
    batch: Annotated[int, Field(ge=0, le=MAX_PLANNED_BATCH)] = 0
    """Samples of a step, of all workers together; with `model`."""
    interleave: bool = True
    """It may be paused for parts of an iteration, so that jobs on one link send one after another."""
    congestion_control: Annotated[str, StringConstraints(pattern=CONGESTION_CONTROL_PATTERN)] = AUTOMATIC
    """Of its workers' TCP connections: a name that its hosts have, `AUTOMATIC`, or empty: as the host has it."""
    min_workers: Annotated[int, Field(ge=0, le=MAX_WORKERS)] = 0
    """While it runs it may have as few as these; 0, here and of `max_workers`: it keeps its number. Refused for now."""
    max_workers: Annotated[int, Field(ge=0, le=MAX_WORKERS)] = 0
    deadline_s: PositiveFloat | None = None
    """From the submission; of an elastic job: it gets the cheapest number of workers that meets it."""
    budget_slot_hours: PositiveFloat | None = None
    """Of an elastic job, in all: it gets the fastest number of workers that stays below."""

    @property
    def all_slots(self) -> int:
        """Of all workers together."""
        return self.workers * self.slots

    @property
    def is_elastic(self) -> bool:
        """Whether it asks for what only a job has whose number of workers may change."""
        return bool(self.min_workers or self.max_workers or self.deadline_s or self.budget_slot_hours)

    def masked(self) -> JobSpec:
        """Without the values of its environment."""
        return self.model_copy(update={"environment": dict.fromkeys(self.environment, MASKED)})


# -- traffic of jobs on links -----------------------------------------------------------------------------------------


class IterationSource(StrEnum):
    """What an iteration was measured by."""

    MLTCP = "mltcp"
    """The kernel program, for each flow."""
    SOCKETS = "sockets"
    """The kernel's counters of the worker's TCP connections (``TCP_INFO``, sock_diag(7))."""


class IterationSample(Message):
    """The traffic of one iteration of a job, seen at one worker."""

    type_name: ClassVar[str] = "turnbuckle.scheduling.v1.IterationSample"

    job: JobName
    attempt: Annotated[int, Field(ge=1, le=1_000_000)]
    rank: Rank
    node: Name
    time_ns: Count
    """When it began to send, by the node's clock."""
    period_us: Count
    """Until it began to send again, in the next iteration."""
    sending_us: Count
    """Until it had sent all."""
    sent_bytes: Count
    drops: Count = 0
    congestion_control: str = ""
    """Of its flows; empty: not known."""
    source: IterationSource
    phase_error_us: int = 0
    """Of a job that is paced: how much later (below 0: earlier) than wanted it began to send."""
    frozen_us: Count = 0
    """For so long its runner froze it within the period, so that it begins on time."""
    due_ns: Count = 0
    """Of a paced job that has sent all of the next iteration, too: it begins to send at this time once more, unless it
    is paused. Else 0. Such a sample repeats the one of the iteration's begin, unless all was seen at once."""
    ended_ns: Count = 0
    """In the same: when it had sent all."""


class TrafficPhase(Message):
    """A part of an iteration in which a job sends."""

    type_name: ClassVar[str] = "turnbuckle.scheduling.v1.TrafficPhase"

    begin_ms: Annotated[int, Field(ge=0, le=MAX_PERIOD_MS)]
    """Since the iteration's begin."""
    end_ms: Annotated[int, Field(ge=0, le=MAX_PERIOD_MS)]
    bits_per_s: Count

    @property
    def length_ms(self) -> int:
        """From begin to end."""
        return self.end_ms - self.begin_ms


class TrafficProfile(Message):
    """What a job sends on each link that it uses, in each of its iterations; learned from its samples."""

    type_name: ClassVar[str] = "turnbuckle.scheduling.v1.TrafficProfile"

    job: JobName
    attempt: Annotated[int, Field(ge=1, le=1_000_000)]
    period_ms: Annotated[int, Field(ge=1, le=MAX_PERIOD_MS)]
    phases: Annotated[tuple[TrafficPhase, ...], Field(min_length=1, max_length=MAX_TRAFFIC_PHASES)]
    """Ascending; the first begins at 0."""
    sent_bytes: Count
    congestion_control: str = ""

    @property
    def sending_ms(self) -> int:
        """Of an iteration, all phases together."""
        return sum(phase.length_ms for phase in self.phases)


class ClusterLink(Message):
    """A link that several jobs may share, such as a rack's uplink."""

    type_name: ClassVar[str] = "turnbuckle.scheduling.v1.ClusterLink"

    link: Name
    bits_per_s: Annotated[int, Field(ge=1, le=1 << 62)]
    nodes: tuple[Name, ...]
    """On one side of it: a job with workers on both sides uses it."""


class JobShift(Message):
    """When in the common period of the jobs on its links a job begins its iterations."""

    type_name: ClassVar[str] = "turnbuckle.scheduling.v1.JobShift"

    job: JobName
    attempt: Annotated[int, Field(ge=1, le=1_000_000)]
    period_ms: Annotated[int, Field(ge=1, le=MAX_PERIOD_MS)]
    """Its own, or up to 5 % longer, so that whole numbers of all periods fit into the common one."""
    shift_ms: Annotated[int, Field(ge=0, le=MAX_PERIOD_MS)]
    """Below the period."""


class LinkScore(Message):
    """How well the jobs on one link fit beside each other: 1 where never more is sent than the link carries."""

    type_name: ClassVar[str] = "turnbuckle.scheduling.v1.LinkScore"

    link: Name
    bits_per_s: Count
    jobs: tuple[JobName, ...]
    unshifted: float
    """All begin their iterations together."""
    score: float
    """With their shifts."""
    why: Reason = ""
    """Why no job on it is shifted, if none is."""


class Pace(Message):
    """When a job is to begin to send: at `begin_ns` plus whole periods."""

    type_name: ClassVar[str] = "turnbuckle.scheduling.v1.Pace"

    begin_ns: Count
    """By the node's clock, which is kept right (NTP)."""
    period_us: Annotated[int, Field(ge=1_000, le=MAX_PERIOD_MS * 1_000)]


# -- the stream of decisions -----------------------------------------------------------------------------------------


class JobSubmitted(Message):
    """A job waits from now on. Its environment is masked: the whole spec is in the bucket `job_specs`."""

    type_name: ClassVar[str] = "turnbuckle.scheduling.v1.JobSubmitted"

    spec: JobSpec
    estimate: RunTime | None = None
    estimate_source: EstimateSource = EstimateSource.NONE
    model: str = ""
    """Version of the advisor's model."""


class JobAction(StrEnum):
    """What a person asks of a job."""

    CANCEL = "cancel"
    PREEMPT = "preempt"
    """It gives up its slots, whatever its `preemption` says, and goes on when its turn comes."""
    RELEASE = "release"
    """It may start again although the time that it was preempted for is not over."""


class JobControlled(Message):
    """A person's request about one job."""

    type_name: ClassVar[str] = "turnbuckle.scheduling.v1.JobControlled"

    job: JobName
    action: JobAction
    not_before_ns: Count = 0
    """Of `preempt`: it is not started before."""


class ClusterNode(Message):
    """A node as the scheduler counts with it."""

    type_name: ClassVar[str] = "turnbuckle.scheduling.v1.ClusterNode"

    node: Name
    slots: Annotated[int, Field(ge=0, le=100_000)]
    gpus: Annotated[int, Field(ge=0, le=100_000)] = 0
    cores: NonNegativeFloat = 0.0
    memory_bytes: Count = 0
    rack: str = ""
    address: str = ""
    """Where workers on other nodes reach rank 0 if it runs here."""
    incarnation: Count = 0
    """Of its runner."""
    drained: bool = False
    silent: bool = False
    """Its runner's registration has expired. Its jobs stay until they are lost."""
    device_kind: str = ""
    """As `RunnerInfo` has it."""
    device_memory_bytes: Count = 0
    equal_workers: bool = False
    """All nodes of a job have as many workers, as Slurm asks for where GPUs are its slots."""
    cut_off: bool = False
    """None of its uplinks carries traffic, by its reconciler's path events: nothing is started on it."""
    why: Reason = ""
    """Why nothing is started on it; empty: it can be used."""

    @property
    def node_class(self) -> str:
        """Instance type of such nodes for the advisor: ``2-slots-1.0-cores``, ``8-slots-96.0-cores-8-gpus``."""
        return f"{self.slots}-slots-{self.cores:.1f}-cores" + (f"-{self.gpus}-gpus" if self.gpus else "")

    def configuration(self, spec: JobSpec) -> Configuration:
        """What the advisor is asked about a job, and learns of it: each worker counts as a machine of its size.

        Raises:
            ValueError: the node has no slots.
        """
        if not self.slots:
            raise ValueError(f"node {self.node} has no slots")
        share = spec.slots / self.slots
        attributes: Attributes = {"slots": float(spec.slots)}
        if spec.cpu_cores is not None:
            attributes["cpu_cores"] = spec.cpu_cores
        memory_bytes = self.memory_bytes * share if spec.memory_bytes is None else spec.memory_bytes
        return Configuration(
            instance_type=self.node_class,
            provider=CLUSTER,
            workers=spec.workers,
            vcpu=self.cores * share if spec.cpu_cores is None else spec.cpu_cores,
            memory_gb=memory_bytes / _BYTES_PER_GB,
            attributes=attributes,
        )


class WorkerChange(StrEnum):
    """What a worker did."""

    __hash__ = str.__hash__  # an enumeration's own is a call in Python, which a replay makes a million times

    STARTED = "started"
    READY = "ready"
    """It makes progress: its checkpoint, if there is one, is loaded."""
    STOPPED = "stopped"
    """It was asked to, has saved its state, and can go on in another attempt."""
    UNSAVED = "unsaved"
    """It was asked to, and was killed or exited otherwise: what it did in this attempt is lost."""
    ENDED = "ended"
    """With exit code 0, by itself."""
    FAILED = "failed"
    """By itself, with another exit code or a signal, or it could not be started."""
    LOST = "lost"
    """Its node is silent for too long, or it was not there any more when its node came back."""


class WorkEvent(Message):
    """One change of one worker, by the runner of its node."""

    type_name: ClassVar[str] = "turnbuckle.scheduling.v1.WorkEvent"

    job: JobName
    attempt: Annotated[int, Field(ge=1, le=1_000_000)]
    rank: Rank
    node: Name
    change: WorkerChange
    time_ns: Count
    """By the node's clock: for display, never compared with another's."""
    incarnation: Count = 0
    """Of the runner."""
    exit_code: Annotated[int, Field(ge=-255, le=255)] | None = None
    """Negative: ended by that signal."""
    oom_kills: Count = 0
    ran_s: NonNegativeFloat = 0.0
    """At its end: for so long it made progress in this attempt, by its node's monotonic clock."""
    took_s: NonNegativeFloat = 0.0
    """Until it was ready, since its start; until it had stopped, since it was asked to."""
    reason: Reason = ""
    """Such as the last lines of its error output."""

    @property
    def message_id(self) -> str:
        """For deduplication."""
        return f"{self.job}.{self.attempt}.{self.rank}.{self.change}"


class AttemptStart(Message):
    """One start of a job; a job that goes on after a preemption does so in its next attempt."""

    type_name: ClassVar[str] = "turnbuckle.scheduling.v1.AttemptStart"

    job: JobName
    attempt: Annotated[int, Field(ge=1, le=1_000_000)]
    nodes: Annotated[tuple[Name, ...], Field(min_length=1, max_length=MAX_WORKERS)]
    """Of each worker, by rank."""
    master_address: str = ""
    master_port: Annotated[int, Field(ge=0, le=65_535)] = 0


class JobPlanned(Message):
    """The planner's answer about one place for a job's next attempt: how its workers divide the work, or why not."""

    type_name: ClassVar[str] = "turnbuckle.scheduling.v1.JobPlanned"

    job: JobName
    attempt: Annotated[int, Field(ge=1, le=1_000_000)]
    nodes: Annotated[tuple[Name, ...], Field(max_length=MAX_WORKERS)]
    """Of each worker, by rank: the plan holds for these."""
    plan: Annotated[str, Field(max_length=MAX_PLAN_CHARACTERS)] = ""
    """A `schemas.plans.Plan` in JSON, as the workers read it; empty: there is none."""
    why: Reason = ""
    """What it says in short, or why there is none."""
    step_us: NonNegativeFloat = 0.0
    """Predicted, of one step; 0: not known."""
    missing_bytes: Count = 0
    """Of memory, by the planner: the job is not started there. 0: that is not what keeps it from a plan."""
    compared: Annotated[tuple[Reason, ...], Field(max_length=MAX_COMPARED)] = ()
    """Of the place where it starts: each place that was compared, in a sentence, this one first."""


class AttemptStop(Message):
    """An attempt has to give up its slots."""

    type_name: ClassVar[str] = "turnbuckle.scheduling.v1.AttemptStop"

    job: JobName
    attempt: Annotated[int, Field(ge=1, le=1_000_000)]
    why: Reason = ""


class JobReason(Message):
    """Why one job got slots or not in one decision."""

    type_name: ClassVar[str] = "turnbuckle.scheduling.v1.JobReason"

    job: JobName
    turn: Count
    """Place in the policy's order, from 0."""
    free_slots: Count
    """Left when its turn came."""
    chosen: bool
    held: bool = False
    index: NonNegativeFloat = 0.0
    """The policy's, per slot-hour; 0: it has none."""
    service_slot_s: NonNegativeFloat = 0.0
    """Attained until then."""
    why: Reason = ""


class Trigger(StrEnum):
    """What a decision was made for."""

    SUBMITTED = "submitted"
    WORK = "work"
    NODE = "node"
    QUANTUM = "quantum"
    CONTROL = "control"


MAX_REASONS: Final = 20


class ScheduleDecision(Message):
    """Which attempts begin, and which have to stop.

    Stored only if there is one of them, or if jobs have moved in the queues of the policy.
    """

    type_name: ClassVar[str] = "turnbuckle.scheduling.v1.ScheduleDecision"

    trigger: Trigger
    policy: str
    starts: tuple[AttemptStart, ...] = ()
    stops: tuple[AttemptStop, ...] = ()
    reasons: Annotated[tuple[JobReason, ...], Field(max_length=MAX_REASONS)] = ()
    """Of the jobs that start or stop, and then of those before and behind them in the order."""
    shifts: tuple[JobShift, ...] | None = None
    """Of all jobs that share links, when one of them changed."""
    link_scores: tuple[LinkScore, ...] = ()
    """Of shared links, with `shifts`."""


class JobOutcome(StrEnum):
    """How a job ended."""

    ENDED = "ended"
    FAILED = "failed"
    CANCELLED = "cancelled"


class JobEnded(Message):
    """A job has ended: all that a record of it needs."""

    type_name: ClassVar[str] = "turnbuckle.scheduling.v1.JobEnded"

    job: JobName
    outcome: JobOutcome
    submitted_ns: Count
    started_ns: Count = 0
    """First start; 0: it was never started."""
    ended_ns: Count
    ran_s: NonNegativeFloat = 0.0
    """Run time that was progress: without waiting, restoring and what was lost."""
    restoring_s: NonNegativeFloat = 0.0
    waited_s: NonNegativeFloat = 0.0
    lost_s: NonNegativeFloat = 0.0
    """Run time of attempts that were lost or could not save their state."""
    attempts: Count = 0
    preemptions: Count = 0
    workers: Annotated[int, Field(ge=1, le=MAX_WORKERS)]
    slots: Annotated[int, Field(ge=1, le=MAX_SLOTS_PER_WORKER)]
    node: ClusterNode | None = None
    """Of rank 0, as of the last start."""
    task: TaskFeatures | None = None
    run: str = ""
    estimate: RunTime | None = None
    estimate_source: EstimateSource = EstimateSource.NONE
    exit_code: int | None = None
    """Of the first worker that failed."""
    out_of_memory: bool = False
    reason: Reason = ""


class ScheduleEvent(Message):
    """One entry of the stream `SCHEDULE`; without content: the lead was taken.

    An entry's parts hold at the same moment, and are folded in the order of its fields.
    """

    type_name: ClassVar[str] = "turnbuckle.scheduling.v1.ScheduleEvent"
    sparse: ClassVar[bool] = True

    leader: Name
    """Replica that wrote it."""
    time_ns: Count
    """By the leader's clock, never before the entry ahead: the times of jobs are counted by it."""
    nodes: tuple[ClusterNode, ...] | None = None
    """All nodes, when one of them changed."""
    links: tuple[ClusterLink, ...] | None = None
    """All links at the rates that count now, when one of them changed."""
    profiles: tuple[TrafficProfile, ...] = ()
    """Of jobs whose traffic was learned, or has changed."""
    submitted: tuple[JobSubmitted, ...] = ()
    controlled: tuple[JobControlled, ...] = ()
    drained: tuple[Name, ...] = ()
    """Nodes on which nothing is to be started from now on."""
    undrained: tuple[Name, ...] = ()
    worked: tuple[WorkEvent, ...] = ()
    answered: tuple[JobPlanned, ...] = ()
    """The planner's answers about places where jobs with a model may start."""
    planned: tuple[JobPlanned, ...] = ()
    """Of jobs with a model that the decision starts: the answer about the place where each does."""
    decision: ScheduleDecision | None = None
    ended: tuple[JobEnded, ...] = ()
    """Jobs that ended by this entry."""
    by: str = ""
    """Of a person's request: who, as far as it is known."""


class SchedulerHeartbeat(Message):
    """The leading scheduler is alive; another takes the lead after three lost ones."""

    type_name: ClassVar[str] = "turnbuckle.scheduling.v1.SchedulerHeartbeat"

    leader: Name
    sequence: Count
    """Of the last entry of the stream that it has folded."""
    time_ns: Count


# -- runners -----------------------------------------------------------------------------------------------------------


class RunnerInfo(Message):
    """Registration of a node's runner: kept in KV with a time to live."""

    type_name: ClassVar[str] = "turnbuckle.scheduling.v1.RunnerInfo"

    node: Name
    address: str
    """Where workers on other nodes reach this one."""
    incarnation: Count
    time_ns: Count
    slots: Annotated[int, Field(ge=0, le=100_000)]
    gpus: Annotated[int, Field(ge=0, le=100_000)] = 0
    cores: NonNegativeFloat
    memory_bytes: Count
    rack: str = ""
    device_kind: str = ""
    """Of what each slot has, as layer profiles name it (`schemas.devices.Device.kind`); empty: not known."""
    device_memory_bytes: Count = 0
    """Of what each slot has: a GPU's own, else the slot's share of the node's. 0: not known."""
    congestion_controls: tuple[str, ...] = ()
    """That its workers can have; the host's default first."""
    engine: str = "processes"
    """``processes``, or ``slurm``: then it stands for one node of a Slurm cluster."""
    version: str = ""
    holder: str = ""
    """Random token in a lock file, as in `NodeInfo`."""


class OrderAction(StrEnum):
    """What a runner is to do about an attempt."""

    RUN = "run"
    """Start its workers unless they were started."""
    CHECK = "check"
    """Say what became of them; those that are not there any more are lost. Nothing is started."""
    STOP = "stop"
    """SIGTERM, and SIGKILL after the grace period; at once for a job that begins anew (`Preemption.RESTART`)."""
    KILL = "kill"
    PACE = "pace"
    """Pause its workers on this node between two iterations, so that they begin to send when `WorkOrder.pace` says;
    without one, pause them no more. Lasts until the attempt is over or the runner ends."""
    FORGET = "forget"
    """The attempt is over and recorded: its files, except logs, may be removed."""


class WorkOrder(Message):
    """Of the leading scheduler to the runner of one node, about one attempt. Idempotent, repeated until answered."""

    type_name: ClassVar[str] = "turnbuckle.scheduling.v1.WorkOrder"

    sequence: Count
    """Of the last entry of `SCHEDULE` that the leader has folded: an order below the last one obeyed for the same job
    is refused."""
    leader: Name
    job: JobName
    attempt: Annotated[int, Field(ge=1, le=1_000_000)]
    action: OrderAction
    ranks: Annotated[tuple[Rank, ...], Field(min_length=1, max_length=MAX_WORKERS)]
    """On this node."""
    spec: JobSpec | None = None
    """Of `run`; with its environment."""
    nodes: tuple[Name, ...] = ()
    """Of `run`: of each worker, by rank."""
    master_address: str = ""
    master_port: Annotated[int, Field(ge=0, le=65_535)] = 0
    plan: Annotated[str, Field(max_length=MAX_PLAN_CHARACTERS)] = ""
    """Of `run`: `JobPlanned.plan`."""
    pace: Pace | None = None


class WorkerState(Message):
    """One worker as its runner knows it."""

    type_name: ClassVar[str] = "turnbuckle.scheduling.v1.WorkerState"

    rank: Rank
    last: WorkEvent | None = None
    """Its latest change; none: it is being started."""
    pid: Count = 0


class WorkReply(Message):
    """What is true now of the order's ranks."""

    type_name: ClassVar[str] = "turnbuckle.scheduling.v1.WorkReply"

    obeyed: bool
    workers: tuple[WorkerState, ...] = ()
    reason: Reason = ""
    """Why it was refused."""


class WorkerLogRequest(Message):
    """A part of what a worker wrote to its standard output and error."""

    type_name: ClassVar[str] = "turnbuckle.scheduling.v1.WorkerLogRequest"

    job: JobName
    attempt: Count = 0
    """0: the latest that the runner knows."""
    rank: Rank = 0
    offset: int = -1
    """Byte to begin with; -1: so that `lines` are returned."""
    lines: Annotated[int, Field(ge=0, le=100_000)] = 100


class WorkerLogReply(Message):
    """Reply to WorkerLogRequest."""

    type_name: ClassVar[str] = "turnbuckle.scheduling.v1.WorkerLogReply"

    attempt: Count = 0
    text: Annotated[str, Field(max_length=MAX_LOG_BYTES)] = ""
    next_offset: Count = 0
    over: bool = False
    """The worker has ended and nothing follows."""


# -- queries -----------------------------------------------------------------------------------------------------------


class SubmitRequest(Message):
    """Run a job."""

    type_name: ClassVar[str] = "turnbuckle.scheduling.v1.SubmitRequest"

    spec: JobSpec
    by: str = ""
    """Who submits, for display."""


class ControlRequest(Message):
    """Cancel, preempt or release a job, drain or undrain a node: exactly one is given."""

    type_name: ClassVar[str] = "turnbuckle.scheduling.v1.ControlRequest"

    job: str = ""
    action: JobAction | None = None
    for_s: NonNegativeFloat = 0.0
    """Of `preempt`: it is not started again before."""
    drain: str = ""
    """A node's name."""
    undrain: str = ""
    by: str = ""


class ControlReply(Message):
    """Reply to ControlRequest."""

    type_name: ClassVar[str] = "turnbuckle.scheduling.v1.ControlReply"

    done: str
    """What follows, in words."""


class JobPhase(StrEnum):
    """What a job does now, or how it ended."""

    WAITING = "waiting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"
    FAILED = "failed"
    CANCELLED = "cancelled"


class JobSpan(Message):
    """Time that a job held slots."""

    type_name: ClassVar[str] = "turnbuckle.scheduling.v1.JobSpan"

    attempt: Count
    begin_ns: Count
    end_ns: Count = 0
    """0: it holds them still."""
    nodes: tuple[Name, ...]
    """Of each worker, by rank."""


class QueuedJob(Message):
    """One job in the queue, running, or ended lately."""

    type_name: ClassVar[str] = "turnbuckle.scheduling.v1.QueuedJob"

    job: JobName
    phase: JobPhase
    workers: Count
    slots: Count
    """Of all workers together."""
    preemption: Preemption
    nodes: tuple[Name, ...] = ()
    """Of each worker, by rank, while it holds slots."""
    attempt: Count = 0
    preemptions: Count = 0
    submitted_ns: Count
    started_ns: Count = 0
    """First start; 0: never."""
    ended_ns: Count = 0
    ran_s: NonNegativeFloat = 0.0
    waited_s: NonNegativeFloat = 0.0
    restoring_s: NonNegativeFloat = 0.0
    lost_s: NonNegativeFloat = 0.0
    estimate: RunTime | None = None
    """Of the whole run, as of its submission."""
    estimate_source: EstimateSource = EstimateSource.NONE
    left: RunTime | None = None
    """Run time that it still needs; None: not known."""
    expected_start_ns: Count = 0
    """Of a waiting job; 0: never, or it runs."""
    expected_end_ns: Count = 0
    """0: never, or nothing is known of it."""
    index: NonNegativeFloat = 0.0
    """The policy's, per slot-hour."""
    ahead: tuple[JobName, ...] = ()
    """Jobs before it that hold or get slots; the most wanted first, at most 20."""
    why: str = ""
    spans: tuple[JobSpan, ...] = ()
    """The latest 20."""
    traffic: TrafficProfile | None = None
    """None: not learned, or it sends nothing."""
    shift: JobShift | None = None
    """None: it is not shifted."""
    congestion_control: str = ""
    """Of its flows, as last seen; empty: not known."""


class QueueRequest(Message):
    """Jobs and nodes, as the leading scheduler knows them."""

    type_name: ClassVar[str] = "turnbuckle.scheduling.v1.QueueRequest"

    ended_within_s: NonNegativeFloat = 3_600.0
    """Jobs that ended before are left out."""


class QueueReply(Message):
    """Reply to QueueRequest; jobs in the policy's order, those that ended last."""

    type_name: ClassVar[str] = "turnbuckle.scheduling.v1.QueueReply"

    leader: Name
    time_ns: Count
    policy: str
    slots: Count
    """Of nodes that can be used."""
    taken_slots: Count
    jobs: tuple[QueuedJob, ...]
    nodes: tuple[ClusterNode, ...]
    left_out: Count = 0
    """Jobs that are not listed because there are too many."""
    links: tuple[LinkScore, ...] = ()
    """Those that several jobs share."""


class SubmitReply(Message):
    """Reply to SubmitRequest."""

    type_name: ClassVar[str] = "turnbuckle.scheduling.v1.SubmitReply"

    job: QueuedJob
    waiting_before: Count
    """Jobs before it that wait."""
    warnings: tuple[str, ...] = ()


class JobExplainRequest(Message):
    """All decisions about one job."""

    type_name: ClassVar[str] = "turnbuckle.scheduling.v1.JobExplainRequest"

    job: JobName


class JobHistoryLine(Message):
    """One thing that happened to a job."""

    type_name: ClassVar[str] = "turnbuckle.scheduling.v1.JobHistoryLine"

    time_ns: Count
    """When it came to stand in the log."""
    happened_ns: Count = 0
    """Of what the scheduler heard of much later, as none ran: when it happened, by the node's clock. 0: then."""
    sequence: Count
    """In the stream `SCHEDULE`."""
    what: str
    """Such as ``submitted``, ``started``, ``preempted``, ``ready``, ``stopped``, ``ended``."""
    why: str = ""
    reason: JobReason | None = None
    """The job's turn in that decision."""


class JobExplainReply(Message):
    """Reply to JobExplainRequest."""

    type_name: ClassVar[str] = "turnbuckle.scheduling.v1.JobExplainReply"

    job: QueuedJob
    spec: JobSpec
    """Its environment is masked."""
    history: tuple[JobHistoryLine, ...]
    """The latest 200."""

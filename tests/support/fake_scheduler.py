"""A scheduler that answers as it is told, and runners that have logs, on a real bus: for the tests of commands."""

from __future__ import annotations

from dataclasses import dataclass, field

from schemas.message import Message
from schemas.scheduling import (
    ClusterNode,
    ControlReply,
    ControlRequest,
    EstimateSource,
    JobExplainReply,
    JobExplainRequest,
    JobHistoryLine,
    JobPhase,
    JobReason,
    JobSpan,
    JobSpec,
    LinkScore,
    Preemption,
    QueuedJob,
    QueueReply,
    QueueRequest,
    RunTime,
    SubmitReply,
    SubmitRequest,
    WorkerLogReply,
    WorkerLogRequest,
)
from schemas.services.scheduler import SCHEDULER_CONTROL, SCHEDULER_EXPLAIN, SCHEDULER_QUEUE, SCHEDULER_SUBMIT
from schemas.subjects import WORKER_LOGS
from services._runtime.bus.api import Delivery, RequestRefusedError
from services._runtime.bus.nats import NatsBus

NOW_NS = 1_700_000_000_000_000_000
MINUTE_NS = 60 * 10**9
NODES = (
    ClusterNode(node="n1", slots=2, cores=0.5, memory_bytes=1 << 30, address="127.0.0.1", rack="r1"),
    ClusterNode(node="n2", slots=2, cores=0.5, memory_bytes=1 << 30, drained=True, why="drained"),
)
LINES = (
    JobHistoryLine(time_ns=NOW_NS, sequence=7, what="submitted", why="by ann@gpu-01"),
    JobHistoryLine(
        time_ns=NOW_NS + 1,
        sequence=8,
        what="started",
        why="on n1 n2; 4 slots were left",
        reason=JobReason(
            job="try", turn=2, free_slots=4, chosen=True, index=0.77, service_slot_s=90, why="4 slots were left"
        ),
    ),
)


def queued(job: str, phase: JobPhase, **fields: object) -> QueuedJob:
    """A job in the queue: two workers of a slot each, submitted a minute ago."""
    values: dict[str, object] = {
        "job": job,
        "phase": phase,
        "workers": 2,
        "slots": 2,
        "preemption": Preemption.CHECKPOINT,
        "submitted_ns": NOW_NS - MINUTE_NS,
    }
    return QueuedJob.model_validate(values | fields)


RUNNING = queued(
    "try",
    JobPhase.RUNNING,
    nodes=("n1", "n2"),
    attempt=1,
    ran_s=250.0,
    estimate=RunTime(low_s=300, median_s=360, high_s=480),
    estimate_source=EstimateSource.ADVISOR,
    left=RunTime(low_s=50, median_s=110, high_s=230),
    expected_end_ns=NOW_NS + 2 * MINUTE_NS,
    why="runs: 4 slots were left at its turn",
    spans=(JobSpan(attempt=1, begin_ns=NOW_NS - MINUTE_NS, nodes=("n1", "n2")),),
)
WAITING = queued(
    "big",
    JobPhase.WAITING,
    slots=16,
    waited_s=1_800.0,
    ahead=("try",),
    why="needs 16 slots, and the cluster has 4: it will never start",
)
FAILED = queued("bad", JobPhase.FAILED, ended_ns=NOW_NS - MINUTE_NS, why="worker 1 exited with 3: no such file")


@dataclass(slots=True)
class FakeScheduler:
    """What it answers, and what it was asked."""

    bus: NatsBus
    jobs: dict[str, QueuedJob] = field(default_factory=dict)
    nodes: tuple[ClusterNode, ...] = NODES
    links: tuple[LinkScore, ...] = ()
    history: list[JobHistoryLine] = field(default_factory=lambda: list(LINES))
    submitted: list[SubmitRequest] = field(default_factory=list)
    controlled: list[ControlRequest] = field(default_factory=list)
    warnings: tuple[str, ...] = ()
    logs: dict[tuple[int, int], str] = field(default_factory=dict)
    """By attempt and rank, whatever the job and node."""
    logs_asked: int = 0
    running: set[int] = field(default_factory=set)
    """Attempts whose workers may still write."""

    async def serve(self) -> None:
        """Answer from now on, also for the runner of n1."""
        await self.serve_queries()
        await self.serve_logs_of("n1")

    async def serve_queries(self) -> None:
        """Answer what a scheduler is asked."""
        for job in (RUNNING, WAITING, FAILED):
            self.jobs.setdefault(job.job, job)
        await self.bus.serve_queries(
            "scheduler",
            "0.1.0",
            "test",
            {
                SCHEDULER_SUBMIT: self._submit,
                SCHEDULER_CONTROL: self._control,
                SCHEDULER_QUEUE: self._queue,
                SCHEDULER_EXPLAIN: self._explain,
            },
        )

    async def serve_logs_of(self, node: str) -> None:
        """Answer as the runner of a node."""
        await self.bus.serve(WORKER_LOGS.subject(self.bus.root, node=node), self._log)

    async def _submit(self, delivery: Delivery) -> Message:
        request = delivery.message
        assert isinstance(request, SubmitRequest)
        if request.spec.job in self.jobs:
            raise RequestRefusedError(409, f"there is a job {request.spec.job!r} already: choose another --name")
        self.submitted.append(request)
        spec = request.spec
        job = queued(
            spec.job,
            JobPhase.WAITING,
            workers=spec.workers,
            slots=spec.all_slots,
            preemption=spec.preemption,
            submitted_ns=NOW_NS,
            expected_start_ns=NOW_NS + MINUTE_NS,
            why="needs 2 slots, and 1 are left behind those before it",
        )
        self.jobs[spec.job] = job
        return SubmitReply(job=job, waiting_before=2, warnings=self.warnings)

    async def _control(self, delivery: Delivery) -> Message:
        request = delivery.message
        assert isinstance(request, ControlRequest)
        if request.job and request.job not in self.jobs:
            raise RequestRefusedError(404, f"no job {request.job!r}")
        node = request.drain or request.undrain
        if node and node not in {each.node for each in self.nodes}:
            raise RequestRefusedError(404, f"no node {node!r}")
        self.controlled.append(request)
        return ControlReply(done=f"{request.job or node}: as asked")

    async def _queue(self, delivery: Delivery) -> Message:
        assert isinstance(delivery.message, QueueRequest)
        jobs = tuple(self.jobs.values()) if delivery.message.ended_within_s else (RUNNING, WAITING)
        return QueueReply(
            leader="s1",
            time_ns=NOW_NS,
            policy="index",
            slots=sum(node.slots for node in self.nodes),
            taken_slots=2,
            jobs=jobs,
            nodes=self.nodes,
            links=self.links,
        )

    async def _explain(self, delivery: Delivery) -> Message:
        request = delivery.message
        assert isinstance(request, JobExplainRequest)
        if request.job not in self.jobs:
            raise RequestRefusedError(404, f"no job {request.job!r}")
        spec = JobSpec(
            job=request.job,
            workers=2,
            command=("/bin/sh", "-c", "python train.py"),
            directory="/srv",
            environment={"KEY": "***"},
            preemption=Preemption.CHECKPOINT,
        )
        return JobExplainReply(job=self.jobs[request.job], spec=spec, history=tuple(self.history))

    async def _log(self, delivery: Delivery) -> Message:
        request = delivery.message
        assert isinstance(request, WorkerLogRequest)
        self.logs_asked += 1
        whole = self.logs.get((request.attempt, request.rank))
        if whole is None:
            raise RequestRefusedError(404, f"no log of worker {request.rank} in attempt {request.attempt}")
        if request.offset < 0:
            text = "".join(whole.splitlines(keepends=True)[-request.lines :]) if request.lines else ""
        else:
            text = whole[request.offset :]
        return WorkerLogReply(
            attempt=request.attempt, text=text, next_offset=len(whole), over=request.attempt not in self.running
        )

"""Examples of the scheduler's and the runners' messages: one training job on two hosts, preempted once."""

from __future__ import annotations

from typing import Final

from schemas.jobs import TaskFeatures
from schemas.message import Message
from schemas.scheduling import (
    AttemptStart,
    ClusterNode,
    ControlReply,
    ControlRequest,
    EstimateSource,
    IterationSample,
    IterationSource,
    JobAction,
    JobExplainReply,
    JobExplainRequest,
    JobHistoryLine,
    JobPhase,
    JobReason,
    JobSpan,
    JobSpec,
    JobSubmitted,
    OrderAction,
    Preemption,
    QueuedJob,
    QueueReply,
    QueueRequest,
    RunnerInfo,
    RunTime,
    ScheduleDecision,
    ScheduleEvent,
    SchedulerHeartbeat,
    SubmitReply,
    SubmitRequest,
    Trigger,
    WorkerChange,
    WorkerLogReply,
    WorkerLogRequest,
    WorkerState,
    WorkEvent,
    WorkOrder,
    WorkReply,
)

_NOW: Final = 1_795_284_000_000_000_000
_EARLIER: Final = _NOW - 600_000_000_000
_JOB, _LEADER, _NODES = "resnet-k7qd", "scheduler-1", ("gpu-07", "gpu-08")
_SPEC: Final = JobSpec(
    job=_JOB,
    workers=2,
    command=("python", "train.py"),
    directory="/srv/train",
    environment={"EPOCHS": "10"},
    preemption=Preemption.CHECKPOINT,
    task=TaskFeatures(task="image-cnn", epochs=10),
)
_ESTIMATE: Final = RunTime(low_s=1_450.0, median_s=1_860.0, high_s=2_390.0)
_START: Final = AttemptStart(job=_JOB, attempt=2, nodes=_NODES, master_address="10.1.1.7", master_port=29_541)
_TURN: Final = JobReason(
    job=_JOB,
    turn=0,
    free_slots=8,
    chosen=True,
    index=1.9,
    service_slot_s=2_660.0,
    why="starts now: 8 slots were left at its turn",
)
_NODE: Final = ClusterNode(
    node="gpu-07", slots=4, gpus=4, cores=32, memory_bytes=256 << 30, rack="r1", address="10.1.1.7"
)
_READY: Final = WorkEvent(
    job=_JOB, attempt=2, rank=1, node="gpu-08", change=WorkerChange.READY, time_ns=_NOW, took_s=6.2
)
_QUEUED: Final = QueuedJob(
    job=_JOB,
    phase=JobPhase.RUNNING,
    workers=2,
    slots=2,
    preemption=Preemption.CHECKPOINT,
    nodes=_NODES,
    attempt=2,
    preemptions=1,
    submitted_ns=_EARLIER,
    started_ns=_EARLIER,
    ran_s=1_330.0,
    waited_s=542.0,
    estimate=_ESTIMATE,
    estimate_source=EstimateSource.ADVISOR,
    left=RunTime(low_s=190.0, median_s=530.0, high_s=1_060.0),
    expected_end_ns=_NOW + 530_000_000_000,
    index=1.9,
    why=_TURN.why,
    spans=(JobSpan(attempt=2, begin_ns=_NOW, nodes=_NODES),),
)

EXAMPLES: Final[tuple[Message, ...]] = (
    ScheduleEvent(
        leader=_LEADER,
        time_ns=_NOW,
        submitted=(JobSubmitted(spec=_SPEC.masked(), estimate=_ESTIMATE, estimate_source=EstimateSource.ADVISOR),),
        decision=ScheduleDecision(trigger=Trigger.SUBMITTED, policy="index", starts=(_START,), reasons=(_TURN,)),
    ),
    SchedulerHeartbeat(leader=_LEADER, sequence=4_711, time_ns=_NOW),
    IterationSample(
        job=_JOB,
        attempt=2,
        rank=0,
        node="gpu-07",
        time_ns=_NOW,
        period_us=612_000,
        sending_us=143_000,
        sent_bytes=102_228_128,
        drops=3,
        congestion_control="mltcp",
        source=IterationSource.MLTCP,
    ),
    _READY,
    WorkOrder(
        sequence=4_711,
        leader=_LEADER,
        job=_JOB,
        attempt=2,
        action=OrderAction.RUN,
        ranks=(0,),
        spec=_SPEC,
        nodes=_NODES,
        master_address="10.1.1.7",
        master_port=29_541,
    ),
    WorkReply(obeyed=True, workers=(WorkerState(rank=1, last=_READY, pid=31_337),)),
    WorkerLogRequest(job=_JOB, rank=1),
    WorkerLogReply(attempt=2, text="epoch 7 of 10: loss 0.412\n", next_offset=8_113),
    RunnerInfo(
        node="gpu-07",
        address="10.1.1.7",
        incarnation=_EARLIER,
        time_ns=_NOW,
        slots=4,
        gpus=4,
        cores=32,
        memory_bytes=256 << 30,
        rack="r1",
        version="0.1.0",
    ),
    _SPEC,
    SubmitRequest(spec=_SPEC, by="ada"),
    SubmitReply(job=_QUEUED, waiting_before=0),
    ControlRequest(job=_JOB, action=JobAction.PREEMPT, for_s=600.0, by="ada"),
    ControlReply(done=f"{_JOB} saves its state, and is not started again for 10 min"),
    QueueRequest(),
    QueueReply(leader=_LEADER, time_ns=_NOW, policy="index", slots=8, taken_slots=2, jobs=(_QUEUED,), nodes=(_NODE,)),
    JobExplainRequest(job=_JOB),
    JobExplainReply(
        job=_QUEUED,
        spec=_SPEC.masked(),
        history=(JobHistoryLine(time_ns=_NOW, sequence=4_711, what="started", why=_TURN.why, reason=_TURN),),
    ),
)

"""A scheduler's answers, made for tests and measurements of what shows them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from schemas.scheduling import (
    ClusterNode,
    EstimateSource,
    JobExplainReply,
    JobExplainRequest,
    JobHistoryLine,
    JobPhase,
    JobReason,
    JobShift,
    JobSpan,
    JobSpec,
    LinkScore,
    Preemption,
    QueuedJob,
    QueueReply,
    RunTime,
    TrafficPhase,
    TrafficProfile,
)
from schemas.services.scheduler import SCHEDULER_EXPLAIN, SCHEDULER_QUEUE
from services._runtime.bus.api import Bus, Delivery, RequestRefusedError, Subscription
from tests.support.console_lab import HOSTILE

SECOND_NS: Final = 10**9
SLOTS_PER_NODE: Final = 4
GIB: Final = 1 << 30


def queued(job: str, phase: JobPhase, now_ns: int, **changes: Any) -> QueuedJob:
    """Submitted ten minutes ago, for one slot."""
    fields: dict[str, Any] = {
        "job": job,
        "phase": phase,
        "workers": 1,
        "slots": 1,
        "preemption": Preemption.CHECKPOINT,
        "submitted_ns": now_ns - 600 * SECOND_NS,
    }
    return QueuedJob(**(fields | changes))


def small_queue(now_ns: int, **changes: Any) -> QueueReply:
    """Three nodes, of which one is drained; who runs, who waits behind whom, who was preempted, who failed."""
    minute = 60 * SECOND_NS
    estimate = RunTime(low_s=600, median_s=720, high_s=900)
    jobs = (
        queued(
            "resnet",
            JobPhase.RUNNING,
            now_ns,
            workers=3,
            slots=3,
            nodes=("n1", "n1", "n2"),
            attempt=2,
            preemptions=1,
            ran_s=300.0,
            waited_s=200.0,
            estimate=estimate,
            estimate_source=EstimateSource.ADVISOR,
            left=RunTime(low_s=300, median_s=420, high_s=600),
            expected_end_ns=now_ns + 7 * minute,
            why="the largest index",
            spans=(
                JobSpan(attempt=1, begin_ns=now_ns - 10 * minute, end_ns=now_ns - 8 * minute, nodes=("n1", "n1", "n2")),
                JobSpan(attempt=2, begin_ns=now_ns - 4 * minute, nodes=("n1", "n1", "n2")),
            ),
        ),
        queued(
            "bert",
            JobPhase.WAITING,
            now_ns,
            slots=2,
            waited_s=600.0,
            expected_start_ns=now_ns + 7 * minute,
            expected_end_ns=now_ns + 20 * minute,
            ahead=("resnet", "try", "other", "fourth"),
            why="needs 2 slots, 1 is free",
        ),
        queued("big", JobPhase.WAITING, now_ns, workers=16, slots=16, why="needs 16 slots, the cluster has 4"),
        queued(
            "try",
            JobPhase.ENDED,
            now_ns,
            started_ns=now_ns - 8 * minute,
            ended_ns=now_ns - 4 * minute,
            ran_s=240.0,
            waited_s=120.0,
            spans=(JobSpan(attempt=1, begin_ns=now_ns - 8 * minute, end_ns=now_ns - 4 * minute, nodes=("n1",)),),
        ),
        queued("bad", JobPhase.FAILED, now_ns, ended_ns=now_ns - minute, why=f"exit code 1: {HOSTILE}"),
    )
    nodes = (
        ClusterNode(node="n1", slots=2, cores=1.0, memory_bytes=4 * GIB, rack="r1"),
        ClusterNode(node="n2", slots=2, cores=1.0, memory_bytes=4 * GIB, rack="r1"),
        ClusterNode(node="n3", slots=2, cores=1.0, memory_bytes=4 * GIB, drained=True, why="drained by ann"),
        ClusterNode(node="n4", slots=2, cores=1.0, memory_bytes=4 * GIB, silent=True, why="silent for 40 s"),
    )
    fields: dict[str, Any] = {
        "leader": "s1",
        "time_ns": now_ns,
        "policy": "index",
        "slots": 4,
        "taken_slots": 3,
        "jobs": jobs,
        "nodes": nodes,
    }
    return QueueReply(**(fields | changes))


def sharing_queue(now_ns: int) -> QueueReply:
    """As `small_queue`, and three more jobs on one link: two take turns on it, the third may not be paused."""
    phase = TrafficPhase(begin_ms=0, end_ms=540, bits_per_s=100_000_000)
    running: dict[str, Any] = {"workers": 2, "slots": 2, "nodes": ("n1", "n2"), "attempt": 1}
    jobs = [
        queued(
            job,
            JobPhase.RUNNING,
            now_ns,
            **running,
            traffic=TrafficProfile(job=job, attempt=1, period_ms=1_240, phases=(phase,), sent_bytes=6_750_000),
            shift=JobShift(job=job, attempt=1, period_ms=1_250, shift_ms=shift_ms),
            congestion_control="reno",
        )
        for job, shift_ms in (("vgg", 0), ("gpt", 1_000))
    ]
    jobs.append(queued("new", JobPhase.RUNNING, now_ns, **running))
    links = (
        LinkScore(link="rack-1-up", bits_per_s=100_000_000, jobs=("gpt", "new", "vgg"), unshifted=0.5645, score=0.7648),
        LinkScore(
            link="rack-2-up",
            bits_per_s=25_000_000_000,
            jobs=("gpt", "vgg"),
            unshifted=1.0,
            score=1.0,
            why=f"they fit beside each other as they are {HOSTILE}",
        ),
        LinkScore(
            link="rack-3-up", bits_per_s=10**8, jobs=("new", "vgg"), unshifted=1.0, score=1.0, why="new is not known"
        ),
    )
    plain = small_queue(now_ns)
    return plain.model_copy(update={"jobs": (*jobs, *plain.jobs), "links": links})


def large_queue(now_ns: int, jobs: int) -> QueueReply:
    """A fifth of the jobs run, most wait, some have ended; each has held slots four times in the last hour."""
    running = jobs // 5
    nodes = tuple(
        ClusterNode(node=f"n{place:03}", slots=SLOTS_PER_NODE, cores=4.0, memory_bytes=16 * GIB)
        for place in range(running)
    )
    minute = 60 * SECOND_NS

    def one(number: int) -> QueuedJob:
        place = number % running
        phase = JobPhase.RUNNING if number < running else JobPhase.WAITING if number < jobs * 4 // 5 else JobPhase.ENDED
        held = (nodes[place].node,) * SLOTS_PER_NODE if phase is JobPhase.RUNNING else ()
        begins = [now_ns - (58 - 12 * turn - 2 * (number // running)) * minute for turn in range(4)]
        spans = [
            JobSpan(attempt=turn + 1, begin_ns=at, end_ns=at + minute, nodes=(nodes[place].node,) * 4)
            for turn, at in enumerate(begins)
        ]
        if held:
            spans.append(JobSpan(attempt=5, begin_ns=now_ns - 3 * minute, nodes=held))
        seconds = now_ns / SECOND_NS % 3_600
        return queued(
            f"job-{number:04}",
            phase,
            now_ns,
            workers=SLOTS_PER_NODE,
            slots=SLOTS_PER_NODE,
            nodes=held,
            ran_s=seconds,
            waited_s=seconds,
            left=RunTime(low_s=10, median_s=20, high_s=30),
            why=f"its index {number / 7:.3f} is smaller than that of the jobs ahead, and no slot is free",
            ahead=tuple(f"job-{other:04}" for other in range(min(number, 20))) if phase is JobPhase.WAITING else (),
            spans=tuple(spans),
        )

    return QueueReply(
        leader="s1",
        time_ns=now_ns,
        policy="index",
        slots=running * SLOTS_PER_NODE,
        taken_slots=running * SLOTS_PER_NODE,
        jobs=tuple(one(number) for number in range(jobs)),
        nodes=nodes,
    )


class FakeScheduler:
    """Answers queries as the leading scheduler does, and counts them."""

    def __init__(self, bus: Bus, queue: Callable[[int], QueueReply] = small_queue) -> None:
        self._bus = bus
        self.queue = queue
        """From the time in nanoseconds to the answer."""
        self._serving: Subscription | None = None
        self.asked = 0
        """How often for the queue."""

    async def start(self) -> None:
        """Register with the bus."""
        endpoints = {SCHEDULER_QUEUE: self._answer_queue, SCHEDULER_EXPLAIN: self._explain}
        self._serving = await self._bus.serve_queries("scheduler", "0.1.0", "runs training jobs", endpoints)

    async def stop(self) -> None:
        """Nobody answers any more."""
        if self._serving is not None:
            await self._serving.stop()

    async def _answer_queue(self, _: Delivery) -> QueueReply:
        self.asked += 1
        return self.queue(time.time_ns())

    async def _explain(self, delivery: Delivery) -> JobExplainReply:
        assert isinstance(delivery.message, JobExplainRequest)
        now_ns = time.time_ns()
        found = [job for job in self.queue(now_ns).jobs if job.job == delivery.message.job]
        if not found:
            raise RequestRefusedError(404, f"no job is named {delivery.message.job!r}")
        reason = JobReason(job=found[0].job, turn=1, free_slots=2, chosen=False, index=0.41, service_slot_s=600.0)
        lines = (
            JobHistoryLine(time_ns=found[0].submitted_ns, sequence=7, what="submitted"),
            JobHistoryLine(time_ns=now_ns - 240 * SECOND_NS, sequence=9, what="waits", why="for slots", reason=reason),
        )
        spec = JobSpec(
            job=found[0].job,
            workers=found[0].workers,
            command=("python", "train.py"),
            directory="/work",
            environment={"TOKEN": "***"},
        )
        return JobExplainReply(job=found[0], spec=spec, history=lines)

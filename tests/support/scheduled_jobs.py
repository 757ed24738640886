"""Jobs of a scheduler as its stream has them, made for tests."""

from __future__ import annotations

import time
from typing import Any

from schemas.scheduling import (
    ClusterNode,
    JobEnded,
    JobOutcome,
    JobSpec,
    JobSubmitted,
    ScheduleEvent,
)
from schemas.subjects import SCHEDULE
from services._runtime.bus.api import Bus

GIB = 1 << 30
BEGAN_NS = 1_764_100_000_000_000_000
SECOND_NS = 10**9


def cluster_node(node: str = "n1", **changes: Any) -> ClusterNode:
    """Two slots on one core and 4 GiB."""
    return ClusterNode(**({"node": node, "slots": 2, "cores": 1.0, "memory_bytes": 4 * GIB} | changes))


def job_spec(job: str = "resnet", **changes: Any) -> JobSpec:
    """One worker with one slot."""
    return JobSpec(**({"job": job, "command": ("python", "train.py"), "directory": "/work"} | changes))


def job_ended(spec: JobSpec, **changes: Any) -> JobEnded:
    """It ran for a minute and a half, once preempted."""
    fields: dict[str, Any] = {
        "job": spec.job,
        "outcome": JobOutcome.ENDED,
        "submitted_ns": BEGAN_NS,
        "started_ns": BEGAN_NS + 10 * SECOND_NS,
        "ended_ns": BEGAN_NS + 130 * SECOND_NS,
        "ran_s": 90.0,
        "restoring_s": 5.0,
        "waited_s": 25.0,
        "attempts": 2,
        "preemptions": 1,
        "workers": spec.workers,
        "slots": spec.slots,
        "node": cluster_node(),
        "task": spec.task,
        "run": spec.run,
    }
    return JobEnded(**(fields | changes))


def entry(**changes: Any) -> ScheduleEvent:
    """One entry of the stream."""
    return ScheduleEvent(**({"leader": "s1", "time_ns": BEGAN_NS} | changes))


def submission(spec: JobSpec) -> ScheduleEvent:
    """The job waits from now on."""
    return entry(submitted=(JobSubmitted(spec=spec),))


def ending(ended: JobEnded) -> ScheduleEvent:
    """The job has ended."""
    return entry(ended=(ended,))


async def store(bus: Bus, *events: ScheduleEvent) -> None:
    """Write entries as the leader does, but without a comparison."""
    for event in events:
        bus.publish_event(SCHEDULE.subject(bus.root), event, message_id=f"entry-{time.monotonic_ns()}")
    await bus.flush(60)

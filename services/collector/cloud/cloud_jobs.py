"""Finished cloud jobs as job records: states, durations, costs (thesis 4.4.2)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from schemas.accelerators import find_accelerator, gcp_needs_accelerators, with_attached, without_attached
from schemas.jobs import Configuration, CostKind, JobRecord, JobState, Price, TaskFeatures
from services.collector.cloud.grid import JobPlan, vertex_accelerator_type

DATASET: Final = "vertex"
_REASON_CHARACTERS: Final = 1_000
_DEADLINE_EXCEEDED: Final = 4
"""google.rpc.Code."""
_OUT_OF_MEMORY: Final = re.compile(
    r"out[ -]of[ -]memory|\boom[ -]?kill|outofmemory|cannot allocate memory|can't allocate memory|bad_alloc",
    re.IGNORECASE,
)
"""Vertex AI writes "ran out-of-memory and exited with a non-zero status of 9(SIGKILL)"; the rest comes from the
training code. A SIGKILL alone may have had any cause and stays a plain failure."""
_TIMED_OUT: Final = re.compile(r"exceeded (?:its |the )?(?:timeout|deadline|maximum)", re.IGNORECASE)
"""Of the job. "Connection timed out" comes from workers that have lost each other: its time is no lower bound."""


class CloudState(StrEnum):
    """State of a cloud job."""

    WAITING = "waiting"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    PARTLY_SUCCEEDED = "partly_succeeded"


_UNFINISHED: Final = frozenset({CloudState.WAITING, CloudState.RUNNING})


@dataclass(frozen=True, slots=True)
class CloudJob:
    """A job as the cloud knows it."""

    name: str
    """The cloud's own name, in full."""
    job: str
    """Value of the collector's label."""
    display_name: str
    state: CloudState
    machine_type: str
    workers: int
    """Replicas of all pools."""
    created_ns: int = 0
    started_ns: int = 0
    """0: never ran."""
    ended_ns: int = 0
    """0: unknown, which happens for a moment after the state has changed."""
    error: str = ""
    error_code: int = 0
    accelerator_type: str = ""
    """Vertex AI's name of the machines' accelerators; empty: none."""
    accelerators: int = 0
    """Per machine."""
    plan: JobPlan | None = None
    """From its submission; None: submitted by another tool."""

    @property
    def is_finished(self) -> bool:
        """Whether the job has ended with a known end time."""
        return self.state not in _UNFINISHED and self.ended_ns > 0

    @property
    def duration_s(self) -> float | None:
        """From running to the end, without queueing (start_time is when it first entered RUNNING); None: never ran."""
        if not 0 < self.started_ns < self.ended_ns:
            return None
        return (self.ended_ns - self.started_ns) / 1e9


@dataclass(frozen=True, slots=True)
class JobCost:
    """A job's cost and its origin. None: unknown."""

    usd: float | None
    kind: CostKind


def job_state(job: CloudJob) -> JobState:
    """The record's state of a finished job.

    Raises:
        ValueError: the job has not ended.
    """
    if job.state in _UNFINISHED:
        raise ValueError(f"{job.name} is {job.state}")
    if job.state is CloudState.SUCCEEDED:
        return JobState.SUCCEEDED
    if _OUT_OF_MEMORY.search(job.error):
        return JobState.OUT_OF_MEMORY
    if job.state is CloudState.EXPIRED or job.error_code == _DEADLINE_EXCEEDED or _TIMED_OUT.search(job.error):
        return JobState.TIMED_OUT
    return JobState.CANCELLED if job.state is CloudState.CANCELLED else JobState.FAILED


def derived_cost(job: CloudJob) -> JobCost:
    """Price times machines times duration; unknown if one of them is."""
    price = job.plan.price if job.plan is not None else None
    if price is None or job.duration_s is None:
        return JobCost(None, CostKind.DERIVED)
    return JobCost(price.usd_per_hour * job.workers * job.duration_s / 3_600, CostKind.DERIVED)


def job_record(job: CloudJob, cost: JobCost) -> JobRecord:
    """The record of a finished job.

    Raises:
        ValueError: it is not finished, or a field is invalid (pydantic's ValidationError).
    """
    if not job.is_finished:
        raise ValueError(f"{job.name} is not finished")
    state = job_state(job)
    task, configuration, price = _described(job)
    reason = ""
    if state is not JobState.SUCCEEDED:
        reason = (job.error or f"the job is {job.state}")[:_REASON_CHARACTERS]
    return JobRecord(
        job=job.job,
        dataset=DATASET,
        task=task,
        configuration=configuration,
        state=state,
        duration_s=job.duration_s,
        cost_usd=cost.usd,
        cost_kind=cost.kind,
        price=price,
        started_ns=job.started_ns,
        repeat=job.plan.repeat if job.plan is not None else 0,
        local_run=job.plan.local_run if job.plan is not None else "",
        reason=reason,
    )


def _described(job: CloudJob) -> tuple[TaskFeatures, Configuration, Price | None]:
    """Task, configuration and price from the job's plan.

    Raises:
        ValueError: the plan is for other machines than the job ran on.
    """
    if job.plan is None:
        return TaskFeatures(task=job.display_name or job.job), _configuration(job), None
    planned = job.plan.configuration
    ran_on = job.workers, job.machine_type, job.accelerator_type, job.accelerators
    machine_type, accelerator_type = without_attached(planned.instance_type)[0], vertex_accelerator_type(planned)
    planned_for = planned.workers, machine_type, accelerator_type, planned.accelerators
    if ran_on != planned_for:
        raise ValueError(
            f"{job.name} ran on {_machines(*ran_on)}, but was planned for {_machines(*planned_for)}: its description "
            "is another job's"
        )
    return job.plan.task, planned, job.plan.price


def _configuration(job: CloudJob) -> Configuration:
    """Of a job that another tool submitted."""
    found = find_accelerator(job.accelerator_type)
    name = found.name if found is not None else job.accelerator_type
    attached = job.accelerators > 0 and not gcp_needs_accelerators(job.machine_type)
    return Configuration(
        instance_type=with_attached(job.machine_type, name, job.accelerators) if attached else job.machine_type,
        provider="gcp",
        workers=job.workers,
        accelerator=name,
        accelerators=job.accelerators,
        accelerator_memory_gb=found.memory_gb if found is not None else 0.0,
    )


def _machines(workers: int, machine_type: str, accelerator_type: str, accelerators: int) -> str:
    each = f" with {accelerators} x {accelerator_type} each" if accelerators else ""
    return f"{workers} x {machine_type}{each}"

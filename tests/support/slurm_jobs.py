"""Orders and Slurm's jobs for tests of the Slurm engine."""

from __future__ import annotations

from typing import Any

from schemas.scheduling import JobSpec, OrderAction, WorkOrder
from services.runner.slurm.core.output import SlurmJob

LINEAGE = "0011aabb"


def slurm_order(nodes: tuple[str, ...] = ("n1", "n2"), attempt: int = 1, **fields: Any) -> WorkOrder:
    """An order to run `resnet`."""
    given = {"job": "resnet", "workers": len(nodes), "command": ("python3", "train.py"), "directory": "/data"} | fields
    return WorkOrder(
        sequence=7,
        leader="test",
        job=given["job"],
        attempt=attempt,
        action=OrderAction.RUN,
        ranks=tuple(range(len(nodes))),
        spec=JobSpec(**given),
        nodes=nodes,
        master_address="10.0.0.1",
        master_port=29_501,
    )


def slurm_job(state: str = "RUNNING", attempt: int = 1, **fields: Any) -> SlurmJob:
    """Slurm's job of it."""
    given = {"job_id": 5, "held": False, "reason": "None", "job": "resnet", "lineage": LINEAGE} | fields
    return SlurmJob(state=state, attempt=attempt, **given)


HELD = slurm_job("PENDING", held=True, reason="job requeued in held state")
WAITING = slurm_job("PENDING", reason="Resources")

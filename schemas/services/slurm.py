"""In place of the runners of all nodes of a Slurm cluster."""

from __future__ import annotations

from typing import Final

from schemas.service import BucketUse, Service
from schemas.streams import RUNNERS
from schemas.telemetry_specs import MetricSpec

SERVICE: Final = Service(
    name="slurm",
    buckets=(BucketUse(RUNNERS, writes=True, reads=True),),
    metrics=(
        MetricSpec("turnbuckle_slurm_nodes", "gauge", "nodes of the Slurm cluster"),
        MetricSpec("turnbuckle_slurm_jobs", "gauge", "training jobs in Slurm with a worker that has not ended"),
        MetricSpec("turnbuckle_slurm_orders_total", "counter", "orders of the scheduler"),
        MetricSpec("turnbuckle_slurm_refused_orders_total", "counter", "of these, refused"),
        MetricSpec("turnbuckle_slurm_failed_commands_total", "counter", "commands of Slurm that failed"),
        MetricSpec("turnbuckle_slurm_command_seconds", "histogram", "how long commands of Slurm took"),
    ),
)

"""Grid files for tests."""

from __future__ import annotations

from typing import Any

from services.collector.cloud.grid import GridFile, JobRequest, job_requests


def grid_fields(**changes: Any) -> dict[str, Any]:
    """A grid of 2 machine types x 2 numbers of workers x 2 batch sizes."""
    fields: dict[str, Any] = {
        "name": "agnews",
        "prices": {"as_of": "2026-11-01", "source": "gcp-vertex"},
        "machine_types": {
            "n1-standard-4": {"vcpu": 4, "memory_gb": 15, "usd_per_hour": 0.2185},
            "e2-highmem-8": {"vcpu": 8, "memory_gb": 64, "usd_per_hour": 0.4158},
        },
        "workers": [2, 3],
        "batch_sizes": [16, 64],
        "tasks": [
            {
                "task": {"task": "agnews", "parameter_count": 1_000, "layers": ["Embedding", "Linear"]},
                "container": {
                    "image_uri": "gcr.io/p/agnews:1",
                    "args": ["--batch-size", "{batch_size}", "--workers={workers}", '{"json": 1}'],
                    "env": {"RUN": "{job}"},
                },
                "local_run": "local-1",
            }
        ],
    }
    return fields | changes


def grid_requests(**changes: Any) -> list[JobRequest]:
    """Its jobs."""
    return job_requests(GridFile.model_validate(grid_fields(**changes)))

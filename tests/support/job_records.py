"""Records of training jobs and local runs, made for tests."""

from __future__ import annotations

from datetime import date
from typing import Any

from schemas.jobs import Configuration, CostKind, JobRecord, JobState, Price, TaskFeatures
from schemas.runs import RunEnd, RunProfile, WorkerSeries


def job_record(number: int = 1, **changes: Any) -> JobRecord:
    """A record that differs by its number."""
    fields: dict[str, Any] = {
        "job": f"job-{number}",
        "dataset": "test",
        "task": TaskFeatures(
            task="digits",
            parameter_count=1_234,
            layers=("Conv2d", "ReLU", "Linear"),
            attributes={"sync": "ring", "x": 0.5},
        ),
        "configuration": Configuration(instance_type="n1-standard-4", workers=number, batch_size=32, vcpu=4),
        "state": JobState.SUCCEEDED,
        "duration_s": 100.0 + number,
        "cost_usd": 0.1 * number,
        "cost_kind": CostKind.DERIVED,
        "price": Price(usd_per_hour=0.2185, as_of=date(2026, 11, 1), source="gcp-vertex"),
        "started_ns": 1_700_000_000_000_000_000 + number,
    }
    return JobRecord(**(fields | changes))


def run_profile(number: int = 1, samples: int = 4) -> RunProfile:
    """A local run with a master and a worker."""
    series = [0.1 * number * step for step in range(samples)]
    columns: dict[str, Any] = {
        "cpu_cores": series,
        "memory_bytes": [1e8 + step for step in series],
        "network_in_bytes_per_s": series,
        "network_out_bytes_per_s": series,
    }
    return RunProfile(
        run=f"run-{number}",
        task=TaskFeatures(task="digits"),
        configuration=Configuration(instance_type="local", workers=2),
        command=("python", "train.py"),
        duration_s=float(samples),
        end=RunEnd.TIMED_OUT,
        workers=(WorkerSeries(worker="master", **columns), WorkerSeries(worker="worker-1", **columns)),
    )

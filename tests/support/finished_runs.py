"""A finished local run with a plain law: start-up, then ten steps a second."""

from __future__ import annotations

import numpy as np

from schemas.jobs import Configuration, TaskFeatures
from schemas.runs import SERIES, RunEnd, RunProfile, WorkerSeries
from services.collector.profiler.throughput import ring_bytes_per_step

PARAMETERS = 50_000


def finished(samples: int, startup: int = 5, interval_s: float = 0.1) -> RunProfile:
    """Two workers, ten steps a second after the start-up."""
    per_step = ring_bytes_per_step(PARAMETERS, 2)
    out = np.concatenate([np.zeros(startup), np.full(samples - startup, 10.0 * per_step)])
    columns = {name: np.arange(samples, dtype="<f8").tobytes() for name in SERIES}
    columns["network_out_bytes_per_s"] = out.astype("<f8").tobytes()
    steps = round((samples - startup) * interval_s * 10)
    return RunProfile(
        run="whole",
        task=TaskFeatures(task="t", parameter_count=PARAMETERS, epochs=1, samples_per_epoch=steps * 64),
        configuration=Configuration(instance_type="local", workers=2, batch_size=32),
        interval_s=interval_s,
        duration_s=samples * interval_s,
        end=RunEnd.FINISHED,
        exit_codes=(0, 0),
        workers=tuple(WorkerSeries(worker=name, **columns) for name in ("master", "worker-1")),
    )

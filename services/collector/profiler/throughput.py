"""A local run's rate of training from its network series, without changes of the user's program.

Data-parallel training sends each worker's gradients once per step. A ring all-reduce (gloo's, and NCCL's for large
messages) moves 2 (w - 1) / w x bytes of the gradients out of every one of w workers, so that bytes sent say how many
steps there were (Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce algorithms"). Headers add some per cent, and
what else a program sends counts as steps, too. Gradient accumulation, compression, sharded or frozen parts send less:
then the number is that of full synchronisations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from schemas.runs import RunProfile
from services.collector.profiler.series import Series, period

GRADIENT_BYTES: Final = 4
"""float32."""
_ACTIVE_SHARE: Final = 0.1
"""Of the 90th percentile of traffic: from the first interval above it on, the job trains."""
_STEADY_SAMPLES: Final = 5
"""Fewer intervals of training say nothing about its rate."""


class Method(StrEnum):
    """Where a rate comes from."""

    NETWORK = "network"
    """From bytes sent and the number of parameters."""
    PERIOD = "period"
    """From the repetition in the network's series, taken as one step each. It may be an epoch as well."""
    OUTPUT = "output"
    """From the epochs or steps that the command writes itself."""


@dataclass(frozen=True, slots=True)
class Throughput:
    """A local run's rate of training."""

    steps_per_s: float
    method: Method
    startup_s: float
    """From the start of the workers to the first exchange: imports, data, rendezvous."""
    training_s: float
    """From there to the end of the series."""
    period_s: float | None
    """Of the repetition in what the workers send, if there is one: an epoch, or a slow step."""
    steps_per_period: float | None


@dataclass(frozen=True, slots=True)
class WholeRun:
    """The training to its end, at the local run's configuration."""

    steps: int
    duration_s: float
    measured: bool
    """The run got to its end: no estimate."""


def ring_bytes_per_step(parameter_count: int, workers: int) -> float:
    """What each worker sends per step: 2 (w - 1) / w x 4 bytes x parameters; 0 for a single worker."""
    return 2 * (workers - 1) / workers * GRADIENT_BYTES * parameter_count


def sent(profile: RunProfile) -> Series:
    """Median over the workers of bytes sent per second, shape ``(samples,)``.

    In a ring all send the same; the median leaves out what only the master sends (a broadcast, a data set).
    """
    table = np.stack([worker.column("network_out_bytes_per_s") for worker in profile.workers])
    return np.asarray(np.median(table, axis=0), dtype=np.float64)


def training_starts(rate: Series) -> int | None:
    """The first interval with real traffic; None where there never is any."""
    high = float(np.quantile(rate, 0.9)) if len(rate) else 0.0
    if high <= 0:
        high = float(rate.max()) if len(rate) else 0.0
    if high <= 0:
        return None
    return int(np.argmax(rate >= _ACTIVE_SHARE * high))


def throughput(profile: RunProfile) -> Throughput | None:
    """A run's rate of training; None if its series do not determine it.

    None for: a single worker, no traffic, too short a training, or neither the number of parameters nor a period.
    """
    rate = sent(profile)
    first = training_starts(rate)
    workers = len(profile.workers)
    if first is None or workers < 2 or len(rate) - first < _STEADY_SAMPLES:
        return None
    training = rate[first:]
    intervals = period(training)
    period_s = None if intervals is None else intervals * profile.interval_s
    per_step = ring_bytes_per_step(profile.task.parameter_count, workers)
    if per_step > 0:
        steps_per_s, method = float(training.mean()) / per_step, Method.NETWORK
    elif period_s is not None:
        steps_per_s, method = 1.0 / period_s, Method.PERIOD
    else:
        return None
    return Throughput(
        steps_per_s,
        method,
        startup_s=first * profile.interval_s,
        training_s=len(training) * profile.interval_s,
        period_s=period_s,
        steps_per_period=None if period_s is None else period_s * steps_per_s,
    )


def steps_of(samples_per_epoch: int, epochs: int, batch_size: int, workers: int) -> int | None:
    """Steps of the whole training: each epoch is shared out among the workers, the last batch may be smaller.

    None where one of the numbers is not known (0).
    """
    if min(samples_per_epoch, epochs, batch_size, workers) < 1:
        return None
    return epochs * math.ceil(math.ceil(samples_per_epoch / workers) / batch_size)

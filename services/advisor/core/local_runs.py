"""Local runs beside those of the records: which cores a run used, how fast they are, and what links both machines.

Ratios of durations are learnt against the machine of the records' local runs, the reference. A local run made elsewhere
is one more observation, of its own workers, cores and memory; what it took on cores of another speed is scaled by the
calibrations of both machines (`schemas.runs.MachineSpeed`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from schemas.accelerators import canonical_name
from schemas.jobs import Configuration, JobRecord, JobState, TaskFeatures
from schemas.runs import MachineSpeed, RunProfile
from services.advisor.core.whole_job_duration import quiet_ratio, whole_job_duration

_SATURATED: Final = 0.9
"""Quantile of a worker's samples that is the number of cores it can keep busy."""
UNCOMPARED_DEVIATION: Final = 0.3
"""Prior standard deviation of the logarithm of the speed of a core over another one's: two server processors of one
decade differ by less than a factor of 1.8 in 19 of 20 cases."""
REPEATED_DEVIATION: Final = 0.05
"""The same of two calibrations of equal cores."""

NO_ACCELERATOR_RUN: Final = (
    "no measured training links a run without accelerators to one on them: give the work of a step and its batch "
    "(turnbuckle features --batch-size), or one run on an accelerator"
)


def cores_used(profile: RunProfile) -> float:
    """Return the cores that each worker keeps busy, at most its limit; the limit where nothing was sampled.

    On a quiet machine it keeps more of them busy, in the ratio by which `whole_job_duration` makes the run shorter.
    """
    limit = profile.configuration.vcpu
    samples = [one.column("cpu_cores") for one in profile.workers if one.samples]
    if not samples:
        return limit
    used = float(np.mean([np.quantile(one, _SATURATED) for one in samples]))
    if profile.contention is not None:
        used /= quiet_ratio(profile.contention)
    return min(used, limit) if limit and used else used or limit


def as_record(profile: RunProfile, task: TaskFeatures) -> JobRecord:
    """Return the whole job at the place of a finished local run, which measured it."""
    return JobRecord(
        job=f"local-run:{profile.run}",
        dataset="local",
        task=task,
        configuration=profile.machine,
        state=JobState.SUCCEEDED,
        duration_s=whole_job_duration(task, profile).time_s,
        local_run=profile.run,
    )


def same_place(one: Configuration, other: Configuration) -> bool:
    """Whether two local runs were made on the same configuration of the same machine."""
    return one.model_copy(update={"memory_gb": 0.0}) == other.model_copy(update={"memory_gb": 0.0})


def placed(profile: RunProfile, machines: Iterable[Configuration]) -> Configuration:
    """Return a local run's configuration as one of those that were measured: by the cores that it used.

    Memory and network beyond those of the measured machines change nothing that was measured, so they are limited to
    theirs; a network without a limit is that of one machine, which is faster than any between machines.
    """
    known = list(machines)
    where = profile.machine
    network = where.network_gbps or math.inf
    return where.model_copy(
        update={
            "vcpu": cores_used(profile),
            "memory_gb": _within(where.memory_gb, [one.memory_gb for one in known]),
            "network_gbps": _within(network, [one.network_gbps for one in known]),
        }
    )


def _within(value: float, known: Sequence[float]) -> float:
    """Return the value, limited to the range of those that are known; 0, not known, without any."""
    known = [one for one in known if one]
    return min(max(value, min(known)), max(known)) if known and value else 0.0


def missing_local_link(local: Configuration, machines: Iterable[Configuration]) -> str:
    """Return why nothing links a local run's machine to those that were measured; empty if something does."""
    known = list(machines)
    if not known or any(one.instance_type == local.instance_type and one.provider == local.provider for one in known):
        return ""
    accelerator = canonical_name(local.accelerator)
    with_it = [one for one in known if canonical_name(one.accelerator) == accelerator]
    if not with_it:
        if not accelerator:
            return NO_ACCELERATOR_RUN
        return (
            f"the local run was made with {accelerator}, and no such machine was measured: run a job on a measured one"
        )
    if local.vcpu and any(one.vcpu for one in with_it):
        return ""
    return (
        "the cores of the local run, or of the machines that were measured, are not known: make the local run on a "
        "machine that was measured, or give their vcpu"
    )


@dataclass(frozen=True, slots=True)
class SpeedRatio:
    """How much faster a local run's cores are than the reference's."""

    logarithm: float = 0.0
    variance: float = 0.0
    """Of the logarithm around the training's own ratio."""
    compared: bool = True


@dataclass(frozen=True, slots=True)
class LocalRunElsewhere:
    """A local run on another machine than those of the records."""

    place: Configuration
    """As one of the configurations that were measured."""
    speed: SpeedRatio
    """Of its cores over those of the records' local runs."""


def speed_ratio(local: MachineSpeed | None, references: Iterable[MachineSpeed]) -> SpeedRatio:
    """Compare the calibrations of two machines; a training's own ratio lies about those of its kinds of work.

    The logarithm is the mean of those of matrix products and of copying, and half of their difference is its deviation.
    """
    known = list(references)
    if local is None or not known:
        return SpeedRatio(0.0, UNCOMPARED_DEVIATION**2, compared=False)
    ratios = [
        math.log(getattr(local, name) / statistics.median(getattr(one, name) for one in known))
        for name in ("matmul_flops_per_cpu_s", "copy_bytes_per_cpu_s")
    ]
    spread = (max(ratios) - min(ratios)) / 2.0
    return SpeedRatio(statistics.fmean(ratios), spread**2 + REPEATED_DEVIATION**2)


_SHOWN: Final = {
    "matmul_flops_per_cpu_s": "matrix products",
    "copy_bytes_per_cpu_s": "copying",
    "disk_write_bytes_per_s": "disk",
    "loopback_bytes_per_s": "loopback",
}


def compared_text(local: MachineSpeed, references: Sequence[MachineSpeed]) -> str:
    """Return how this machine compares with the reference, such as ``matrix products 1.2 x, copying 0.9 x``."""
    ratios = []
    for name, text in _SHOWN.items():
        known = [value for one in references if (value := getattr(one, name))]
        if known and getattr(local, name):
            ratios.append(f"{text} {getattr(local, name) / statistics.median(known):.2g} x")
    return ", ".join(ratios)

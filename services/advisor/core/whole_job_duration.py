"""The whole job's duration at the local run's configuration, estimated from the local run.

A run that finished after ``W`` seconds, of them ``s`` of start-up (imports, data, rendezvous), and a job with
``k`` times its work:

    ``T = s + (W - s) k``                      ``Var T = (1 - k)^2 Var s``

A run that was stopped early, with a measured rate of training, has ``W = s + N / r``: ``N`` units of
work (steps or epochs) at ``r`` per second, known to a relative standard error ``c``. By the delta method

    ``T = s + (W - s) k``                      ``Var T = (1 - k)^2 Var s + ((W - s) k c)^2``

and ``Var log T = Var T / T^2``. Start-up is never scaled; of one that nothing marks, mean and variance are those of
`unmarked_startup_s`. Without a rate the duration so far is a lower bound.

On a machine that was busy with other work, a share ``w`` of the run was lost to that at most
(`CpuContention.lost_share`): on a quiet one the job takes ``(1 - w) T`` to ``T``. With a logarithm that is uniform
over that, ``T`` becomes

    ``sqrt(1 - w) T``                          ``Var log T += log(1 - w)^2 / 12``
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from schemas.jobs import TaskFeatures
from schemas.runs import CpuContention, RunEnd, RunProfile

NAN: Final = float("nan")
RATE_ERROR: Final = 0.15
"""Relative standard error of a rate without one (local runs of version 0.1)."""
_STARTUP_SHARE: Final = 0.5
_MOST_STARTUP_S: Final = 120.0
"""A start-up that nothing marks is uniform between 0 and the smaller of this share of the run and this duration."""
_LEAST_KEPT: Final = 0.01
"""Of a run's duration: less of it was never left by other work."""
_GUESSED: Final = "period"
"""A period of the series: a step or an epoch, undetermined."""


class LocalRunKind(StrEnum):
    """Kind of the local run; the coverage of intervals is measured per kind."""

    FINISHED = "finished"
    """The local run finished."""
    CUT = "cut"
    """The local run was stopped, and its rate is known."""
    ELSEWHERE = "elsewhere"
    """The local run was made on another machine than those of the records."""
    NONE = "none"
    """No local run, or it was stopped and its rate is unknown."""


@dataclass(frozen=True, slots=True)
class WholeJobDuration:
    """Estimate of the whole job's duration at the local run's configuration."""

    kind: LocalRunKind = LocalRunKind.NONE
    time_s: float = NAN
    """NaN if unknown."""
    log_variance: float = 0.0
    """Of the logarithm of `time_s` around the truth; 0 where the whole job was measured."""
    least_s: float = NAN
    """Lower bound from a run without a rate: its duration."""
    why_unknown: str = ""
    """Why there is no `time_s`, and the remedy; empty if there is one, or no local run."""


def work_ratio(task: TaskFeatures, profile: RunProfile) -> float:
    """Return the job's training over the local run's: by epochs and samples, else by steps; 1 if unknown."""
    here, there = task, profile.task
    if here.steps and there.steps and not (here.epochs and there.epochs):
        return here.steps / there.steps
    ratio = 1.0
    for name in ("epochs", "samples_per_epoch"):
        if getattr(here, name) and getattr(there, name):
            ratio *= getattr(here, name) / getattr(there, name)
    return ratio


def unmarked_startup_s(whole_s: float) -> tuple[float, float]:
    """Return mean and standard deviation of a start-up of which nothing but the run's duration is known."""
    most_s = min(_STARTUP_SHARE * whole_s, _MOST_STARTUP_S)
    return most_s / 2.0, most_s / math.sqrt(12.0)


def scaled(whole_s: float, ratio: float) -> tuple[float, float]:
    """Return the duration of `ratio` times the work of a run whose start-up is unmarked, and its log's variance."""
    startup_s, error_s = unmarked_startup_s(whole_s)
    time_s = startup_s + (whole_s - startup_s) * ratio
    return time_s, ((1.0 - ratio) * error_s / time_s) ** 2


def whole_job_duration(task: TaskFeatures, profile: RunProfile | None) -> WholeJobDuration:
    """Estimate from a job's features and its local run."""
    if profile is None or profile.duration_s <= 0 or profile.end is RunEnd.FAILED:
        return WholeJobDuration()
    finished = profile.end is RunEnd.FINISHED
    found = _finished(profile, work_ratio(task, profile)) if finished else _cut(task, profile)
    return found if profile.contention is None else _on_quiet_machine(found, quiet_ratio(profile.contention))


def quiet_ratio(contention: CpuContention) -> float:
    """Return the duration on the machine without other work over the measured one, at the middle of what it can be."""
    return math.sqrt(max(1.0 - contention.lost_share, _LEAST_KEPT))


def _on_quiet_machine(found: WholeJobDuration, ratio: float) -> WholeJobDuration:
    return replace(
        found,
        time_s=found.time_s * ratio,
        log_variance=found.log_variance + math.log(ratio**2) ** 2 / 12.0,
        least_s=found.least_s * ratio**2,
    )


def _finished(profile: RunProfile, ratio: float) -> WholeJobDuration:
    whole_s = profile.duration_s
    startup_s, error_s = _startup_s(profile, whole_s)
    time_s = startup_s + (whole_s - startup_s) * ratio
    return WholeJobDuration(LocalRunKind.FINISHED, time_s, ((1.0 - ratio) * error_s / time_s) ** 2)


def _cut(task: TaskFeatures, profile: RunProfile) -> WholeJobDuration:
    startup_s, startup_error_s = _startup_s(profile, profile.duration_s)
    error = _rate_error(profile)
    if error is None:
        return WholeJobDuration(least_s=profile.duration_s, why_unknown=_no_rate(profile))
    training_s, ratio = _training_s(task, profile, startup_s)
    if training_s is None:
        return WholeJobDuration(least_s=profile.duration_s, why_unknown=_no_work(profile))
    time_s = startup_s + training_s * ratio
    variance = ((1.0 - ratio) * startup_error_s) ** 2 + (training_s * ratio * error) ** 2
    return WholeJobDuration(LocalRunKind.CUT, time_s, variance / time_s**2, profile.duration_s)


def _training_s(task: TaskFeatures, profile: RunProfile, startup_s: float) -> tuple[float | None, float]:
    """Return the training's duration without its start-up, and the factor of the job's work over it."""
    if (whole_s := _estimate(profile, "whole_run_s")) is not None:
        return max(whole_s, profile.duration_s) - startup_s, work_ratio(task, profile)
    if (epoch_s := _estimate(profile, "epoch_s")) and task.epochs:
        samples = task.samples_per_epoch / (profile.task.samples_per_epoch or task.samples_per_epoch or 1)
        return epoch_s * task.epochs, samples or 1.0
    here = profile.configuration
    if (steps_per_s := _estimate(profile, "steps_per_s")) and task.steps:
        return task.steps / steps_per_s, 1.0
    if steps_per_s and task.epochs and task.samples_per_epoch and here.batch_size:
        batches = math.ceil(math.ceil(task.samples_per_epoch / here.workers) / here.batch_size)
        return task.epochs * batches / steps_per_s, 1.0
    return None, 1.0


def _rate_error(profile: RunProfile) -> float | None:
    """Return the rate's relative standard error; None without a reliable rate."""
    if _estimate(profile, "steps_per_s") is None and _estimate(profile, "epoch_s") is None:
        return None
    if profile.configuration.attributes.get("steps_per_s_from") == _GUESSED:
        return None
    error = _estimate(profile, "rate_error")
    return RATE_ERROR if error is None else error


def _startup_s(profile: RunProfile, lasted_s: float) -> tuple[float, float]:
    """Return the start-up's duration and its standard error."""
    marked_s = _estimate(profile, "startup_s")
    if marked_s is None:
        return unmarked_startup_s(lasted_s)
    return min(marked_s, lasted_s), _estimate(profile, "startup_error_s") or 0.0


def _estimate(profile: RunProfile, name: str) -> float | None:
    """An attribute estimated by the collector (its `profiler/rate.py`); None if absent, negative or not finite."""
    value = profile.configuration.attributes.get(name)
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) and value >= 0 else None


def _stopped(profile: RunProfile) -> str:
    return f"the local run {profile.run} was stopped after {profile.duration_s:.3g} s"


def _no_rate(profile: RunProfile) -> str:
    return (
        f"{_stopped(profile)} and its rate of training is not known, so the job takes longer than that, by an unknown "
        "amount: profile it again with its features (turnbuckle profile --features features.json), let it print "
        "its epochs or steps, or let it end (fewer epochs)"
    )


def _no_work(profile: RunProfile) -> str:
    if _estimate(profile, "epoch_s") is not None:
        return f"{_stopped(profile)} and it is not known how many epochs the job has: say epochs in job.yaml"
    return (
        f"{_stopped(profile)} and it is not known how many steps the job has: say steps in job.yaml, or epochs and "
        "samples_per_epoch there and --batch-size to turnbuckle profile"
    )

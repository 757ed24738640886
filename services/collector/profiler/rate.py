"""A local run's rate of training, its standard error, and the whole training's duration, from the best source.

Sources in this order: the progress in the command's output (`progress`), bytes sent over bytes per step
(`throughput`), and a period in the series, which may be a step or an epoch and is only a hint.

The whole run takes ``t + (N - n) / r``: what was done, ``n`` of ``N`` units of work, took ``t`` with its start-up, and
the rest goes on at the rate ``r`` of the units after the warm-up (`steady`), from the end of one to the end of another:
a window that ends within a unit would count a part of it as slowness. The relative standard error of ``r`` is that of
the means of consecutive blocks (the batch means method), so that what is slow to vary counts, and for bytes what
headers and other traffic add. At the end, the rate as text, or what is missing for the advisor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from schemas.runs import RunEnd, RunProfile
from services.collector.profiler.progress.choice import Choice
from services.collector.profiler.progress.fit import Pace
from services.collector.profiler.series import Series, autocorrelation, period
from services.collector.profiler.steady import completions, warm_up
from services.collector.profiler.throughput import (
    Method,
    Throughput,
    WholeRun,
    ring_bytes_per_step,
    sent,
    steps_of,
    throughput,
    training_starts,
)

BLOCKS: Final = 8
BYTES_ERROR: Final = 0.05
"""Relative: on the nine local runs of the shipped data set, steps by bytes were off by 4 % (root mean square), 8 % at
most: headers, and what else is sent."""
MOST_ERROR: Final = 0.5
"""A rate with a larger relative standard error is none."""
_LEAST_STEPS: Final = 5
"""Of fewer that are done there are not four durations: too few to tell a warm-up from what varies."""
_GOOD: Final = 0.1
"""A pace that is known better than this goes before the bytes; a worse one only where there are none."""


class Unit(StrEnum):
    """What is counted."""

    STEP = "step"
    EPOCH = "epoch"


@dataclass(frozen=True, slots=True)
class Rate:
    """A reliable rate of training."""

    unit: Unit
    per_s: float
    relative_error: float
    """Standard error over the rate."""
    startup_s: float
    startup_error_s: float
    method: Method
    done: float
    """Units that were trained until `done_s`."""
    done_s: float
    """From the start of the workers."""
    total: float = 0.0
    """Units of the whole training by the command's output or by the task's features; 0: unknown."""


def rate_of(profile: RunProfile, pace: Pace | None = None) -> Rate | None:
    """Return the best rate from a run's output and series; None without one (a period alone is none)."""
    found = throughput(profile)
    by_bytes = _by_bytes(profile, found) if found is not None and found.method is Method.NETWORK else None
    best = by_bytes
    if pace is not None and (pace.relative_error <= _GOOD or by_bytes is None):
        best = _by_output(profile, pace)
    return best if best is not None and best.relative_error <= MOST_ERROR else None


def _by_output(profile: RunProfile, pace: Pace) -> Rate:
    """The first exchange ends the start-up; of a single worker, what the pace leaves before its first unit."""
    first = training_starts(sent(profile)) if len(profile.workers) > 1 else None
    unit = Unit.EPOCH if pace.epochs else Unit.STEP
    if first is not None:
        startup_s, error_s = first * profile.interval_s, profile.interval_s
    else:
        before_s = pace.first / pace.per_s
        startup_s = float(np.clip(pace.first_s - before_s, 0.0, profile.duration_s))
        error_s = min(max(before_s, profile.interval_s), profile.duration_s)
    return Rate(
        unit, pace.per_s, pace.relative_error, startup_s, error_s, Method.OUTPUT, pace.seen, pace.last_s, pace.total
    )


def _by_bytes(profile: RunProfile, found: Throughput) -> Rate | None:
    interval_s = profile.interval_s
    per_step = ring_bytes_per_step(profile.task.parameter_count, len(profile.workers))
    first = round(found.startup_s / interval_s)
    ends_s, group = completions(sent(profile)[first:] * interval_s / per_step, interval_s)
    if len(ends_s) < _LEAST_STEPS:
        return None
    took_s = np.diff(ends_s)
    steady_s = took_s[warm_up(took_s) :]
    return Rate(
        Unit.STEP,
        group / float(steady_s.mean()),
        float(np.hypot(block_error(steady_s), BYTES_ERROR)),
        found.startup_s,
        interval_s,
        Method.NETWORK,
        float(group * len(ends_s)),
        found.startup_s + float(ends_s[-1]),
    )


def block_error(values: Series | Sequence[float]) -> float:
    """Return the relative standard error of a series' mean, from the means of up to `BLOCKS` consecutive blocks."""
    blocks = np.array([float(np.mean(one)) for one in np.array_split(np.asarray(values), BLOCKS) if len(one)])
    if len(blocks) < 2 or blocks.mean() <= 0:
        return 1.0
    return float(blocks.std(ddof=1) / np.sqrt(len(blocks)) / blocks.mean())


def whole_run_of(profile: RunProfile, rate: Rate | None) -> WholeRun | None:
    """Return how long the whole training takes at the local run's configuration; None where that is not known.

    Measured where the run got to its end; else estimated, and never less than what has been seen.
    """
    task, place = profile.task, profile.configuration
    steps = steps_of(task.samples_per_epoch, task.epochs, place.batch_size, place.workers)
    if profile.end is RunEnd.FINISHED:
        return WholeRun(steps or 0, profile.duration_s, measured=True)
    if rate is None:
        return None
    if rate.unit is Unit.EPOCH:
        units: float | None = task.epochs or rate.total
    else:
        units = rate.total or task.steps or steps
    if not units:
        return None
    whole_s = rate.done_s + (units - rate.done) / rate.per_s
    return WholeRun(steps or task.steps, max(whole_s, profile.duration_s), measured=False)


def with_estimates(profile: RunProfile, pace: Pace | None = None) -> RunProfile:
    """Return the profile with its rate and the whole run's duration as attributes of its configuration.

    What the output tells of the number of epochs becomes a feature of the task where it has none.
    """
    rate = rate_of(profile, pace)
    if pace is not None and pace.epochs and not profile.task.epochs:
        # "Epoch 0/4" is of four or of five until it ends: no half epochs.
        counted = pace.total if pace.total == int(pace.total) else 0
        trained = pace.begun if profile.end is RunEnd.FINISHED else counted
        profile = profile.model_copy(update={"task": profile.task.model_copy(update={"epochs": round(trained)})})
    if pace is not None and pace.optimizer_steps and pace.total and not profile.task.steps:
        profile = profile.model_copy(update={"task": profile.task.model_copy(update={"steps": round(pace.total)})})
    whole = whole_run_of(profile, rate)
    found: dict[str, float | str] = {}
    if rate is not None:
        found |= {"startup_s": rate.startup_s, "startup_error_s": rate.startup_error_s}
        found |= {"rate_error": rate.relative_error, "steps_per_s_from": rate.method.value}
        found |= {"steps_per_s": rate.per_s} if rate.unit is Unit.STEP else {"epoch_s": 1.0 / rate.per_s}
    elif (hint := throughput(profile)) is not None and hint.method is Method.PERIOD:
        found |= {"steps_per_s": hint.steps_per_s, "startup_s": hint.startup_s, "steps_per_s_from": hint.method.value}
    if whole is not None:
        found["whole_run_s"] = whole.duration_s
    attributes = profile.configuration.attributes | found
    return profile.model_copy(
        update={"configuration": profile.configuration.model_copy(update={"attributes": attributes})}
    )


_FROM = {Method.OUTPUT: "by the command's own output", Method.NETWORK: "by the bytes sent per step"}


def rate_sentence(profile: RunProfile, rate: Rate | None, choice: Choice | None = None) -> str:
    """Return a sentence with the rate and the whole training's estimated duration, or with the output's counters."""
    if profile.end is RunEnd.FINISHED:
        return f"the training got to its end: {profile.duration_s:.3g} s here are measured"
    if rate is None:
        return _no_rate(profile, choice or Choice())
    text = f"rate: {rate.per_s:.3g} {rate.unit.value}s/s, +-{1.96 * rate.relative_error:.0%} ({_FROM[rate.method]})"
    whole = whole_run_of(profile, rate)
    if whole is not None:
        return f"{text}; the whole training takes about {_length(whole.duration_s)} here, as far as this run shows"
    if rate.unit is Unit.EPOCH:
        return f"{text}; of how many epochs is not known: give --epochs here, or epochs in job.yaml"
    return (
        f"{text}; of how many steps is not known: give --steps, or --batch-size, and --epochs and --samples-per-epoch "
        "here or in job.yaml"
    )


def _no_rate(profile: RunProfile, choice: Choice) -> str:
    return (
        f"no rate of training was found{_repetition(profile)}{_reason(choice)}: "
        '`turnbuckle advise` will say "not known". Any of these gives it: '
        "--features features.json (turnbuckle features ... --json), with two workers or more; a command that prints "
        "its epochs or steps, such as `epoch 3/50`, or writes them to $TURNBUCKLE_PROGRESS_FILE (docs/advisor.md); a "
        "run that gets to its end (fewer epochs, with --epochs)"
    )


def _reason(choice: Choice) -> str:
    """Why the output's counters give none, and which they are."""
    text = f" ({choice.why})" if choice.why else ""
    if not choice.candidates:
        return text
    shown = "; ".join(f"{one.name!r} at {one.value:g}, {one.per_s:.3g}/s" for one in choice.candidates)
    return f"{text}. Its counters, of which --progress names that of the training: {shown}"


def _repetition(profile: RunProfile) -> str:
    """What the series show, and how plainly: the first peak of the autocorrelation."""
    rows = {"network": sent(profile), "processor": profile.workers[0].column("cpu_cores")}
    for name, series in rows.items():
        first = training_starts(series)
        training = series[first or 0 :]
        if first is not None and (intervals := period(training)) is not None:
            return (
                f" (the {name}'s use repeats every {intervals * profile.interval_s:.3g} s, autocorrelation "
                f"{autocorrelation(training, round(intervals)):.2f}: a step or an epoch, which of them is unknown)"
            )
    return ""


def _length(seconds: float) -> str:
    for limit, size, unit in ((120.0, 1.0, "s"), (7_200.0, 60.0, "min")):
        if seconds < limit:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 3_600.0:.3g} h"

"""A local run's rate as text, or what is missing for the advisor."""

from __future__ import annotations

from schemas.runs import RunEnd, RunProfile
from services.collector.profiler.rate import Rate, Unit, whole_run_of
from services.collector.profiler.series import autocorrelation, period
from services.collector.profiler.throughput import Method, sent, training_starts

_FROM = {Method.OUTPUT: "by the command's own output", Method.NETWORK: "by the bytes sent per step"}


def rate_sentence(profile: RunProfile, rate: Rate | None) -> str:
    """Return a sentence with the rate and the whole training's estimated duration."""
    if profile.end is RunEnd.FINISHED:
        return f"the training got to its end: {profile.duration_s:.3g} s here are measured"
    if rate is None:
        return _no_rate(profile)
    text = f"rate: {rate.per_s:.3g} {rate.unit.value}s/s, +-{1.96 * rate.relative_error:.0%} ({_FROM[rate.method]})"
    whole = whole_run_of(profile, rate)
    if whole is not None:
        return f"{text}; the whole training takes about {_length(whole.duration_s)} here, as far as this run shows"
    if rate.unit is Unit.EPOCH:
        return f"{text}; of how many epochs is not known: give --epochs here, or epochs in job.yaml"
    return (
        f"{text}; of how many steps is not known: give --batch-size, and --epochs and --samples-per-epoch here or in "
        "job.yaml"
    )


def _no_rate(profile: RunProfile) -> str:
    return (
        f"no rate of training was found{_repetition(profile)}: "
        '`turnbuckle advise` will say "not known". Any of these gives it: '
        "--features features.json (turnbuckle features ... --json), with two workers or more; a command that prints "
        "its epochs or steps, such as `epoch 3/50`; a run that gets to its end (fewer epochs, with --epochs)"
    )


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

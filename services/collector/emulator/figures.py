"""Figures of a collection for its datasheet: what was measured, how it ended, how much repeats differ. Pure."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from schemas.jobs import JobRecord, JobState
from schemas.runs import RunEnd, RunProfile


def configuration_of(record: JobRecord) -> tuple[str, str, int, int]:
    """Task and configuration: the same for repeats."""
    at = record.configuration
    return record.task.task, at.instance_type, at.workers, at.batch_size


def repeat_variations(records: Iterable[JobRecord]) -> list[float]:
    """Standard deviation by mean of the duration, of each configuration that ended at least twice."""
    durations: dict[tuple[str, str, int, int], list[float]] = defaultdict(list)
    for record in records:
        if record.state is JobState.SUCCEEDED and record.duration_s is not None:
            durations[configuration_of(record)].append(record.duration_s)
    repeated = [values for values in durations.values() if len(values) > 1]
    return [statistics.stdev(values) / statistics.mean(values) for values in repeated]


def _per_task(task: str, records: Sequence[JobRecord], local: RunProfile | None) -> str:
    states = Counter(record.state for record in records)
    ended = sorted(r.duration_s for r in records if r.state is JobState.SUCCEEDED and r.duration_s is not None)
    spread = f"{ended[0]:.2f} / {statistics.median(ended):.2f} / {ended[-1]:.2f}" if ended else "-"
    features = records[0].task
    run = "-" if local is None else f"{local.duration_s:.1f} ({local.workers[0].samples} samples)"
    return (
        f"| {task} | {features.parameter_count:,} | {features.forward_flops / 1e6:.2f} | {features.epochs} x "
        f"{features.samples_per_epoch:,} | {len({configuration_of(record) for record in records})} | {len(records)} "
        f"| {states[JobState.TIMED_OUT]} | {states[JobState.OUT_OF_MEMORY]} | {states[JobState.FAILED]} "
        f"| {spread} | {run} |"
    )


def markdown(records: Sequence[JobRecord], profiles: Sequence[RunProfile]) -> str:
    """For docs/dataset.md."""
    by_task: dict[str, list[JobRecord]] = defaultdict(list)
    for record in records:
        by_task[record.task.task].append(record)
    local = {profile.task.task: profile for profile in profiles if profile.end is RunEnd.FINISHED}
    states = Counter(record.state for record in records)
    loads = sorted(record.load_average for record in records if record.load_average is not None)
    variations = sorted(repeat_variations(records))
    lines = [
        f"{len(records)} runs of {len({configuration_of(record) for record in records})} configurations: "
        + ", ".join(f"{count} {state}" for state, count in states.most_common())
        + f"; {sum(record.contended for record in records)} contended.",
    ]
    if variations:
        lines.append(
            f"Repeats: standard deviation / mean of the duration has median {statistics.median(variations):.1%}, "
            f"largest {variations[-1]:.1%} ({len(variations)} configurations)."
        )
    if loads:
        lines.append(
            f"Load average before a run: median {statistics.median(loads):.2f}, "
            f"90th percentile {loads[round(0.9 * (len(loads) - 1))]:.2f}, largest {loads[-1]:.2f}."
        )
    header = (
        "| task | parameters | forward MFLOP | epochs x samples | configurations | runs | timed out | out of memory "
        "| failed | duration s min / median / max | local run s |"
    )
    lines += [
        "",
        header,
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [_per_task(task, by_task[task], local.get(task)) for task in sorted(by_task)]
    return "\n".join([*lines, *_cuts(profiles, local)])


def _cuts(profiles: Sequence[RunProfile], local: Mapping[str, RunProfile]) -> list[str]:
    """Estimates of the whole duration from truncated local runs, with the measured durations."""
    cut = [one for one in profiles if one.end is RunEnd.TIMED_OUT and one.task.task in local]
    if not cut:
        return []
    return [
        "",
        "| task | cut after s | of s | samples | estimates whole s | error | standard error estimates |",
        "|---|---|---|---|---|---|---|",
        *(_cut(one, local[one.task.task].duration_s) for one in sorted(cut, key=lambda one: one.run)),
    ]


def _cut(profile: RunProfile, whole_s: float) -> str:
    estimates = profile.configuration.attributes
    estimated = estimates.get("whole_run_s")
    if not isinstance(estimated, float):
        said = "no rate | - | -"
    else:
        said = f"{estimated:.1f} | {estimated / whole_s - 1:+.0%} | {float(estimates['rate_error']):.0%}"
    samples = profile.workers[0].samples
    return f"| {profile.task.task} | {profile.duration_s:.1f} | {whole_s:.1f} | {samples} | {said} |"

"""The shipped data set's file and its datasheet's figures: ``python -m tests.bench.dataset join|figures ...``.

``join OUT FILE...`` writes one Parquet file of several campaigns' records and local runs, with the truncated variants
of finished local runs; ``figures FILE`` prints docs/dataset.md's tables.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from schemas.jobs import JobRecord, JobState
from schemas.runs import RunEnd, RunProfile
from services._jobs.record_files import JobFileError, read_job_file, write_job_file
from services.collector.profiler.cutting import with_cuts
from tests.bench.outcome import UNAVAILABLE, say


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


def join(out: Path, files: Sequence[Path], busy_load: float) -> None:
    """Write one file of all records and local runs; from a load average of `busy_load` on, a run is contended.

    Raises:
        JobFileError: a file cannot be read or written.
    """
    found = [read_job_file(file) for file in files]
    jobs = {job.job: _marked_contended(job, busy_load) for one in found for job in one.records}
    runs = with_cuts(run for one in found for run in one.profiles)
    write_job_file(out, list(jobs.values()), runs)
    say(f"{len(jobs)} records and {len(runs)} local runs in {out}")


def _marked_contended(record: JobRecord, busy_load: float) -> JobRecord:
    """Mark a record as contended if other work had the CPUs, by the load average."""
    busy = record.load_average is not None and record.load_average >= busy_load
    return record.model_copy(update={"contended": True}) if busy else record


def main(arguments: Sequence[str] | None = None) -> int:
    """Join files, or print figures of one; 69 where a file cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.dataset", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    joining = commands.add_parser("join", help="write what FILES hold as one file")
    joining.add_argument("out", type=Path)
    joining.add_argument("files", type=Path, nargs="+", metavar="FILE")
    joining.add_argument("--busy-load", type=float, default=math.inf, help="load average of other work (default: none)")
    commands.add_parser("figures", help="print the datasheet's tables").add_argument("file", type=Path)
    options = parser.parse_args(arguments)
    try:
        if options.command == "join":
            join(options.out, options.files, options.busy_load)
        else:
            found = read_job_file(options.file)
            print(markdown(found.records, found.profiles))
    except JobFileError as error:
        print(error, file=sys.stderr)
        return UNAVAILABLE
    return 0


if __name__ == "__main__":
    sys.exit(main())

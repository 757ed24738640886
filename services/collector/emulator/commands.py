"""The emulated cloud: ``python -m services.collector.emulator.commands [GRID] --out DIR``. Needs root.

Runs every configuration of a grid on this machine, in random order, and keeps a record of each: in the directory's
journal at once, on the bus and in ``records.parquet`` at the end. Started again with the same directory it goes on.
Events on standard output: ``plan``, ``row`` (a record), ``progress``, ``published``, ``result``, ``error``;
with ``--unmeasured`` ``unmeasured``, with ``--check`` ``check``.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from schemas.jobs import JobRecord, JobState, TaskFeatures
from schemas.runs import RunProfile
from services._runtime.command.tool_events import emit, say
from services._runtime.command.tool_parser import ToolParser
from services._runtime.install_hint import package_missing
from services._runtime.record_files import JobFileError, read_job_file, write_job_file
from services.collector.emulator.campaign import Campaign, Progress, campaign_name, machine_cores
from services.collector.emulator.checking import compare, never_measured, read_predictions, table
from services.collector.emulator.figures import markdown
from services.collector.emulator.fork_client import ForkServer
from services.collector.emulator.grid import SHIPPED, BadGridError, Grid, Row, expand, read, unmeasured
from services.collector.emulator.records import job_record, local_run_name
from services.collector.emulator.run_request import RunOutcome
from services.collector.profiler.cutting import with_cuts
from services.collector.settings import CollectorSettings
from services.collector.tool import (
    BadDataError,
    UnavailableError,
    default_directory,
    number_within,
    publish_to_bus,
    run_tool,
)
from services.collector.write_ahead_log import Journal, read_journal

PARQUET: Final = "records.parquet"
CHECKS: Final = "checks"
"""Below the directory: the live check's own journal, so that no model learns from what it was checked with."""


def _parser() -> argparse.ArgumentParser:
    parser = ToolParser(prog="python -m services.collector.emulator.commands", description=__doc__)
    parser.add_argument("grid", nargs="?", type=Path, default=SHIPPED, help="grid.yaml; the shipped data set's if none")
    parser.add_argument("--out", type=Path, default=default_directory("emulate"), help="directory of the journal")
    parser.add_argument("--json", choices=["lines"], default="lines", help="form of standard output")
    parser.add_argument("--no-bus", action="store_true", help="publish nothing; the journal keeps it")
    parser.add_argument(
        "--stop-after",
        type=number_within(float, 1.0, 1e6),
        default=math.inf,
        metavar="SECONDS",
        help="begin no run later than that; a later start with the same directory goes on",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--plan", action="store_true", help="list the runs and make none")
    what.add_argument("--figures", action="store_true", help="report what DIR holds, as Markdown, on standard error")
    what.add_argument("--unmeasured", type=int, metavar="N", help="report N configurations that the grid leaves out")
    what.add_argument(
        "--join", type=Path, nargs="+", metavar="FILE", help="write what FILES (Parquet) hold as DIR's one file, no run"
    )
    parser.add_argument(
        "--busy-load",
        type=number_within(float, 0.0, 1e4),
        default=math.inf,
        metavar="LOAD",
        help="with --join: runs at a load average from LOAD on are contended, by other work",
    )
    what.add_argument("--check", type=Path, metavar="FILE", help="run what FILE predicts and set both side by side")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tool; returns its exit code."""
    options = _parser().parse_args(arguments)
    if options.figures:
        say(markdown(*_exported(options.out)))
        return 0
    if options.join:
        _join(options.join, options.out, options.busy_load)
        return 0
    try:
        grid = read(options.grid)
    except BadGridError as error:
        raise BadDataError(str(error)) from error
    cores = machine_cores()
    rows = expand(grid, cores)
    if options.plan:
        _emit_plan(rows)
    elif options.unmeasured is not None:
        _emit_unmeasured(
            options.out, campaign_name(options.out, grid, rows), unmeasured(grid, cores, options.unmeasured)
        )
    elif options.check is not None:
        _check(options.check, options.out, grid, rows)
    else:
        _run(grid, rows, options, bus=not options.no_bus)
    return 0


def _emit_plan(rows: Sequence[Row]) -> None:
    for row in rows:
        emit("plan", run=str(row), contended=row.contended)
    say(f"{len(rows)} runs, {sum(row.contended for row in rows)} of them contended")


def _run(grid: Grid, rows: Sequence[Row], options: argparse.Namespace, *, bus: bool) -> None:
    if find_spec("torch") is None:  # the process that trains would end with a traceback
        raise UnavailableError(package_missing("torch", "collector"))
    out: Path = options.out
    with Journal(out) as journal:
        name = campaign_name(out, grid, rows)
        with ForkServer() as server:
            campaign = Campaign(grid, rows, name, journal, server, _emit_row, options.stop_after)
            say(f"{name}: {len(campaign.pending())} of {len(rows)} runs to make in {out}")
            campaign.go_on()
        _export(out)
        _emit_result(out, name)
        if bus:
            asyncio.run(publish_to_bus(journal, CollectorSettings.load()))


def _emit_result(out: Path, name: str) -> None:
    states = [record.state for record in _kept(out)[0]]
    counts = {str(state): states.count(state) for state in JobState if state in states}
    emit("result", directory=str(out), campaign=name, parquet=str(out / PARQUET), runs=len(states), states=counts)
    say(f"{len(states)} records in {out / PARQUET}: {', '.join(f'{n} {state}' for state, n in counts.items())}")


def _emit_row(record: JobRecord | RunProfile, outcome: RunOutcome, progress: Progress) -> None:
    emit("row", record=record.model_dump(mode="json"), memory_bytes=outcome.memory_bytes, wall_s=outcome.wall_s)
    emit("progress", done=progress.done, total=progress.total, elapsed_s=progress.elapsed_s, left_s=progress.left_s)
    configuration = record.configuration
    took = "-" if outcome.duration_s is None else f"{outcome.duration_s:.2f} s"
    local = ", local run" if isinstance(record, RunProfile) else ""
    say(
        f"[{progress.done}/{progress.total}] {record.task.task} on {configuration.workers} x "
        f"{configuration.instance_type}, batch {configuration.batch_size}{local}: {outcome.state} {took}, "
        f"{outcome.memory_bytes / 1e6:.0f} MB; {progress.left_s / 60:.0f} min left"
    )


def _join(files: Sequence[Path], out: Path, busy_load: float) -> None:
    """Write one file of several campaigns' records and local runs, with truncated variants of finished local runs."""
    try:
        found = [read_job_file(file) for file in files]
        jobs = {job.job: _marked_contended(job, busy_load) for one in found for job in one.records}
        runs = with_cuts(run for one in found for run in one.profiles)
        out.mkdir(parents=True, exist_ok=True)
        write_job_file(out / PARQUET, list(jobs.values()), runs)
    except JobFileError as error:
        raise BadDataError(str(error)) from error
    emit("result", parquet=str(out / PARQUET), runs=len(jobs), local_runs=len(runs))
    say(f"{len(jobs)} records and {len(runs)} local runs in {out / PARQUET}")


def _marked_contended(record: JobRecord, busy_load: float) -> JobRecord:
    """Mark a record as contended if other work had the CPUs, by the load average."""
    busy = record.load_average is not None and record.load_average >= busy_load
    return record.model_copy(update={"contended": True}) if busy else record


def _export(out: Path) -> None:
    try:
        jobs, runs = _kept(out)
        write_job_file(out / PARQUET, jobs, with_cuts(runs))
    except JobFileError as error:
        raise UnavailableError(str(error)) from error


def _exported(out: Path) -> tuple[Sequence[JobRecord], Sequence[RunProfile]]:
    """Content of the directory's file, or of its journal if there is none yet."""
    if not (out / PARQUET).is_file():
        return _kept(out)
    try:
        found = read_job_file(out / PARQUET)
    except JobFileError as error:
        raise BadDataError(str(error)) from error
    return found.records, found.profiles


def _kept(out: Path) -> tuple[list[JobRecord], list[RunProfile]]:
    kept = list(read_journal(out))
    jobs = [record for record in kept if isinstance(record, JobRecord)]
    return jobs, [record for record in kept if isinstance(record, RunProfile)]


# -- the live check ---------------------------------------------------------------------------------------------


def _known_features(out: Path) -> dict[str, TaskFeatures]:
    return {record.task.task: record.task for record in read_journal(out)}


def _emit_unmeasured(out: Path, name: str, rows: Sequence[Row]) -> None:
    """Emit configurations to predict: the task's features and its local run are in the directory's journal."""
    features = _known_features(out)
    for row, fresh in zip(rows, never_measured(rows, _kept(out)[0]), strict=True):
        if fresh and row.task in features:
            emit(
                "unmeasured",
                task=features[row.task].model_dump(mode="json"),
                configuration=row.instance.configuration(row.workers, row.batch_size).model_dump(mode="json"),
                run=local_run_name(name, row.task),
            )


def _check(file: Path, out: Path, grid: Grid, rows: Sequence[Row]) -> None:
    predictions = read_predictions(file, grid, machine_cores())
    requested = [row for row, _ in predictions]
    for row, fresh in zip(requested, never_measured(requested, _kept(out)[0]), strict=True):
        if not fresh:
            raise BadDataError(f"{row} has been measured: a check of it would show nothing")
    features = _known_features(out)
    name = f"{campaign_name(out, grid, rows)}-check"
    checked = grid.model_copy(update={"dataset": f"{grid.dataset}-check", "local_run": None})
    with Journal(out / CHECKS) as journal, ForkServer() as server:
        campaign = Campaign(checked, requested, name, journal, server, _emit_row)

        def make(row: Row) -> JobRecord:
            known = features.get(row.task) or campaign.features(row.task)
            record = job_record(checked, name, row, known, campaign.make(row))
            journal.append(record)
            return record

        comparisons = []
        for each in compare(predictions, make):
            emit("check", **each.fields())
            comparisons.append(each)
    say(table(comparisons))


if __name__ == "__main__":
    run_tool("collector-emulate", main)
    sys.exit(70)  # not reached

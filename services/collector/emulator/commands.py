"""The emulated cloud: ``python -m services.collector.emulator.commands [GRID] --out DIR``. Needs root.

Runs every configuration of a grid on this machine, in random order, and keeps a record of each: in the directory's
journal at once, on the bus and in ``records.parquet`` at the end. Started again with the same directory it goes on.
Events on standard output: ``plan``, ``row`` (a record), ``progress``, ``published``, ``result``, ``error``.
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

from schemas.jobs import JobRecord, JobState
from schemas.runs import RunProfile
from services._host.calibration import calibrate
from services._jobs.record_files import JobFileError, write_job_file
from services._runtime.command.errors import UnavailableError
from services._runtime.command.tool_events import emit, say
from services._runtime.command.tool_parser import ToolParser
from services._runtime.install_hint import package_missing
from services.collector.emulator.campaign import Campaign, Progress, campaign_name, machine_cores
from services.collector.emulator.fork_client import ForkServer
from services.collector.emulator.grid import SHIPPED, BadGridError, Grid, Row, expand, read
from services.collector.emulator.run_request import RunOutcome
from services.collector.profiler.cutting import with_cuts
from services.collector.settings import CollectorSettings
from services.collector.tool import BadDataError, default_directory, number_within, publish_to_bus, run_tool
from services.collector.write_ahead_log import Journal, read_journal

PARQUET: Final = "records.parquet"


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
    parser.add_argument("--plan", action="store_true", help="list the runs and make none")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the tool; returns its exit code."""
    options = _parser().parse_args(arguments)
    try:
        grid = read(options.grid)
    except BadGridError as error:
        raise BadDataError(str(error)) from error
    rows = expand(grid, machine_cores())
    if options.plan:
        _emit_plan(rows)
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
            campaign = Campaign(
                grid, rows, name, journal, server, _emit_row, options.stop_after, lambda: calibrate(options.out)
            )
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


def _export(out: Path) -> None:
    try:
        jobs, runs = _kept(out)
        write_job_file(out / PARQUET, jobs, with_cuts(runs))
    except JobFileError as error:
        raise UnavailableError(str(error)) from error


def _kept(out: Path) -> tuple[list[JobRecord], list[RunProfile]]:
    kept = list(read_journal(out))
    jobs = [record for record in kept if isinstance(record, JobRecord)]
    return jobs, [record for record in kept if isinstance(record, RunProfile)]


if __name__ == "__main__":
    run_tool("collector-emulate", main)
    sys.exit(70)  # not reached

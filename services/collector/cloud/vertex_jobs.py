"""Vertex AI: ``python -m services.collector.cloud.vertex_jobs submit grid.json`` and ``... ingest``.

One JSON object a line on standard output: ``progress``, ``row`` (a job was created or has ended, a record was made),
``published``, ``error``, ``result``. Words on standard error. Exit codes: 0, 2 usage, 65 bad data, 69 unavailable,
130 interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from schemas.jobs import JobRecord
from services._runtime.command.errors import UnavailableError
from services._runtime.command.tool_events import emit, say
from services._runtime.command.tool_parser import ToolParser
from services._runtime.exit_code import ExitCode
from services.collector.cloud.cloud_jobs import CloudJob
from services.collector.cloud.grid import GridFile, JobRequest, job_requests
from services.collector.cloud.ingestion import Ingestion, PollResult, summary
from services.collector.cloud.ports import Billing, CloudError, CloudForbiddenError, CloudRefusedError
from services.collector.cloud.providers import open_providers
from services.collector.cloud.submission import Intents, Pace, Submission, Tally
from services.collector.settings import CollectorSettings
from services.collector.tool import OUT_HELP, BadDataError, default_directory, number_within, publish_to_bus, run_tool
from services.collector.validation_errors import error_lines
from services.collector.write_ahead_log import Journal

_MAX_FILE_BYTES: Final = 16 << 20


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    options = _parser().parse_args(sys.argv[1:] if arguments is None else arguments)
    work = submit if options.command == "submit" else ingest
    try:
        return work(options)
    except CloudForbiddenError as error:
        raise UnavailableError(str(error)) from error
    except CloudRefusedError as error:
        raise BadDataError(str(error)) from error
    except CloudError as error:
        raise UnavailableError(f"{error}; what was done is kept, the same command goes on from there") from error


def _parser() -> argparse.ArgumentParser:
    parser = ToolParser(prog="python -m services.collector.cloud.vertex_jobs", description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    count, seconds = number_within(int, 1, 1_000), number_within(float, 0.05, 86_400)
    make = commands.add_parser("submit", help="submit what is missing of a grid of jobs")
    make.add_argument("file", type=Path, help="JSON file with the grid")
    make.add_argument("--parallel", type=count, help="jobs that may be under way at once (default: the file's)")
    make.add_argument(
        "--no-wait", action="store_true", help="end when the last job is submitted, not when it has ended"
    )
    make.add_argument("--poll", type=seconds, default=30.0, metavar="S", help="seconds between polls (default: 30)")
    make.add_argument("--visible-after", type=seconds, default=30.0, metavar="S", help=argparse.SUPPRESS)
    make.add_argument("--give-up", type=seconds, default=3_600.0, metavar="S", help="seconds without success (3600)")
    take = commands.add_parser("ingest", help="make records of jobs that have ended")
    take.add_argument("--grid", help="only jobs of the grid of this name")
    take.add_argument("--no-bus", action="store_true", help="write the journal only")
    take.add_argument("--watch", action="store_true", help="poll until every job is recorded")
    take.add_argument("--billing-table", help="BigQuery table of the billing export, as project.dataset.table")
    for command in (make, take):
        command.add_argument("--project", help="Google Cloud project")
        command.add_argument("--region", help="Google Cloud region")
        command.add_argument("--out", type=Path, default=default_directory("vertex"), help=OUT_HELP)
        command.add_argument("--dry-run", action="store_true", help="dry run: print what would be done")
    return parser


def _settings(**given: Any) -> CollectorSettings:
    """Settings of the service, overridden by options."""
    return CollectorSettings.load(**{name: value for name, value in given.items() if value is not None})


# -- submit ----------------------------------------------------------------------------------------------------


def read_grid(path: Path) -> GridFile:
    """Read a grid file.

    Raises:
        BadDataError: it cannot be read, or something in it is wrong; every mistake is named.
    """
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise BadDataError(f"{path} is larger than {_MAX_FILE_BYTES} bytes: this is no grid file")
        return GridFile.model_validate_json(path.read_bytes())
    except OSError as error:
        raise BadDataError(f"{path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise BadDataError(f"{path} is no usable grid file:\n  " + "\n  ".join(error_lines(error))) from error


def submit(options: argparse.Namespace) -> int:
    """Submit a grid."""
    grid = read_grid(options.file)
    try:
        requests = job_requests(grid)
    except ValueError as error:
        raise BadDataError(f"{options.file}: {error}") from error
    if options.dry_run:
        for request in requests:
            emit("row", **_planned(request))
        emit("result", total=len(requests), dry_run=True)
        return ExitCode.OK
    settings = _settings(project=options.project or grid.project, region=options.region or grid.region)
    cloud, _ = open_providers(settings.model_copy(update={"billing_table": None}))
    pace = Pace(options.parallel or grid.parallel, options.poll, options.visible_after, options.give_up)
    with Journal(options.out):  # one submission at a time in this directory
        intents = Intents(options.out)
        try:
            tally = Submission(cloud, requests, intents, pace, _emit_change).run(wait=not options.no_wait)
        finally:
            intents.close()
    emit("result", **asdict(tally))
    return ExitCode.BAD_DATA if tally.refused else ExitCode.OK


def _planned(request: JobRequest) -> dict[str, Any]:
    place = request.plan.configuration
    return {
        "job": request.plan.job,
        "task": request.plan.task.task,
        "instance_type": place.instance_type,
        "workers": place.workers,
        "batch_size": place.batch_size,
        "repeat": request.plan.repeat,
        "accelerator": place.accelerator,
        "accelerators": place.accelerators,
    }


def _emit_change(what: str, tally: Tally, job: CloudJob | None) -> None:
    if job is not None:
        emit("row", job=job.job, name=job.name, change=what, state=job.state, duration_s=job.duration_s)
        return
    fields = {name: value for name, value in asdict(tally).items() if name != "refused"}
    reason = "" if what == "progress" else what
    done = tally.succeeded + tally.ended_otherwise + len(tally.refused)
    emit("progress", done=done, **fields, refused=len(tally.refused), reason=reason)
    if reason:
        say(reason)


# -- ingest ----------------------------------------------------------------------------------------------------


def ingest(options: argparse.Namespace) -> int:
    """Make records of finished jobs, and publish them."""
    settings = _settings(
        project=options.project, region=options.region, billing_table=options.billing_table, directory=options.out
    )
    clouds = open_providers(settings)
    with Journal(options.out) as journal:
        ingestion = Ingestion(clouds, journal, settings)
        if options.dry_run and clouds[1] is not None:
            _estimate(clouds[1], settings)
        while True:
            result = ingestion.poll(time.time(), grid=options.grid, dry_run=options.dry_run)
            _emit_poll(result)
            if journal.waiting and not (options.no_bus or options.dry_run):
                asyncio.run(publish_to_bus(journal, settings))
            if not options.watch or options.dry_run or not (result.waiting or result.running or result.unsettled):
                break
            time.sleep(settings.poll_s)
        counts = {"waiting": result.waiting, "running": result.running, "unsettled": result.unsettled}
        emit("result", **counts, records=len(journal), unpublished=journal.waiting, dry_run=options.dry_run)
    return ExitCode.BAD_DATA if result.problems else ExitCode.OK


def _estimate(billing: Billing, settings: CollectorSettings) -> None:
    since = datetime.now(UTC) - timedelta(days=settings.lookback_days)
    emit("progress", billing_bytes=billing.estimated_bytes(since), since=since.isoformat())


def _emit_poll(result: PollResult) -> None:
    for record in result.recorded:
        emit("row", **_recorded(record))
    for problem in result.problems:
        emit("error", message=problem)
    for line in summary(result):
        say(line)


def _recorded(record: JobRecord) -> dict[str, Any]:
    return {
        "job": record.job,
        "state": record.state,
        "duration_s": record.duration_s,
        "cost_usd": record.cost_usd,
        "cost_kind": record.cost_kind,
        "reason": record.reason,
    }


if __name__ == "__main__":
    run_tool("vertex_jobs", main)

"""`turnbuckle jobs logs JOB`: what its workers wrote, from the runners of their nodes."""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

import typer

from services._runtime.command.connection import ContextOption, ServerOption
from services._runtime.command.output import print_note
from services._runtime.exit_code import ExitCode
from services.scheduler.commands.asking import complete_jobs, job_argument
from services.scheduler.commands.log_reader import LogChoice, read_logs

EXAMPLES: Final = """
Examples:

  turnbuckle jobs logs resnet

  turnbuckle jobs logs resnet -f --worker 0

  turnbuckle jobs logs resnet --attempt 1 --lines 1000 --json | jq -r .line
"""


def logs_command(  # noqa: PLR0913 - a command's options are its parameters
    job: Annotated[str, typer.Argument(help="The job's name.", autocompletion=complete_jobs)],
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on as more is written, over attempts, until the job's end.")
    ] = False,
    worker: Annotated[int | None, typer.Option("--worker", min=0, help="Only this one, by rank; default: all.")] = None,
    attempt: Annotated[
        int | None, typer.Option("--attempt", min=1, help="Of this start of the job; default: the latest.")
    ] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, max=100_000, help="The last lines of each.")] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="Print each line as an object of JSON.")] = False,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Print what JOB's workers wrote to their standard output and error.

    Of several workers each line begins with its rank. The runner of a worker's node keeps what it wrote for a week.
    """
    choice = LogChoice(job_argument(job), worker, attempt, lines, follow=follow and attempt is None, as_json=as_json)
    try:
        asyncio.run(read_logs(choice, (server, context)))
    except KeyboardInterrupt:
        print_note(f"{job} goes on")
        raise typer.Exit(ExitCode.INTERRUPTED) from None

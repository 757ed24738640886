"""`turnbuckle jobs explain JOB`: each decision about a job, with its numbers."""

from __future__ import annotations

import time
from typing import Annotated, Final

import typer
from rich.markup import escape

from schemas.codec import to_plain
from schemas.scheduling import JobExplainReply, JobExplainRequest
from schemas.services.scheduler import SCHEDULER_EXPLAIN
from services._runtime.command.connection import ContextOption, ServerOption
from services._runtime.command.output import print_json, stdout_console
from services.scheduler.commands.asking import ask_once, complete_jobs, job_argument
from services.scheduler.commands.explain_view import explained_lines

EXAMPLES: Final = """
Examples:

  turnbuckle jobs explain resnet

  turnbuckle jobs explain resnet --json | jq '.history[] | select(.what == "preempted") | .why'
"""


def explain_command(
    job: Annotated[str, typer.Argument(help="The job's name.", autocompletion=complete_jobs)],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Explain JOB: each decision about it with its numbers, what was estimated, and what it took.

    The number with # is the entry's in the stream SCHEDULE. Jobs that ended are known for a while: the latest 1,000.
    """
    request = JobExplainRequest(job=job_argument(job))
    reply = ask_once((server, context), SCHEDULER_EXPLAIN, request, JobExplainReply)
    if as_json:
        print_json(to_plain(reply))
        return
    console = stdout_console()
    for style, text in explained_lines(reply, time.time_ns()):
        console.print(escape(text), style=style or "none")

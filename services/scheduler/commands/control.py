"""`turnbuckle jobs preempt|release|cancel JOB` and `drain|undrain NODE`: what a person asks of jobs and nodes."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from schemas.scheduling import ControlReply, ControlRequest, JobAction
from schemas.services.scheduler import SCHEDULER_CONTROL
from services._runtime.command.connection import ContextOption, ServerOption
from services._runtime.command.output import print_json, print_note
from services.scheduler.commands.asking import (
    ask_once,
    complete_live_jobs,
    complete_nodes,
    job_argument,
    period_option,
    requester,
)

PREEMPT_EXAMPLES: Final = """
Examples:

  turnbuckle jobs preempt resnet

  turnbuckle jobs preempt resnet --for 2h          (then: turnbuckle jobs release resnet, or wait)
"""
RELEASE_EXAMPLES: Final = """
Examples:

  turnbuckle jobs release resnet
"""
CANCEL_EXAMPLES: Final = """
Examples:

  turnbuckle jobs cancel resnet
"""
DRAIN_EXAMPLES: Final = """
Examples:

  turnbuckle jobs drain gpu-07          (then: turnbuckle jobs nodes, until no job holds slots there)
"""
UNDRAIN_EXAMPLES: Final = """
Examples:

  turnbuckle jobs undrain gpu-07
"""

JobArgument = Annotated[str, typer.Argument(help="The job's name.", autocompletion=complete_live_jobs)]
NodeArgument = Annotated[str, typer.Argument(help="The node's name.", autocompletion=complete_nodes)]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")]


def preempt_command(
    job: JobArgument,
    *,
    period: Annotated[
        str, typer.Option("--for", metavar="PERIOD", help="It is not started again before: 10m, 2h.")
    ] = "0s",
    as_json: JsonOption = False,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Make JOB give up its slots; it goes on when its turn comes.

    Its workers get SIGTERM, and SIGKILL after the grace period. What a job that does not save its state has done until
    then is lost.
    """
    request = ControlRequest(
        job=job_argument(job), action=JobAction.PREEMPT, for_s=period_option(period, "--for"), by=requester()
    )
    _ask(request, (server, context), as_json=as_json)


def release_command(
    job: JobArgument,
    *,
    as_json: JsonOption = False,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Let JOB start again although the time that it was preempted for is not over."""
    request = ControlRequest(job=job_argument(job), action=JobAction.RELEASE, by=requester())
    _ask(request, (server, context), as_json=as_json)


def cancel_command(
    job: JobArgument,
    *,
    as_json: JsonOption = False,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """End JOB, wherever it runs or waits.

    Its workers get SIGTERM, and SIGKILL after the grace period. Its logs and its history stay.
    """
    request = ControlRequest(job=job_argument(job), action=JobAction.CANCEL, by=requester())
    _ask(request, (server, context), as_json=as_json)


def drain_command(
    node: NodeArgument,
    *,
    as_json: JsonOption = False,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Start nothing on NODE from now on; jobs that hold slots there keep them.

    To empty it at once, preempt these jobs: they go on elsewhere.
    """
    _ask(ControlRequest(drain=node, by=requester()), (server, context), as_json=as_json)


def undrain_command(
    node: NodeArgument,
    *,
    as_json: JsonOption = False,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Let jobs start on NODE again."""
    _ask(ControlRequest(undrain=node, by=requester()), (server, context), as_json=as_json)


def _ask(request: ControlRequest, where: tuple[str | None, str | None], *, as_json: bool) -> None:
    reply = ask_once(where, SCHEDULER_CONTROL, request, ControlReply)
    if as_json:
        action = request.action or ("drain" if request.drain else "undrain")
        target = {"job": request.job} if request.job else {"node": request.drain or request.undrain}
        print_json(target | {"action": action, "done": reply.done})
        return
    print_note(reply.done)

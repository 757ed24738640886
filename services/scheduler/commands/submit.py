"""`turnbuckle jobs submit`: a job file, or a command, to the scheduler."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer
from typer.core import TyperCommand

from services._runtime.command.connection import ContextOption, ServerOption
from services._runtime.command.errors import BadFileError, CommandError
from services._runtime.command.output import print_json, print_line, print_note, print_warning
from services._runtime.exit_code import ExitCode

if TYPE_CHECKING:
    from schemas.scheduling import JobSpec, SubmitReply

EXAMPLES: Final = """
Examples:

  turnbuckle jobs submit train.yaml

  turnbuckle jobs submit train.yaml --workers 4 --wait

  turnbuckle jobs submit --workers 2 --name try --preemption checkpoint -- python train.py --epochs 3

  turnbuckle jobs submit --env API_KEY --estimate 40m --json -- ./train.sh | jq -r .job.job

A job file has the fields workers, slots, run or command, directory, environment, preemption, checkpoint, network, and
more: docs/scheduler.md lists them. Options override the fields of the file.
"""
WITHIN_S: Final = 15.0
"""The scheduler asks the advisor for an estimate first, for 2 s at most."""
HOW_TO_SAVE: Final = """\
    checkpoint = Path(os.environ["TURNBUCKLE_CHECKPOINT_DIR"], f"{rank}.json")
    asked_to_stop: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: asked_to_stop.append(number))
    state = json.loads(checkpoint.read_text()) if checkpoint.exists() else first_state()
    while state["step"] < steps:
        train_one_step(state)
        if asked_to_stop:
            checkpoint.write_text(json.dumps(state))
            sys.exit(0)"""
_COMMAND: Final = "turnbuckle.command"


class SubmitCommand(TyperCommand):
    """Keeps what follows ``--`` apart: the job's own command, with options of its own."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """As click's, of what stands before ``--``."""
        if "--" in args:
            position = args.index("--")
            ctx.meta[_COMMAND] = args[position + 1 :]
            args = args[:position]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """As click's, with the command."""
        return [*super().collect_usage_pieces(ctx), "[-- CMD...]"]


COMMAND_CLASS: Final = SubmitCommand


def submit_command(  # noqa: PLR0913 - a command's options are its parameters
    ctx: typer.Context,
    file: Annotated[
        Path | None, typer.Argument(help="The job's file; or give a command after --.", show_default=False)
    ] = None,
    *,
    workers: Annotated[int | None, typer.Option("--workers", help="Processes, started together.")] = None,
    slots: Annotated[int | None, typer.Option("--slots", help="Of each worker, all on one node.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="Default: the file's name and 4 letters.")] = None,
    preemption: Annotated[
        Literal["never", "restart", "checkpoint"] | None,
        typer.Option("--preemption", help="How it gives up its slots; default: never."),
    ] = None,
    grace: Annotated[
        str | None, typer.Option("--grace", metavar="PERIOD", help="From SIGTERM to SIGKILL; default: 30s.")
    ] = None,
    environment: Annotated[
        list[str] | None,
        typer.Option("--env", metavar="NAME=VALUE", help="Of its workers, repeatable; NAME alone: this shell's value."),
    ] = None,
    directory: Annotated[
        str | None, typer.Option("--directory", help="Working directory on every node; default: this one.")
    ] = None,
    cpu: Annotated[float | None, typer.Option("--cpu", help="Cores of each worker; default: its slots' share.")] = None,
    memory: Annotated[str | None, typer.Option("--memory", help="Of each worker, such as 2GiB.")] = None,
    task: Annotated[str | None, typer.Option("--task", help="The name by which the advisor knows it.")] = None,
    estimate: Annotated[str | None, typer.Option("--estimate", metavar="PERIOD", help="Run time, such as 40m.")] = None,
    retries: Annotated[int | None, typer.Option("--retries", help="Starts after a worker has failed.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Follow it until its end; the exit code says how.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the scheduler's answer as JSON.")] = False,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Run a training job: that of a FILE, or a command after --.

    Its workers start together as soon as they get their slots, each in the working directory, with the variables that
    torchrun sets (RANK, WORLD_SIZE, MASTER_ADDR and so on). Printed: its name, its place in the queue, and when it is
    expected to start and to end. With --wait, Ctrl-C leaves the job running.
    """
    from schemas.scheduling import ELASTIC_IS_SIMULATED  # noqa: PLC0415 - quick --help
    from services.scheduler.commands.asking import period_option  # noqa: PLC0415 - as above

    options: dict[str, Any] = {
        "name": name,
        "workers": workers,
        "slots": slots,
        "preemption": preemption,
        "directory": directory,
        "cpu": cpu,
        "memory": memory,
        "task": None if task is None else {"task": task},
        "estimate": None if estimate is None else period_option(estimate, "--estimate"),
        "checkpoint": None if grace is None else {"grace_s": period_option(grace, "--grace")},
        "retries": retries,
        "environment": _variables(environment or []) or None,
    }
    given = {option: value for option, value in options.items() if value is not None}
    spec, is_set = _describe(file, ctx.meta.get(_COMMAND), given)
    if spec.is_elastic:  # an older scheduler would ignore the fields
        raise BadFileError(f"{file}: {ELASTIC_IS_SIMULATED}")
    reply = _submit(spec, (server, context))
    if as_json:
        from schemas.codec import to_plain  # noqa: PLC0415 - quick --help

        print_json(to_plain(reply))
    else:
        _print(reply)
    for warning in reply.warnings:
        print_warning(warning)
    if not is_set:
        print_warning(_never_preempted(spec.job))
    if wait:
        _wait(spec.job, (server, context))


def _describe(file: Path | None, command: Sequence[str] | None, options: dict[str, Any]) -> tuple[JobSpec, bool]:
    """The job, and whether it says how it may be preempted."""
    from services.scheduler.commands import job_file  # noqa: PLC0415 - quick --help

    if (file is None) == (not command):
        raise typer.BadParameter("give either a job's FILE, or its command after --", param_hint="FILE")
    if file is not None:
        job = job_file.load_job_file(file, options)
        return job.spec(job_file.default_name([file.name])), job.preemption is not None
    job = job_file.job_of_options(options | {"command": list(command or ())})
    return job.spec(job_file.default_name(command or ())), job.preemption is not None


def _variables(given: Sequence[str]) -> dict[str, str]:
    found = {}
    for each in given:
        name, separator, value = each.partition("=")
        if not name or (not separator and name not in os.environ):
            raise typer.BadParameter(f"{each!r} is not NAME=VALUE, and no variable of this shell", param_hint="--env")
        found[name] = value if separator else os.environ[name]
    return found


def _submit(spec: JobSpec, where: tuple[str | None, str | None]) -> SubmitReply:
    from schemas.scheduling import SubmitReply, SubmitRequest  # noqa: PLC0415 - as above
    from schemas.services.scheduler import SCHEDULER_SUBMIT  # noqa: PLC0415 - quick --help
    from services.scheduler.commands.asking import ask_once, requester  # noqa: PLC0415 - as above

    return ask_once(where, SCHEDULER_SUBMIT, SubmitRequest(spec=spec, by=requester()), SubmitReply, WITHIN_S)


def _print(reply: SubmitReply) -> None:
    from services.scheduler.commands.queue_view import submitted_lines  # noqa: PLC0415 - quick --help

    print_line(reply.job.job)
    for line in submitted_lines(reply):
        print_note(line)


def _never_preempted(job: str) -> str:
    return (
        f"{job} cannot be preempted: `preemption:` is not set. A script that saves its state at SIGTERM can say "
        "`preemption: checkpoint`. These lines save it (docs/examples/jobs/learn.py; with torch: train.py):\n"
        f"{HOW_TO_SAVE}"
    )


def _wait(job: str, where: tuple[str | None, str | None]) -> None:
    from schemas.scheduling import JobPhase  # noqa: PLC0415 - quick --help
    from services.scheduler.commands.waiting import follow_to_the_end  # noqa: PLC0415 - as above

    try:
        ended = asyncio.run(follow_to_the_end(job, where))
    except KeyboardInterrupt:
        print_note(f"{job} goes on without this command: `turnbuckle jobs cancel {job}` ends it")
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    if ended.phase is not JobPhase.ENDED:
        raise CommandError(f"{job} {'was ' if ended.phase is JobPhase.CANCELLED else ''}{ended.phase}: {ended.why}")

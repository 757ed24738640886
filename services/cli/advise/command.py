"""`turnbuckle advise JOB.YAML`: where should this training job run, what will it take, and what will it cost?"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from schemas.codec import to_plain
from schemas.predictions import Objective, RankReply, RankRequest
from services._runtime.command.connection import ContextOption, ServerOption
from services._runtime.command.errors import BadFileError
from services._runtime.command.output import print_json, print_note, stderr_console, stdout_console
from services._runtime.exit_code import ExitCode
from services.cli.advise.query import Answer, QueryOptions, ask, request_for

if TYPE_CHECKING:
    from services.cli.advise.job_yaml import JobYaml

EXAMPLES: Final = """
Examples:

  turnbuckle advise --example                     (learns from the shipped data set, asks about a task left out of it)

  turnbuckle advise job.yaml --profile my-run --shipped-data      (nothing measured yet: emulated machines)

  turnbuckle advise job.yaml --profile my-run --budget 20 --plot front.png

  turnbuckle advise job.yaml --objective time --deadline 6 --spot --json | jq '.ranked[0].configuration'

  turnbuckle advise job.yaml --skypilot task.yaml && sky launch task.yaml
"""
TRAINING_TIMEOUT_S: Final = 300.0
"""The first model with the shipped data set: seconds on a quiet machine, more on a busy one."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """The forms in which the answer is written."""

    as_json: bool = False
    plot: Path | None = None
    skypilot: Path | None = None


def advise_command(  # noqa: PLR0913 - a command's options are its parameters
    job: Annotated[Path | None, typer.Argument(help="The job's file.", metavar="JOB.YAML")] = None,
    *,
    example: Annotated[
        bool,
        typer.Option("--example", help="Show it on the shipped data set: a NATS server and an advisor of its own."),
    ] = False,
    task: Annotated[
        str | None, typer.Option("--task", metavar="NAME", help="With --example: the task that is left out.")
    ] = None,
    profile: Annotated[
        str | None, typer.Option("--profile", "-p", metavar="RUN", help="Local run: its name on the bus, or its file.")
    ] = None,
    budget: Annotated[float | None, typer.Option("--budget", metavar="USD", help="It may cost so much.")] = None,
    deadline: Annotated[float | None, typer.Option("--deadline", metavar="HOURS", help="It may take so long.")] = None,
    spot: Annotated[bool, typer.Option("--spot", help="Spot machines, with the expected restarts.")] = False,
    objective: Annotated[
        Objective | None, typer.Option("--objective", help="What shall be small (default: cost).")
    ] = None,
    top: Annotated[int, typer.Option("--top", "-n", min=1, max=200, help="Configurations that are shown.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE.PNG", help="Draw time against cost.")] = None,
    skypilot: Annotated[
        Path | None, typer.Option("--skypilot", metavar="OUT.YAML", help="Write the first choice as a SkyPilot task.")
    ] = None,
    provider: Annotated[
        list[str] | None,
        typer.Option("--provider", metavar="NAME", help="Whose machines, such as gcp; may be given several times."),
    ] = None,
    prices: Annotated[
        list[str] | None,
        typer.Option(
            "--prices",
            metavar="SOURCE",
            help="Whose prices come first, such as gcp-gce (turnbuckle prices list); may be given several times.",
        ),
    ] = None,
    shipped_data: Annotated[
        bool,
        typer.Option("--shipped-data", help="Learn from the shipped data set, too: emulated machines, see dataset.md."),
    ] = False,
    accelerator_data: Annotated[
        bool,
        typer.Option("--accelerator-data", help="Learn from public measurements of training steps on GPUs, too."),
    ] = False,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Predict time and cost of a training job on every configuration, and rank them.

    Each figure comes with an interval; where that says nothing, the answer is "not known". Configurations that will
    probably run out of memory are left out. Exit code 1: nothing can be recommended.
    """
    for name, value in (("--budget", budget), ("--deadline", deadline)):
        if value is not None and not 0 < value < float("inf"):
            raise typer.BadParameter(f"{name} must be a number above 0, not {value:g}")
    query_options = QueryOptions(
        profile,
        budget,
        deadline,
        spot,
        objective,
        top,
        tuple(provider or ()),
        shipped_data,
        tuple(prices or ()),
        accelerator_data,
    )
    outputs = Outputs(as_json, plot, skypilot)
    if plot is not None:
        _check_picture(plot)
    if example:
        from services.cli.advise.example import run_example  # noqa: PLC0415 - quick --help

        _show(run_example(task, query_options), None, outputs)
        return
    if job is None:
        raise typer.BadParameter("name a job.yaml, or try --example")
    from services._runtime.command.connection import find_server  # noqa: PLC0415 - quick --help
    from services.cli.advise.job_yaml import load_job  # noqa: PLC0415 - as above
    from services.cli.toolkit.tracing import traced  # noqa: PLC0415 - as above

    file = load_job(job)
    request = request_for(file, query_options, job.parent)
    with traced("cli.advise", turnbuckle__job=file.name):
        reply = asyncio.run(_ask(request, find_server(server, context)))
    _show(Answer(reply, request.spot), file, outputs)


async def _ask(request: RankRequest, options: object) -> RankReply:
    from services._runtime.bus.options import BusOptions  # noqa: PLC0415 - quick --help
    from services._runtime.command.connection import connected  # noqa: PLC0415 - as above

    assert isinstance(options, BusOptions)
    async with connected(options) as bus:
        if not (request.shipped_data or request.accelerator_data):
            return await ask(bus, request, training_timeout_s=0.0)
        with stderr_console().status("the advisor learns from the shipped data set"):
            return await ask(bus, request, training_timeout_s=TRAINING_TIMEOUT_S)


def _show(answer: Answer, file: JobYaml | None, outputs: Outputs) -> None:
    from services.cli.advise.view import print_answer  # noqa: PLC0415 - quick --help

    reply = answer.reply
    if outputs.as_json:
        plain = to_plain(reply)
        if answer.measured is not None:
            plain["measured"] = {
                "task": answer.measured.task,
                "time_s": answer.measured.time_s,
                "cost_usd": answer.measured.cost_usd,
            }
        print_json(plain)
    else:
        print_answer(stdout_console(), answer)
    if outputs.plot is not None:
        _draw(answer, outputs.plot)
    if not reply.ranked:
        raise typer.Exit(ExitCode.FAILED)
    if outputs.skypilot is not None:
        from services.cli.advise.skypilot import task_yaml  # noqa: PLC0415 - quick --help

        _write(outputs.skypilot, task_yaml(answer, file))


def _check_picture(path: Path) -> None:
    """Reject an unusable path before the advisor is asked."""
    from services.cli.advise.plot import FORMATS  # noqa: PLC0415 - matplotlib loads slowly

    if (ending := path.suffix.removeprefix(".").lower()) not in FORMATS:
        raise BadFileError(f"{path} cannot be drawn: {ending or 'no ending'} is none of {', '.join(sorted(FORMATS))}")


def _draw(answer: Answer, path: Path) -> None:
    from services.cli.advise.plot import draw_front  # noqa: PLC0415 - matplotlib loads slowly

    try:
        drawn = draw_front(answer, path)
    except OSError as error:
        raise BadFileError(f"{path} cannot be written: {error.strerror}") from error
    except ValueError as error:  # matplotlib: an unknown format
        raise BadFileError(f"{path} cannot be drawn: {error}") from error
    print_note(f"picture: {path}" if drawn else "no picture: no configuration has both a known time and a known cost")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadFileError(f"{path} cannot be written: {error.strerror}") from error
    print_note(f"written: {path}")

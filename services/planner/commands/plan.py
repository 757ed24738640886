"""`turnbuckle plan`: who computes how much of a training job, and holds which part of it, on unequal devices."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Annotated, Final

import typer
from pydantic import ValidationError

from schemas.layers import Dtype, LayerProfile
from schemas.measured_runs import MeasuredRun
from schemas.plans import MAX_BATCH, Plan, PlanReply, PlanRequest, Strategy
from schemas.predictions import Objective
from schemas.scheduling import JOB_NAME_PATTERN
from schemas.services.planner import PLANNER_PLAN
from services._jobs.measured_run_file import default_file, read_runs
from services._runtime.atomic_file import write_atomically
from services._runtime.command.connection import ContextOption, ServerOption, await_reply, connected, find_server
from services._runtime.command.errors import BadFileError, CommandError, MissingFileError, UnavailableError, UsageError
from services._runtime.command.output import print_json, print_note, stdout_console
from services._runtime.exit_code import ExitCode

EXAMPLES: Final = """
Examples:

  turnbuckle plan profiles/*.json --devices cluster.yaml --batch 64

  turnbuckle plan l4.json a6000.json --devices cluster.yaml --batch 64 --optimizer sgd-momentum --why

  turnbuckle plan profiles/*.json --devices cluster.yaml --batch 64 --out plan.json --json

  turnbuckle plan --task model.py:build --devices cluster.yaml --batch 64      (asks `turnbuckle run planner`)

A profile has time and memory of the model's layers on one kind of device: `turnbuckle layers --out` writes it.
docs/planner.md describes both files.
"""
OPTIMIZERS: Final = {"adamw": 16.0, "adam": 16.0, "sgd-momentum": 12.0, "sgd": 8.0}
"""Bytes of state per parameter in float32: parameter, gradient, moments."""
MAX_PROFILE_BYTES: Final = 16 << 20
_REPLY_TIMEOUT_S: Final = 60.0
_FUNCTION: Final = re.compile(r"[\w./-]+:\w+")
"""As `turnbuckle layers` takes a model, and names the task where nothing else is given."""
"""Longer than a planner lets a request wait and be planned, unless its settings say otherwise."""


class NoPlanError(CommandError):
    """Nothing fits."""

    exit_code = ExitCode.BAD_DATA


def plan_command(  # noqa: PLR0913 - a command's options are its parameters
    profiles: Annotated[
        list[Path] | None, typer.Argument(help="Layer profiles: a JSON file per kind of device; none: see --task.")
    ] = None,
    *,
    task: Annotated[
        str | None,
        typer.Option("--task", help="Ask the planner, by the profiles on the bus of this task, model or digest."),
    ] = None,
    devices: Annotated[Path, typer.Option("--devices", "-d", help="The devices: cluster.yaml.")],
    batch: Annotated[
        int, typer.Option("--batch", "-b", min=1, max=MAX_BATCH, help="Samples per step, of all devices.")
    ],
    optimizer: Annotated[str, typer.Option("--optimizer", help=f"One of {', '.join(OPTIMIZERS)}.")] = "adamw",
    gather: Annotated[Dtype, typer.Option("--gather", help="Type in which parameters are gathered.")] = Dtype.FLOAT32,
    memory_share: Annotated[
        float, typer.Option("--memory-share", min=0.01, max=1, help="Of a device's memory that may be planned with.")
    ] = 0.75,
    max_microbatch: Annotated[
        int, typer.Option("--max-microbatch", min=1, max=MAX_BATCH, help="Samples of a micro-batch at most.")
    ] = MAX_BATCH,
    strategies: Annotated[
        str, typer.Option("--strategy", help=f"Names, of {', '.join(Strategy)}; or all.", show_default=True)
    ] = "all",
    cheapest: Annotated[
        bool, typer.Option("--cheapest", help="The least cost of a step, instead of its time.")
    ] = False,
    job: Annotated[str, typer.Option("--job", help="The job's name, in the plan.")] = "train",
    why: Annotated[bool, typer.Option("--why", help="Print all reasons.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Write the plan here, too (JSON).")] = None,
    measured: Annotated[
        Path | None,
        typer.Option(
            "--measured",
            metavar="FILE",
            help="Runs that correct the step and its interval; default: what turnbuckle train has recorded here.",
        ),
    ] = None,
    server: ServerOption = None,
    context: ContextOption = None,
) -> None:
    """Divide a training job over unequal devices: samples, micro-batches and state of each, or its layers; and why.

    With files of profiles it needs no server; with --task the planner answers, and publishes the plan.

    Ends with 65 where nothing fits, and says what is missing and what would do; with 69 where a kind of device has no
    profile.
    """
    from services.planner.cluster_file import read_cluster  # noqa: PLC0415 - quick --help
    from services.planner.commands.plan_view import plan_lines  # noqa: PLC0415 - as above

    if bool(profiles) == bool(task):
        raise typer.BadParameter("name files of layer profiles, or with --task what the bus has profiles of")
    if task and measured is not None:
        raise typer.BadParameter("--measured corrects plans that are made here: not with --task")
    request = _request(
        job=_job(job),
        task=task or "",
        profiles=tuple(read_profile(file) for file in profiles or ()),
        cluster=read_cluster(devices),
        batch=batch,
        optimizer_bytes_per_parameter=_optimizer_bytes(optimizer),
        gather_dtype=gather,
        max_microbatch=max_microbatch,
        memory_share=memory_share,
        objective=Objective.COST if cheapest else Objective.TIME,
        strategies=_strategies(strategies),
    )
    reply = _asked(request, (server, context)) if task else _answered(request, devices, _measured_runs(measured))
    plan = _plan_of(reply, request.task)
    if out is not None:
        _write(out, plan.model_dump_json(indent=1) + "\n")
    if as_json:
        print_json(plan.model_dump(mode="json"))
        return
    file = "" if out is None else str(out)
    for line in plan_lines(plan, request.cluster, why=why, file=file, model=_model_of(request)):
        stdout_console().print(line)
    if out is not None:
        print_note(f"written: {out}")


def _model_of(request: PlanRequest) -> str:
    """The function that returns the model, by the name of the profiles' task; empty: the task has another name."""
    task = request.task or next(iter({profile.task for profile in request.profiles}))
    return task if _FUNCTION.fullmatch(task) else ""


def _request(**fields: object) -> PlanRequest:
    try:
        return PlanRequest.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        raise UsageError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def _answered(request: PlanRequest, devices: Path, runs: list[MeasuredRun]) -> PlanReply:
    """By this process."""
    from services.planner.core.choose import plan  # noqa: PLC0415 - it loads numpy and networkx
    from services.planner.core.inputs import MissingProfileError, UnusableInputError  # noqa: PLC0415 - as above

    try:
        return plan(request, request.profiles, runs)
    except MissingProfileError as error:
        return PlanReply(refused=str(error), missing_profiles=error.kinds)
    except UnusableInputError as error:
        raise BadFileError(f"{devices}: {error}") from error


def _asked(request: PlanRequest, where: tuple[str | None, str | None]) -> PlanReply:
    """By the planner; ``where``: server and context of the command line."""

    async def ask() -> PlanReply:
        async with connected(find_server(*where)) as bus:
            pending = bus.request(PLANNER_PLAN.template.subject(bus.root), request, timeout_s=_REPLY_TIMEOUT_S)
            return await await_reply("planner", pending, PlanReply, within_s=_REPLY_TIMEOUT_S)

    return asyncio.run(ask())


def _plan_of(reply: PlanReply, task: str) -> Plan:
    if reply.missing_profiles and task:
        raise UnavailableError(f"{task}: {reply.refused}; with --publish the planner knows it")
    if reply.missing_profiles:
        raise UnavailableError(reply.refused)
    if reply.plan is None:
        raise NoPlanError(f"{reply.refused}. What would do: {reply.remedy}" if reply.remedy else reply.refused)
    return reply.plan


def _measured_runs(given: Path | None) -> list[MeasuredRun]:
    """Of the file that was named, or of the default one, where there is any yet."""
    file = default_file() if given is None else given
    return read_runs(file, print_note) if given is not None or file.exists() else []


def read_profile(file: Path) -> LayerProfile:
    """A layer profile.

    Raises:
        MissingFileError: it does not exist.
        BadFileError: it cannot be read, or is no layer profile.
    """
    try:
        if file.stat().st_size > MAX_PROFILE_BYTES:
            raise BadFileError(f"{file} is larger than {MAX_PROFILE_BYTES} bytes: this is no layer profile")
        return LayerProfile.model_validate_json(file.read_bytes())
    except FileNotFoundError as error:
        raise MissingFileError(f"{file} cannot be read: {error.strerror}") from error
    except OSError as error:
        raise BadFileError(f"{file} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(step) for step in first["loc"])
        raise BadFileError(
            f"{file}: {where + ': ' if where else ''}{first['msg'].removeprefix('Value error, ')}; "
            "this is no layer profile as turnbuckle layers --out writes it"
        ) from error


def _write(file: Path, text: str) -> None:
    try:
        write_atomically(file, text)
    except OSError as error:
        raise BadFileError(f"{file} cannot be written: {error.strerror}") from error


def _job(name: str) -> str:
    if re.fullmatch(JOB_NAME_PATTERN, name) is None:
        raise typer.BadParameter(f"{name!r} is no DNS label: small letters, digits and '-'", param_hint="--job")
    return name


def _optimizer_bytes(name: str) -> float:
    if name not in OPTIMIZERS:
        raise typer.BadParameter(f"no optimizer {name!r}: there are {', '.join(OPTIMIZERS)}", param_hint="--optimizer")
    return OPTIMIZERS[name]


def _strategies(names: str) -> tuple[Strategy, ...]:
    if names == "all":
        return tuple(Strategy)
    wanted = [name.strip() for name in names.split(",")]
    if unknown := [name for name in wanted if name not in set(Strategy)]:
        raise typer.BadParameter(
            f"no strategy {unknown[0]!r}: there are {', '.join(Strategy)}", param_hint="--strategy"
        )
    return tuple(Strategy(name) for name in wanted)

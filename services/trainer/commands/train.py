"""`turnbuckle train`: carries out a plan of `turnbuckle plan` on this machine, or says what to run on each."""

from __future__ import annotations

import asyncio
import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from schemas.plans import Engine
from schemas.scheduling import JOB_NAME_PATTERN
from schemas.streams import TRAININGS
from services._runtime.command.connection import ContextOption
from services._runtime.command.errors import MissingFileError, UnavailableError
from services._runtime.command.output import print_note
from services._runtime.exit_code import ExitCode
from services._runtime.install_hint import package_missing
from services.trainer.commands.elastic_options import (
    PlaceOptions,
    bounds_of,
    check_elastic,
    check_not_elastic,
    checked,
    place_of,
    schedule_of,
)
from services.trainer.commands.outcome import TrainingFailedError, result_of
from services.trainer.core.elastic import Goal, Policy
from services.trainer.core.worker_place import Form, Place
from services.trainer.worker.options import DEVICES

if TYPE_CHECKING:
    from schemas.measured_runs import MeasuredRun
    from schemas.plans import Plan
    from services._runtime.bus.options import BusOptions
    from services.trainer.commands.outcome import Ended
    from services.trainer.commands.train_output import TrainOutput
    from services.trainer.commands.training import Training
    from services.trainer.core.batch_schedule import BatchSchedule

EXAMPLES: Final = """
Examples:

  turnbuckle train plan.json model.py:build --data data.py:batches --steps 1000 --checkpoint saved

  turnbuckle train plan.json model.py:build --data data.py:batches --steps 1000 --dry-run

  turnbuckle train plan.json model.py:build --data data.py:batches --steps 1000 --json | jq -c .samples_per_s

  turnbuckle train plan.json model.py:build --data data.py:batches --steps 1000 --checkpoint saved --elastic 1:4

  sudo -E turnbuckle train plan.json model.py:build --data data.py:batches --steps 1000 --elastic 1:4 --workers sandbox

  turnbuckle train plan.json model.py:build --data data.py:batches --steps 1000 --checkpoint saved --aggregate

Exit codes: 0 done, or saved and stopped by Ctrl-C or SIGTERM; 65 plan, model, optimizer or checkpoint refused; 66 no
such plan; 69 torch, or for --aggregate the aggregator service, is missing; 75 a rank failed: started again, it goes on
at the last checkpoint; 130 killed by a second Ctrl-C.
"""
DEFAULTS: Final = {
    "checkpoint": None,
    "checkpoint-every": 1_000,
    "loss": None,
    "optimizer": None,
    "seed": 0,
    "device": "auto",
    "timeout-s": 600,
}
"""Of the worker's options: only others are in its command line."""


def train_command(  # noqa: PLR0913 - a command's options are its parameters
    plan: Annotated[Path, typer.Argument(metavar="PLAN.json", help="Written by turnbuckle plan --out.")],
    model: Annotated[
        str, typer.Argument(metavar="MODULE:FUNCTION", help="Returns the torch.nn.Module; or file.py:function.")
    ],
    *,
    data: Annotated[
        str,
        typer.Option(
            "--data", metavar="MODULE:FUNCTION", help="Returns a data set of pairs (input, target), by index."
        ),
    ],
    steps: Annotated[int, typer.Option("--steps", min=1, help="Of the whole training, with those of earlier starts.")],
    checkpoint: Annotated[
        Path | None,
        typer.Option("--checkpoint", metavar="DIR", help="Continue there, and save there at the end and when stopped."),
    ] = None,
    checkpoint_every: Annotated[int, typer.Option("--checkpoint-every", min=1, help="Steps between two.")] = 1_000,
    loss: Annotated[
        str | None,
        typer.Option("--loss", metavar="MODULE:FUNCTION", help="Of (output, target); default: loss beside the model."),
    ] = None,
    optimizer: Annotated[
        str | None,
        typer.Option("--optimizer", metavar="MODULE:FUNCTION", help="Default: optimizer beside the model."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of parameters, dropout and the order of samples.")] = 0,
    device: Annotated[str, typer.Option("--device", help="auto (a GPU where torch sees one), cpu or cuda.")] = "auto",
    offload: Annotated[
        bool, typer.Option("--offload", help="Of pipelines: a GPU's parts of the state stay in the host's memory.")
    ] = False,
    timeout_s: Annotated[int, typer.Option("--timeout-s", min=1, help="For a rank that does not answer.")] = 600,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be run, and run nothing.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, one object a line.")] = False,
    server: Annotated[
        str | None,
        typer.Option(
            "--server", "-s", metavar="URL", help="NATS server to publish steps on; default: NATS_URL, if set."
        ),
    ] = None,
    context: ContextOption = None,
    elastic: Annotated[
        str | None,
        typer.Option(
            "--elastic",
            metavar="LEAST:MOST",
            help="Workers that are all alike join and leave between steps; each has micro-batches as the plan's first.",
        ),
    ] = None,
    policy: Annotated[Policy, typer.Option("--policy", help="How many workers.")] = Policy.THROUGHPUT_PER_DOLLAR,
    batch_schedule: Annotated[
        str | None,
        typer.Option(
            "--batch-schedule", metavar="STEP:SAMPLES,...", help="Samples of each step from a step on; default: plan's."
        ),
    ] = None,
    usd_per_hour: Annotated[
        float, typer.Option("--usd-per-hour", min=0, help="Of one worker, paid by the second.")
    ] = 0,
    efficiency: Annotated[
        float,
        typer.Option("--efficiency", min=0, max=1, help="Least samples per dollar, as a share of the best."),
    ] = 0.8,
    deadline_s: Annotated[float, typer.Option("--deadline-s", min=0, help="Of --policy deadline.")] = 0,
    budget_usd: Annotated[float, typer.Option("--budget-usd", min=0, help="Of --policy budget.")] = 0,
    workers: Annotated[
        Form, typer.Option("--workers", help="Of --elastic: processes without limits; sandboxes, as root; containers.")
    ] = Form.PROCESS,
    worker_cpus: Annotated[
        float | None,
        typer.Option("--worker-cpus", min=0.01, help="Cores of each sandbox or container; default: the plan's."),
    ] = None,
    worker_memory: Annotated[
        str | None,
        typer.Option(
            "--worker-memory", metavar="SIZE", help="Of each sandbox or container, such as 2GiB; default: the plan's."
        ),
    ] = None,
    image: Annotated[
        str, typer.Option("--image", metavar="IMAGE", help="Of --workers docker: has Turnbuckle's trainer for python3.")
    ] = "",
    mount: Annotated[
        list[str] | None,
        typer.Option(
            "--mount",
            metavar="SOURCE:TARGET[:ro]",
            help="Into containers, beside the current directory; several times.",
        ),
    ] = None,
    aggregate: Annotated[
        bool,
        typer.Option(
            "--aggregate",
            help="Every rank has the whole model; the aggregator service on the bus sums their gradients.",
        ),
    ] = False,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="Of this training on the bus; default: the plan's job."),
    ] = None,
) -> None:
    """Train by a plan: run its ranks on this machine; for a plan over several, print the line to run on each.

    Each second a line says the step, its time beside the planned one, samples per second and the loss. Ctrl-C or
    SIGTERM saves after the current step and ends with 0; a second one kills at once. With a bus, or as a job of the
    scheduler, steps and events are published; that never delays a step.
    """
    from schemas.plans import Engine  # noqa: PLC0415 - quick --help
    from services.trainer.commands.train_output import TrainOutput  # noqa: PLC0415 - as above
    from services.trainer.commands.training import Training  # noqa: PLC0415 - as above

    for option, function in (("MODEL", model), ("--data", data), ("--loss", loss), ("--optimizer", optimizer)):
        _check_function(option, function)
    if device not in DEVICES:
        raise typer.BadParameter(f"{device!r} is none of {', '.join(DEVICES)}", param_hint="--device")
    own = {"data": data, "steps": steps, "checkpoint": checkpoint, "loss": loss, "optimizer": optimizer}
    own |= {"checkpoint-every": checkpoint_every, "seed": seed, "device": device, "timeout-s": timeout_s}
    worker = [str(plan), model]
    for option, value in own.items():
        if value != DEFAULTS.get(option):
            worker += [f"--{option}", str(value)]
    worker += ["--offload"] * offload
    directory = "" if checkpoint is None else str(checkpoint)
    training = Training(_named(_usable_plan(plan), name), tuple(worker), steps, directory)
    output, bus = TrainOutput(as_json=as_json), (server, context)
    if offload and training.plan.engine is not Engine.MINISTAGE:
        raise typer.BadParameter(
            f"only pipelines (engine ministage) keep parts in the host's memory, and this plan's engine is "
            f"{training.plan.engine}: leave it out, or give turnbuckle plan --strategy pipeline",
            param_hint="--offload",
        )
    place = PlaceOptions(workers, worker_cpus, worker_memory, image, tuple(mount or ()))
    if aggregate:
        _check_aggregated(training.plan, is_elastic=elastic is not None, dry_run=dry_run)
    if elastic is None:
        check_not_elastic(place)
        _carry_out(training, output, bus, timeout_s if aggregate else None, dry_run=dry_run)
        return
    goal = checked(Goal(policy, *bounds_of(elastic), usd_per_hour, efficiency, deadline_s, budget_usd))
    check_elastic(training.plan, dry_run=dry_run)
    wanted = goal, schedule_of(batch_schedule, training.plan), timeout_s + 60.0, place_of(place, training.plan)
    _carry_out_elastic(training, wanted, output, bus)


def _check_aggregated(plan: Plan, *, is_elastic: bool, dry_run: bool) -> None:
    """Refuse what is not done with aggregators.

    Raises:
        typer.BadParameter: says what.
    """
    if is_elastic:
        raise typer.BadParameter(
            "the workers of an elastic training divide the state among them: give one of the two",
            param_hint="--aggregate",
        )
    if plan.engine is Engine.MINISTAGE:
        raise typer.BadParameter(
            "every rank computes the whole model, but the plan is a pipeline: give turnbuckle plan another --strategy",
            param_hint="--aggregate",
        )
    if len(plan.launch) > 1:
        raise typer.BadParameter("all ranks are on this machine, but the plan is for several", param_hint="--aggregate")
    if dry_run:
        raise typer.BadParameter(
            "ranks ask this command where aggregators are: there is no line to print", param_hint="--dry-run"
        )


def _carry_out(
    training: Training,
    output: TrainOutput,
    given: tuple[str | None, str | None],
    aggregated_within_s: float | None,
    *,
    dry_run: bool,
) -> None:
    """``aggregated_within_s``: for lost ranges to be placed anew; None: ranks sum among themselves."""
    from services.trainer.commands.publishing import find_bus  # noqa: PLC0415 - quick --help
    from services.trainer.commands.training import launch  # noqa: PLC0415 - as above

    lines = launch(training)
    if dry_run or len(lines) > 1:
        output.launch(lines)
        if len(lines) > 1:
            print_note(
                f"the plan is for {len(lines)} machines: run a line on each, beside the same files; "
                "the first one saves and loads checkpoints"
            )
        return
    if find_spec("torch") is None:
        raise UnavailableError(package_missing("torch", "trainer"))
    ended = asyncio.run(_train(training, output, find_bus(*given), aggregated_within_s))
    result = result_of(ended)
    _record(ended.run, output)
    output.result(result, training.steps, training.checkpoint)


def _carry_out_elastic(
    training: Training,
    wanted: tuple[Goal, BatchSchedule, float, Place],
    output: TrainOutput,
    given: tuple[str | None, str | None],
) -> None:
    from services.trainer.commands.elastic import ElasticTraining, StopSignals, train_elastic  # noqa: PLC0415 - quick --help
    from services.trainer.commands.publishing import find_bus, publisher  # noqa: PLC0415 - as above
    from services.trainer.commands.registration import registered  # noqa: PLC0415 - as above

    async def train() -> Ended:
        bus = find_bus(*given, buckets=(TRAININGS,))
        with StopSignals() as signals:
            async with publisher(bus) as taking, registered(taking, training.plan, print_note) as registration:
                return await train_elastic(ElasticTraining(training, *wanted), output, signals, taking, registration)

    if find_spec("torch") is None:
        raise UnavailableError(package_missing("torch", "trainer"))
    output.result(result_of(asyncio.run(train())), training.steps, training.checkpoint)


def _record(run: MeasuredRun | str, output: TrainOutput) -> None:
    """For later plans; where it cannot be written, the training is done all the same."""
    from services._jobs.measured_run_file import append_run, default_file  # noqa: PLC0415 - quick --help

    file = default_file()
    if not isinstance(run, str):
        try:
            append_run(file, run)
        except OSError as error:
            run = f"{file} cannot be written: {error.strerror}"
    output.recorded(run, file)


async def _train(
    training: Training, output: TrainOutput, bus: BusOptions | None, aggregated_within_s: float | None
) -> Ended:
    from services.trainer.commands.aggregation import aggregated  # noqa: PLC0415 - quick --help
    from services.trainer.commands.publishing import publisher  # noqa: PLC0415 - as above
    from services.trainer.commands.training import train  # noqa: PLC0415 - as above

    async with publisher(bus) as taking:
        if aggregated_within_s is None:
            return await train(training, output, taking)
        async with aggregated(taking, training, aggregated_within_s, print_note) as with_aggregators:
            return await train(with_aggregators, output, taking)


def _usable_plan(file: Path) -> Plan:
    from services.trainer.worker.plan_file import RefusedError, check_plan, read_plan  # noqa: PLC0415 - quick --help

    if not file.exists():
        raise MissingFileError(f"{file} does not exist: turnbuckle plan --out writes it")
    try:
        plan = read_plan(file)
        check_plan(plan)
    except RefusedError as error:
        raise TrainingFailedError(str(error), ExitCode.BAD_DATA) from error
    return plan


def _named(plan: Plan, name: str | None) -> Plan:
    """The plan as one of this training."""
    if name is None:
        return plan
    if re.fullmatch(JOB_NAME_PATTERN, name) is None:
        raise typer.BadParameter(
            f"{name!r} is no name: up to 63 small letters, digits and hyphens, none of these at an end",
            param_hint="--name",
        )
    return plan.model_copy(update={"job": name})


def _check_function(name: str, function: str | None) -> None:
    if function is not None and not all(function.rpartition(":")):
        raise typer.BadParameter(f"{function!r} is not module:function, such as train.py:build", param_hint=name)

"""What the options of an elastic training say, checked."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import typer

from schemas.devices import MAX_DEVICES
from schemas.plans import Engine, Plan
from schemas.sizes import parse_size
from services.trainer.core.batch_schedule import BatchSchedule, parse_schedule
from services.trainer.core.elastic import Goal, Policy
from services.trainer.core.worker_place import Form, Place, worker_limits

_BOUNDS: Final = re.compile(r"(\d{1,6}):(\d{1,6})")
_MOUNT: Final = re.compile(r"/[^:]*:/[^:]+(:r[ow])?")


def bounds_of(text: str) -> tuple[int, int]:
    """The fewest and the most workers.

    Raises:
        typer.BadParameter: the text is wrong.
    """
    found = _BOUNDS.fullmatch(text)
    least, most = (int(found[1]), int(found[2])) if found else (0, 0)
    if not 1 <= least <= most <= MAX_DEVICES:
        raise typer.BadParameter(
            f"{text!r} is no LEAST:MOST of workers, such as 1:4, of at most {MAX_DEVICES}", param_hint="--elastic"
        )
    return least, most


def checked(goal: Goal) -> Goal:
    """The goal.

    Raises:
        typer.BadParameter: its policy lacks an option.
    """
    if goal.policy is Policy.DEADLINE and not goal.deadline_s:
        raise typer.BadParameter("--policy deadline needs --deadline-s", param_hint="--policy")
    if goal.policy is Policy.BUDGET and not (goal.budget_usd and goal.usd_per_hour):
        raise typer.BadParameter("--policy budget needs --budget-usd and --usd-per-hour", param_hint="--policy")
    return goal


def schedule_of(text: str | None, plan: Plan) -> BatchSchedule:
    """The user's, or the plan's batch throughout.

    Raises:
        typer.BadParameter: it is none.
    """
    try:
        return BatchSchedule(((0, plan.batch),)) if text is None else parse_schedule(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--batch-schedule") from error


def check_elastic(plan: Plan, *, dry_run: bool) -> None:
    """Refuse what is not done with an elastic training.

    Raises:
        typer.BadParameter: says what.
    """
    kinds = sorted({device.kind for device in plan.devices})
    if len(kinds) > 1:
        raise typer.BadParameter(
            f"workers are all alike, but the plan has devices of kinds {', '.join(kinds)}", param_hint="--elastic"
        )
    if plan.engine is Engine.MINISTAGE:
        raise typer.BadParameter(
            "workers that join and leave divide each layer, but the plan is a pipeline, which divides the layers: give "
            "turnbuckle plan another --strategy",
            param_hint="--elastic",
        )
    if len(plan.launch) > 1:
        raise typer.BadParameter("all workers are on this machine, but the plan is for several", param_hint="--elastic")
    if dry_run:
        raise typer.BadParameter("workers are started as it goes on: there is no line to print", param_hint="--dry-run")


@dataclass(frozen=True, slots=True)
class PlaceOptions:
    """Of where workers run, as they were given."""

    form: Form
    cpu_cores: float | None
    memory: str | None
    image: str
    mounts: tuple[str, ...]


def check_not_elastic(options: PlaceOptions) -> None:
    """Refuse options of a place where torchrun starts the ranks.

    Raises:
        typer.BadParameter: says which.
    """
    if options != PlaceOptions(Form.PROCESS, None, None, "", ()):
        raise typer.BadParameter(
            "--workers, --worker-cpus, --worker-memory, --image and --mount are of --elastic", param_hint="--workers"
        )


def place_of(options: PlaceOptions, plan: Plan) -> Place:
    """Where workers run, and what each may use: what the plan says, or the user.

    Raises:
        typer.BadParameter: an option is missing, wrong, or of another form.
    """
    is_docker = options.form is Form.DOCKER
    if is_docker != bool(options.image):
        raise typer.BadParameter("--workers docker needs --image, and no other does", param_hint="--image")
    if options.mounts and not is_docker:
        raise typer.BadParameter("only --workers docker has mounts", param_hint="--mount")
    for mount in options.mounts:
        if _MOUNT.fullmatch(mount) is None:
            raise typer.BadParameter(
                f"{mount!r} is no SOURCE:TARGET or SOURCE:TARGET:ro, with absolute paths", param_hint="--mount"
            )
    if options.form is Form.PROCESS:
        if options.cpu_cores is not None or options.memory is not None:
            raise typer.BadParameter(
                "processes have no limits: give --workers sandbox or --workers docker", param_hint="--workers"
            )
        return Place()
    try:
        memory_bytes = None if options.memory is None else parse_size(options.memory)
        limits = worker_limits(plan, options.cpu_cores, memory_bytes)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--workers") from error
    return Place(options.form, limits, options.image, options.mounts)

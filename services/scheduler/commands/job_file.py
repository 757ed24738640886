"""job.yaml: a training job for `turnbuckle jobs submit`.

Such as::

    name: resnet                  # default: the file's name and 4 letters
    workers: 4                    # one process each, started together or not at all
    slots: 1                      # of each worker
    run: python train.py          # a shell's line; or command: [python, train.py]
    preemption: checkpoint        # or restart; default: never
    checkpoint: {grace_s: 30, directory: ckpt}
    environment: {EPOCHS: "10"}
    estimate: 40m
    network: {interleave: true, congestion_control: auto}    # a name that the hosts have, such as cubic; or off
    min_workers: 1                # an elastic job: checked, but not run yet (see ELASTIC_IS_SIMULATED)
    max_workers: 8
    deadline: 6h                  # from its submission; or budget_slot_hours: 20

The working directory, where it is relative, is that in which the command is typed.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, ValidationError, model_validator

from schemas.jobs import MAX_NAME_CHARACTERS, PositiveFloat
from schemas.scheduling import (
    AUTOMATIC,
    CONGESTION_CONTROL_PATTERN,
    JOB_NAME_PATTERN,
    MAX_PLANNED_BATCH,
    MAX_SLOTS_PER_WORKER,
    MAX_WORKERS,
    NAME_ENDING_LENGTH,
    NAME_ENDING_LETTERS,
    JobSpec,
    Preemption,
    Text,
)
from schemas.sizes import MemorySize
from services._jobs.task_yaml import STRICT, TaskSection, load_profile, with_task
from services._runtime.command.errors import BadFileError
from services._runtime.command.period import parse_period
from services._runtime.command.yaml_file import YamlSource, read_yaml, to_environment, to_text, validate

MIN_MEMORY_BYTES: Final = 1 << 20
NOT_YET: Final = {
    "image": "workers run as processes, by `run:` or `command:`",
}
"""Fields that are planned, and what is so until then."""
_MOST_NAME_CHARACTERS: Final = 58
"""Of a default name, before its letters."""
_VARIABLE: Final = re.compile(r"[^=\0]+")


def check_name(name: str) -> str:
    """The name of a job.

    Raises:
        ValueError: it is no DNS label.
    """
    if not re.fullmatch(JOB_NAME_PATTERN, name):
        raise ValueError(f"{name!r} should be small letters, digits and '-', at most 63, such as resnet-50")
    return name


def _to_seconds(value: Any) -> Any:
    return parse_period(value) if isinstance(value, str) else value


def _to_texts(value: Any) -> Any:
    return [to_text(item) for item in value] if isinstance(value, list) else value


def _check_variables(environment: dict[str, str]) -> dict[str, str]:
    if wrong := next((name for name in environment if not _VARIABLE.fullmatch(name)), None):
        raise ValueError(f"{wrong!r} is no name of a variable")
    if null := next((name for name, value in environment.items() if "\0" in value), None):
        raise ValueError(f"the value of {null} holds a null byte")
    return environment


class CheckpointSection(BaseModel):
    """How workers save their state."""

    model_config = STRICT

    grace_s: Annotated[float, Field(gt=0, le=86_400)] = 30.0
    directory: Text = ""


def _to_congestion_control(value: Any) -> Any:
    """YAML takes `off` for a truth value."""
    return "" if value is False or value == "off" else value


def _check_congestion_control(name: str) -> str:
    if not re.fullmatch(CONGESTION_CONTROL_PATTERN, name):
        raise ValueError(f"{name!r} is no congestion control: auto, off, or a name such as mltcp, cubic, bbr")
    return name


class NetworkSection(BaseModel):
    """How its workers share links with other jobs."""

    model_config = STRICT

    interleave: bool = True
    congestion_control: Annotated[
        str, BeforeValidator(_to_congestion_control), AfterValidator(_check_congestion_control)
    ] = AUTOMATIC
    """Empty: as the host has it."""


class JobFile(BaseModel):
    """A whole job.yaml."""

    model_config = STRICT

    name: Annotated[str, AfterValidator(check_name)] | None = None
    workers: Annotated[int, Field(ge=1, le=MAX_WORKERS)] = 1
    slots: Annotated[int, Field(ge=1, le=MAX_SLOTS_PER_WORKER)] = 1
    cpu: PositiveFloat | None = None
    """Cores of each worker."""
    memory: Annotated[MemorySize, Field(ge=MIN_MEMORY_BYTES)] | None = None
    """Of each worker."""
    run: Annotated[Text, Field(min_length=1)] | None = None
    command: Annotated[tuple[Text, ...], BeforeValidator(_to_texts), Field(min_length=1, max_length=1_000)] | None = (
        None
    )
    directory: Text | None = None
    environment: Annotated[
        dict[str, Text], BeforeValidator(to_environment), AfterValidator(_check_variables), Field(max_length=1_000)
    ] = {}
    preemption: Literal["never", "restart", "checkpoint"] | None = None
    checkpoint: CheckpointSection = CheckpointSection()
    retries: Annotated[int, Field(ge=0, le=100)] = 0
    network: NetworkSection = NetworkSection()
    task: TaskSection | None = None
    features: Path | None = None
    """What `turnbuckle features --json` wrote; fields of `task` come first."""
    model: Annotated[str, Field(max_length=MAX_NAME_CHARACTERS)] = ""
    """Of which the planner has layer profiles: their task, their model, or the digest of one."""
    batch: Annotated[int, Field(ge=0, le=MAX_PLANNED_BATCH)] = 0
    """Samples of a step, of all workers; with `model`."""
    profile: str = ""
    """The local run: its name on the bus, or the file that `turnbuckle profile` wrote."""
    estimate: Annotated[PositiveFloat, BeforeValidator(_to_seconds)] | None = None
    """Run time, seconds; or a period such as ``40m``."""
    min_workers: Annotated[int, Field(ge=1, le=MAX_WORKERS)] | None = None
    """With one of these the job is elastic; the other is `workers` then, for which `estimate` holds."""
    max_workers: Annotated[int, Field(ge=1, le=MAX_WORKERS)] | None = None
    deadline: Annotated[PositiveFloat, BeforeValidator(_to_seconds)] | None = None
    """Of an elastic job: seconds from its submission; or a period."""
    budget_slot_hours: PositiveFloat | None = None
    """Of an elastic job."""

    @model_validator(mode="after")
    def _check_one_command(self) -> Self:
        if (self.run is None) == (self.command is None):
            missing = self.run is None
            raise ValueError(
                "what should it run? Give `run: python train.py`, or `command: [python, train.py]`"
                if missing
                else "`run` and `command` are both there: keep one"
            )
        return self

    @model_validator(mode="after")
    def _check_planned(self) -> Self:
        if bool(self.model) != bool(self.batch):
            raise ValueError("`model` and `batch` belong together: a plan divides so many samples of a step")
        return self

    @model_validator(mode="after")
    def _check_elastic(self) -> Self:
        least, most = self.min_workers or self.workers, self.max_workers or self.workers
        is_elastic = self.min_workers is not None or self.max_workers is not None
        if not least <= self.workers <= most:
            raise ValueError(
                f"`workers`, {self.workers}, is not between `min_workers`, {least}, and `max_workers`, {most}: it is "
                "what the job asks for, and what its estimate is of"
            )
        if self.deadline is not None and self.budget_slot_hours is not None:
            raise ValueError("`deadline` and `budget_slot_hours` are both there: keep one")
        if not is_elastic and (self.deadline is not None or self.budget_slot_hours is not None):
            raise ValueError(
                "`deadline` and `budget_slot_hours` choose among numbers of workers: "
                "give `min_workers` or `max_workers`"
            )
        if is_elastic and self.model:
            raise ValueError("`model`: a plan is for one number of workers. Leave out `min_workers` and `max_workers`")
        return self

    def spec(self, default_name: str) -> JobSpec:
        """What the scheduler gets.

        Raises:
            BadFileError: the file of the local run cannot be read.
        """
        command = ("/bin/sh", "-c", self.run) if self.run is not None else self.command
        try:
            return JobSpec(
                job=self.name or default_name,
                workers=self.workers,
                slots=self.slots,
                cpu_cores=self.cpu,
                memory_bytes=None if self.memory is None else int(self.memory),
                command=command or (),
                directory=str(Path(self.directory or ".").absolute()),
                environment=self.environment,
                preemption=Preemption(self.preemption or Preemption.NEVER),
                grace_s=self.checkpoint.grace_s,
                checkpoint_directory=self.checkpoint.directory,
                retries=self.retries,
                task=self.task,
                run=_run_name(self.profile),
                estimate_s=self.estimate,
                model=self.model,
                batch=self.batch,
                interleave=self.network.interleave,
                congestion_control=self.network.congestion_control,
                min_workers=self.min_workers or (self.workers if self.max_workers else 0),
                max_workers=self.max_workers or (self.workers if self.min_workers else 0),
                deadline_s=self.deadline,
                budget_slot_hours=self.budget_slot_hours,
            )
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            raise BadFileError(f"{'.'.join(map(str, first['loc']))}: {first['msg']}".removeprefix(": ")) from error


def load_job_file(file: Path, options: dict[str, Any]) -> JobFile:
    """Read and check a job.yaml; ``options``: fields of the command line, which replace those of the file.

    Raises:
        BadFileError: with every mistake on a line of its own, each with file, line, field and what to do.
    """
    source = read_yaml(file)
    if not isinstance(source.content, dict):
        raise BadFileError(f"{source.file}: expected fields such as 'workers: 4' and 'run: python train.py'")
    planned = [name for name in NOT_YET if name in source.content]
    if planned:
        raise BadFileError(
            "\n".join(f"{source.place((name,))}: '{name}' is not possible yet: {NOT_YET[name]}" for name in planned)
        )
    content = with_task(source.content, file.parent)
    changes = {name: value for name, value in options.items() if name != "environment"}
    job = validate(YamlSource(source.file, content | changes, source.lines), JobFile)
    return job.model_copy(update={"environment": job.environment | options.get("environment", {})})


def job_of_options(options: dict[str, Any]) -> JobFile:
    """A job that the command line alone describes.

    Raises:
        BadFileError: as `load_job_file`.
    """
    return validate(YamlSource("the command line", options, {}), JobFile)


def default_name(words: Sequence[str]) -> str:
    """Of a job without a name: that of its file or script, and 4 letters."""
    script = next((word for word in words if Path(word).suffix in {".py", ".sh", ".yaml", ".yml"}), words[0])
    stem = re.sub(r"[^a-z0-9]+", "-", Path(script).stem.lower()).strip("-")[:_MOST_NAME_CHARACTERS].strip("-")
    letters = "".join(secrets.choice(NAME_ENDING_LETTERS) for _ in range(NAME_ENDING_LENGTH))
    return f"{stem or 'job'}-{letters}"


def _run_name(profile: str) -> str:
    path = Path(profile)
    return load_profile(path).run if profile and path.is_file() else profile

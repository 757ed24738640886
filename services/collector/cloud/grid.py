"""A grid of training jobs (thesis 4.4.2): machine types x workers x batch sizes, each job with a label of its own."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from datetime import date
from itertools import product
from typing import Annotated, Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from schemas.accelerators import (
    ACCELERATORS,
    GCP_BUILT_IN,
    VERTEX_TYPES,
    Accelerator,
    find_accelerator,
    gcp_misfit,
    gcp_needs_accelerators,
    with_attached,
    without_attached,
)
from schemas.jobs import Configuration, NonNegativeFloat, Price, TaskFeatures

_LABEL_CHARACTERS: Final = 63
_PLACEHOLDER: Final = re.compile(r"\{([a-z_]+)\}")
PLACEHOLDERS: Final = (
    "task",
    "machine_type",
    "workers",
    "batch_size",
    "repeat",
    "job",
    "accelerator_type",
    "accelerator_count",
)

Positive = Annotated[int, Field(ge=1, le=100_000)]
LabelText = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,39}$")]


class _Part(BaseModel):
    """A part of a grid file: an unknown key is an error, not a setting that is silently ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Container(_Part):
    """What runs on every machine. Command, arguments and environment may hold `PLACEHOLDERS` in braces."""

    image_uri: Annotated[str, Field(min_length=1)]
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)


class Disk(_Part):
    """Boot disk of each machine."""

    type: str = "pd-ssd"
    size_gb: Annotated[int, Field(ge=100, le=64_000)] = 100


class Machine(_Part):
    """What is known of a machine type."""

    vcpu: NonNegativeFloat = 0.0
    memory_gb: NonNegativeFloat = 0.0
    network_gbps: NonNegativeFloat = 0.0
    usd_per_hour: NonNegativeFloat | None = None
    """With its accelerators; 0: not known."""
    accelerator_type: str = ""
    """Vertex AI's name, such as ``NVIDIA_TESLA_T4``; empty: none."""
    accelerator_count: Annotated[int, Field(ge=0, le=64)] = 0
    """Per machine; 0: one, where a type is given."""

    @field_validator("accelerator_type")
    @classmethod
    def _known_type(cls, name: str) -> str:
        if name and name not in VERTEX_TYPES:
            raise ValueError(f"{name!r} is none of {', '.join(VERTEX_TYPES)}")
        return name

    @model_validator(mode="after")
    def _count_of_a_type(self) -> Self:
        if self.accelerator_count and not self.accelerator_type:
            raise ValueError("accelerator_count is given, but no accelerator_type")
        return self


class PriceList(_Part):
    """Where the machines' prices come from, and of which day they are."""

    as_of: date
    source: Annotated[str, Field(min_length=1)]
    snapshot: str = ""


class TaskGrid(_Part):
    """One training task, and what is varied for it; what is left out is taken from the file's top."""

    task: TaskFeatures
    container: Container
    machine_types: dict[str, Machine] | None = None
    workers: tuple[Positive, ...] = ()
    batch_sizes: tuple[Annotated[int, Field(ge=0)], ...] = ()
    local_run: str = ""
    """`RunProfile.run` of the task's local run."""


class GridFile(_Part):
    """A file of job specifications."""

    name: LabelText
    """Of the whole grid. Jobs are known by it, the task, the machine type, workers, batch size and repeat."""
    project: str | None = None
    region: str | None = None
    parallel: Annotated[int, Field(ge=1, le=1_000)] = 8
    """Jobs that may be under way at the same time."""
    repeats: Annotated[int, Field(ge=1, le=100)] = 1
    disk: Disk = Field(default_factory=Disk)
    timeout_hours: Annotated[float, Field(gt=0, le=168)] = 24.0
    service_account: str = ""
    network: str = ""
    prices: PriceList | None = None
    machine_types: dict[str, Machine] = Field(default_factory=dict)
    """By Vertex AI's machine type, or a catalogue's name of it with accelerators, such as ``n1-standard-8+1xT4``."""
    workers: tuple[Positive, ...] = ()
    batch_sizes: tuple[Annotated[int, Field(ge=0)], ...] = ()
    tasks: Annotated[tuple[TaskGrid, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _check(self) -> Self:
        for grid in self.tasks:
            name = grid.task.task
            if not (grid.machine_types or self.machine_types):
                raise ValueError(f"{name}: no machine_types are named")
            if not (grid.workers or self.workers):
                raise ValueError(f"{name}: no numbers of workers are named")
            _check_placeholders(grid.container, name)
        for types in self._all_machines():
            for key, machine in types.items():
                attached_accelerators(key, machine)
        priced = [machine for types in self._all_machines() for machine in types.values() if machine.usd_per_hour]
        if priced and self.prices is None:
            raise ValueError("usd_per_hour is given, but prices (as_of, source) is not: a price without a day is none")
        return self

    def _all_machines(self) -> Iterator[dict[str, Machine]]:
        yield self.machine_types
        for grid in self.tasks:
            yield grid.machine_types or {}


def attached_accelerators(key: str, machine: Machine) -> tuple[str, Accelerator | None, int]:
    """Return Vertex AI's machine type, its accelerator and their number, of an entry of `machine_types`.

    Raises:
        ValueError: Google Cloud has no such machine; the text says what it has.
    """
    machine_type, name, count = without_attached(key)
    accelerator = find_accelerator(name)
    if name and (accelerator is None or not accelerator.vertex_type):
        raise ValueError(f"{key}: Vertex AI has no accelerator {name}")
    if (given := VERTEX_TYPES.get(machine.accelerator_type)) is not None:
        if accelerator is not None and (accelerator, count) != (given, machine.accelerator_count or count):
            raise ValueError(f"{key}: accelerator_type and accelerator_count contradict the name")
        accelerator, count = given, machine.accelerator_count or count or 1
    if misfit := gcp_misfit(machine_type, accelerator.name if accelerator is not None else "", count):
        raise ValueError(f"{misfit}{_accelerator_remedy(machine_type)}")
    return machine_type, accelerator, count


def _accelerator_remedy(machine_type: str) -> str:
    built_in = GCP_BUILT_IN.get(machine_type)
    if built_in is None:
        return ""
    kind = ACCELERATORS[built_in[0]].vertex_type
    return f": write accelerator_type {kind} and accelerator_count {built_in[1]}"


def _check_placeholders(container: Container, task: str) -> None:
    for text in (*container.command, *container.args, *container.env.values()):
        for name in _PLACEHOLDER.findall(text):
            if name not in PLACEHOLDERS:
                raise ValueError(f"{task}: {{{name}}} in {text!r} is none of {', '.join(PLACEHOLDERS)}")


class JobPlan(BaseModel):
    """What is known about a job before it runs. It travels with the job, so that every collector has it."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    job: str
    """The label's value, unique in a project; also `JobRecord.job`."""
    grid: str
    task: TaskFeatures
    configuration: Configuration
    price: Price | None = None
    repeat: int = 0
    local_run: str = ""

    @property
    def display_name(self) -> str:
        """For people."""
        place = self.configuration
        return (
            f"{self.grid} {self.task.task} {place.instance_type} x{place.workers} batch {place.batch_size} "
            f"run {self.repeat}"
        )[:128]


class JobRequest(BaseModel):
    """A job as it is to be created."""

    model_config = ConfigDict(frozen=True)

    plan: JobPlan
    container: Container
    disk: Disk
    timeout_hours: float
    service_account: str = ""
    network: str = ""


def job_requests(grid: GridFile) -> list[JobRequest]:
    """Every job of the file: all first repeats, then all second ones, so that an early end leaves whole rounds.

    Raises:
        ValueError: two jobs would be the same.
    """
    found: dict[str, JobRequest] = {}
    for repeat in range(grid.repeats):
        for task in grid.tasks:
            machines = task.machine_types or grid.machine_types
            sizes = task.batch_sizes or grid.batch_sizes or (0,)
            for (machine_type, machine), workers, batch_size in product(
                machines.items(), task.workers or grid.workers, sizes
            ):
                place = _configuration(grid, machine_type, machine, (workers, batch_size))
                plan = _plan(grid, task, (place, machine), repeat)
                if plan.job in found:
                    raise ValueError(f"{plan.display_name} stands in the file twice")
                found[plan.job] = _request(grid, task, plan)
    return list(found.values())


def _configuration(grid: GridFile, key: str, machine: Machine, size: tuple[int, int]) -> Configuration:
    workers, batch_size = size
    machine_type, accelerator, count = attached_accelerators(key, machine)
    name = machine_type
    if accelerator is not None and not gcp_needs_accelerators(machine_type):
        # Two numbers of accelerators on one machine type are two machines, with a price each.
        name = with_attached(machine_type, accelerator.name, count)
    return Configuration(
        instance_type=name,
        provider="gcp",
        workers=workers,
        batch_size=batch_size,
        vcpu=machine.vcpu,
        memory_gb=machine.memory_gb,
        disk_gb=grid.disk.size_gb,
        network_gbps=machine.network_gbps,
        accelerator=accelerator.name if accelerator is not None else "",
        accelerators=count,
        accelerator_memory_gb=accelerator.memory_gb if accelerator is not None else 0.0,
    )


def vertex_accelerator_type(configuration: Configuration) -> str:
    """Return Vertex AI's name of a configuration's accelerators; empty: it has none."""
    found = find_accelerator(configuration.accelerator) if configuration.accelerators else None
    return found.vertex_type if found is not None else ""


def _plan(grid: GridFile, task: TaskGrid, place: tuple[Configuration, Machine], repeat: int) -> JobPlan:
    configuration, machine = place
    price = None
    if machine.usd_per_hour and grid.prices is not None:
        price = Price(usd_per_hour=machine.usd_per_hour, **grid.prices.model_dump())
    return JobPlan(
        job=_label(grid.name, task.task.task, configuration, repeat),
        grid=grid.name,
        task=task.task,
        configuration=configuration,
        price=price,
        repeat=repeat,
        local_run=task.local_run,
    )


def _label(grid: str, task: str, place: Configuration, repeat: int) -> str:
    """The same job, the same text: what was submitted is found again. Readable first, unique by its end."""
    identity = [grid, task, place.instance_type, place.workers, place.batch_size, repeat]
    digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:12]
    words = f"{grid}-{task}-{place.instance_type}-w{place.workers}-b{place.batch_size}-r{repeat}".lower()
    readable = re.sub(r"[^a-z0-9_-]+", "-", words)[: _LABEL_CHARACTERS - len(digest) - 1]
    return f"{readable}-{digest}"


def _request(grid: GridFile, task: TaskGrid, plan: JobPlan) -> JobRequest:
    values = {
        "task": plan.task.task,
        "machine_type": without_attached(plan.configuration.instance_type)[0],
        "workers": str(plan.configuration.workers),
        "batch_size": str(plan.configuration.batch_size),
        "repeat": str(plan.repeat),
        "job": plan.job,
        "accelerator_type": vertex_accelerator_type(plan.configuration),
        "accelerator_count": str(plan.configuration.accelerators),
    }

    def fill(text: str) -> str:
        return _PLACEHOLDER.sub(lambda match: values[match[1]], text)

    container = task.container
    filled = Container(
        image_uri=container.image_uri,
        command=tuple(fill(text) for text in container.command),
        args=tuple(fill(text) for text in container.args),
        env={name: fill(text) for name, text in container.env.items()},
    )
    options: dict[str, Any] = {"service_account": grid.service_account, "network": grid.network}
    return JobRequest(plan=plan, container=filled, disk=grid.disk, timeout_hours=grid.timeout_hours, **options)

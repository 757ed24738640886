"""The grid file: which tasks run on which machines, and in which order. No clock, no I/O but the file itself."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Final

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from services._runtime.command.yaml_file import BoundedLoader, describe_yaml_error
from services.collector.emulator.instance_types import CATALOGUE, LOCAL, InstanceType, digest
from services.collector.emulator.tasks import TASKS, base_task

NAME_PATTERN: Final = r"^[a-z0-9][a-z0-9-]{0,39}$"
SHIPPED: Final = Path(__file__).with_name("shipped.yaml")
"""The grid of the data set that is part of the package."""
_TYPES: Final = {kind.name: kind for kind in CATALOGUE}
_MAX_BYTES: Final = 1 << 20

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
WorkerCount = Annotated[int, Field(ge=1, le=64)]
BatchSize = Annotated[int, Field(ge=1, le=4096)]


class BadGridError(Exception):
    """The grid file cannot be used; the message says where and why."""


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TypeEntry(_Strict):
    """An instance type of the grid's own."""

    name: Annotated[str, Field(pattern=NAME_PATTERN)]
    cpu_cores: Annotated[float, Field(ge=0.05, le=1024)]
    memory_mb: Annotated[int, Field(ge=32)]
    network_mbps: Annotated[float, Field(ge=1, le=100_000)]
    usd_per_hour: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    spot_usd_per_hour: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None

    def instance_type(self) -> InstanceType:
        """The same as a value."""
        return InstanceType(**self.model_dump())


class RepeatEntry(_Strict):
    """A share of the configurations runs several times."""

    count: Annotated[int, Field(ge=1, le=20)] = 1
    share: Share = 0.0


class LocalRunEntry(_Strict):
    """The local run of every task: a master and workers on one machine type."""

    instance_type: TypeEntry | None = None
    """None: `instance_types.LOCAL`."""
    workers: WorkerCount = 3
    batch_size: BatchSize = 32
    interval_s: Annotated[float, Field(ge=0.05, le=10)] = 0.1
    timeout_s: Positive = 60.0

    @property
    def machine(self) -> InstanceType:
        """The machine of each worker."""
        return self.instance_type.instance_type() if self.instance_type else LOCAL


class Grid(_Strict):
    """The file's content."""

    dataset: Annotated[str, Field(pattern=NAME_PATTERN)] = "emulated"
    """`JobRecord.dataset`."""
    seed: Annotated[int, Field(ge=0)] = 0
    timeout_s: Positive = 30.0
    """A run is stopped then, and its duration is a lower bound."""
    tasks: Annotated[tuple[str, ...], Field(min_length=1)] = tuple(TASKS)
    instance_types: Annotated[tuple[InstanceType, ...], Field(min_length=1)] = CATALOGUE
    workers: Annotated[tuple[WorkerCount, ...], Field(min_length=1)]
    batch_sizes: Annotated[tuple[BatchSize, ...], Field(min_length=1)]
    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Of each task's configurations, drawn by the seed: the others stay unmeasured, to be predicted."""
    contended_share: Share = 0.0
    """Of configurations whose workers together exceed the machine."""
    repeats: RepeatEntry = RepeatEntry()
    local_run: LocalRunEntry | None = LocalRunEntry()

    @field_validator("instance_types", mode="before")
    @classmethod
    def _types(cls, value: object) -> object:
        if not isinstance(value, list):
            return value
        return tuple(_instance_type(entry) for entry in value)

    @model_validator(mode="after")
    def _check(self) -> Grid:
        if unknown := [name for name in self.tasks if base_task(name)[0] not in TASKS]:
            raise ValueError(
                f"no such task: {', '.join(unknown)}; there are {', '.join(TASKS)}, and with -x20 20 times their epochs"
            )
        names = [kind.name for kind in self.instance_types]
        for what, values in (
            ("tasks", self.tasks),
            ("instance_types", names),
            ("workers", self.workers),
            ("batch_sizes", self.batch_sizes),
        ):
            if len(set(values)) != len(values):
                raise ValueError(f"{what}: something stands there twice")
        return self


def _instance_type(entry: object) -> InstanceType:
    if isinstance(entry, InstanceType):
        return entry
    if isinstance(entry, dict):
        return TypeEntry.model_validate(entry).instance_type()
    if entry not in _TYPES:
        raise ValueError(f"no such instance type: {entry}; there are {', '.join(_TYPES)}, or define your own")
    return _TYPES[str(entry)]


@dataclass(frozen=True, slots=True)
class Row:
    """A run of the grid."""

    task: str
    instance: InstanceType
    workers: int
    batch_size: int
    repeat: int
    contended: bool

    @property
    def key(self) -> str:
        """Identity of a run of a configuration."""
        return (
            f"{self.task}-{self.instance.name}-{digest(self.instance)}"
            f"-w{self.workers}-b{self.batch_size}-r{self.repeat}"
        )

    def __str__(self) -> str:
        again = f", repeat {self.repeat}" if self.repeat else ""
        return f"{self.task} on {self.workers} x {self.instance.name}, batch {self.batch_size}{again}"


def parse(content: Any, file: str) -> Grid:
    """Check a parsed file.

    Raises:
        BadGridError: with the field and the reason, for each.
    """
    if not isinstance(content, dict):
        raise BadGridError(f"{file}: expected fields such as workers: and batch_sizes:")
    try:
        return Grid.model_validate(content)
    except ValidationError as error:
        lines = [f"{file}: {'.'.join(str(part) for part in e['loc']) or 'grid'}: {e['msg']}" for e in error.errors()]
        raise BadGridError("\n".join(lines)) from error


def read(file: Path) -> Grid:
    """Read a grid file.

    Raises:
        BadGridError: it cannot be read, is no YAML, or no grid.
    """
    try:
        if file.stat().st_size > _MAX_BYTES:
            raise BadGridError(f"{file} is larger than {_MAX_BYTES} bytes: this is no grid")
        content = yaml.load(file.read_text(encoding="utf-8"), Loader=BoundedLoader)  # noqa: S506 - a SafeLoader
    except OSError as error:
        raise BadGridError(f"{file} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadGridError(describe_yaml_error(error, str(file))) from error
    return parse(content, str(file))


def is_contended(instance: InstanceType, workers: int, cores: int) -> bool:
    """Whether the workers' limits together exceed the machine."""
    return instance.cpu_cores * workers > cores + 1e-9


def draw_configurations(grid: Grid, task: str, cores: int) -> tuple[list[Row], list[Row]]:
    """A task's configurations that the grid draws, and those that it leaves out (without the contended ones)."""
    draw = random.Random(f"{grid.seed}:{task}")  # noqa: S311 - a reproducible draw, no secret
    calm: list[Row] = []
    contended: list[Row] = []
    for instance, workers, batch_size in product(grid.instance_types, grid.workers, grid.batch_sizes):
        oversubscribed = is_contended(instance, workers, cores)
        row = Row(task, instance, workers, batch_size, 0, oversubscribed)
        (contended if oversubscribed else calm).append(row)
    draw.shuffle(calm)
    draw.shuffle(contended)
    taken = max(1, round(grid.share * len(calm))) if calm else 0
    return calm[:taken] + contended[: round(grid.contended_share * len(contended))], calm[taken:]


def expand(grid: Grid, cores: int) -> tuple[Row, ...]:
    """All runs in the order in which they are made: random, so that a drift of the machine hits all alike."""
    rows: list[Row] = []
    for task in grid.tasks:
        drawn, _ = draw_configurations(grid, task, cores)
        again = round(grid.repeats.share * len(drawn))
        for position, row in enumerate(drawn):
            count = grid.repeats.count if position < again else 1
            rows += [Row(row.task, row.instance, row.workers, row.batch_size, n, row.contended) for n in range(count)]
    random.Random(f"{grid.seed}:order").shuffle(rows)  # noqa: S311 - a reproducible order, no secret
    return tuple(rows)


def grid_digest(rows: Sequence[Row], grid: Grid) -> str:
    """Identifies the grid of a directory."""
    text = json.dumps([grid.seed, grid.timeout_s, *sorted(row.key for row in rows)])
    return hashlib.sha256(text.encode()).hexdigest()[:12]

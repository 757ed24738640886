"""job.yaml: the training job whose configurations `turnbuckle advise` ranks."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Annotated, Final

from pydantic import BaseModel, Field

from schemas.jobs import Configuration
from schemas.predictions import MAX_CONFIGURATIONS, Objective
from schemas.subjects import MAX_TOKEN_CHARACTERS
from services._jobs.task_yaml import STRICT, TaskSection, with_task
from services._runtime.command.errors import BadFileError
from services._runtime.command.yaml_file import YamlSource, read_yaml, validate

SECONDS_PER_HOUR: Final = 3600.0
Count = Annotated[int, Field(ge=1, le=100_000)]


class MachineSection(Configuration):
    """One configuration to rank."""

    model_config = STRICT


class JobYaml(BaseModel):
    """A whole job.yaml."""

    model_config = STRICT

    name: Annotated[str, Field(max_length=MAX_TOKEN_CHARACTERS)] = ""
    """Where given, the answer is published as ``evt.prediction.<name>``."""
    task: TaskSection
    features: Path | None = None
    """What `turnbuckle features --json` wrote; fields of `task` come first."""
    profile: str = ""
    """The local run: its name on the bus, or the file that `turnbuckle profile` wrote."""
    providers: tuple[str, ...] = ()
    """Providers to rank; empty: those with measurements, emulated ones only where there are no others."""
    workers: tuple[Count, ...] = ()
    batch_sizes: tuple[Annotated[int, Field(ge=0)], ...] = ()
    configurations: Annotated[tuple[MachineSection, ...], Field(max_length=MAX_CONFIGURATIONS)] = ()
    objective: Objective = Objective.COST
    budget_usd: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    deadline_hours: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    spot: bool = False
    prices_as_of: date | None = None
    price_sources: tuple[str, ...] = ()
    """Catalogues whose prices are used first, best first, such as ``gcp-gce``; empty: the advisor's order."""
    setup: str = ""
    """For SkyPilot: what prepares a machine."""
    run: str = ""
    """For SkyPilot: the training command."""


def load_job(file: Path) -> JobYaml:
    """Read and check a job.yaml.

    Raises:
        BadFileError: with every mistake on a line of its own, each with file, line, field and what to do.
    """
    source = read_yaml(file)
    if not isinstance(source.content, dict):
        raise BadFileError(f"{source.file}: expected fields such as 'task:' and 'workers: [1, 2, 4]'")
    content = with_task(source.content, file.parent)
    return validate(YamlSource(source.file, content, source.lines), JobYaml)

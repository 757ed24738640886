"""job.yaml: the training job that `turnbuckle advise` is asked about."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from schemas.codec import CodecError, decode_as
from schemas.jobs import Configuration, TaskFeatures
from schemas.predictions import Objective
from schemas.runs import RunProfile
from schemas.subjects import MAX_TOKEN_CHARACTERS
from services.cli.app_file_errors import describe_mistakes
from services.cli.failure import BadFileError
from services.cli.yaml_source import FieldPath, YamlSource, read_yaml

_STRICT: Final = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)
_MAX_BYTES: Final = 1 << 20
SECONDS_PER_HOUR: Final = 3600.0
Count = Annotated[int, Field(ge=1, le=100_000)]


class TaskSection(TaskFeatures):
    """The features of Table 4.1; a slip in a name is an error."""

    model_config = _STRICT


class MachineSection(Configuration):
    """One configuration to ask about."""

    model_config = _STRICT


class JobYaml(BaseModel):
    """A whole job.yaml."""

    model_config = _STRICT

    name: Annotated[str, Field(max_length=MAX_TOKEN_CHARACTERS)] = ""
    """Where given, the answer is told on the bus as ``evt.prediction.<name>``."""
    task: TaskSection
    features: Path | None = None
    """What `turnbuckle features --json` wrote; fields of `task` come first."""
    profile: str = ""
    """The local run: its name on the bus, or the file that `turnbuckle profile` wrote."""
    workers: tuple[Count, ...] = ()
    batch_sizes: tuple[Annotated[int, Field(ge=0)], ...] = ()
    configurations: tuple[MachineSection, ...] = ()
    objective: Objective = Objective.COST
    budget_usd: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    deadline_hours: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    spot: bool = False
    prices_as_of: date | None = None
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
    content = dict(source.content)
    if isinstance(content.get("task"), str):
        content["task"] = {"task": content["task"]}
    if isinstance(content.get("features"), str) and isinstance(content.get("task"), dict):
        content["task"] = _features(file.parent / content["features"]) | content["task"]
    try:
        return JobYaml.model_validate(content)
    except ValidationError as error:
        raise BadFileError(describe_mistakes(error, YamlSource(source.file, content, source.lines), _fields)) from error


def _fields(path: FieldPath) -> dict[str, FieldInfo]:
    if path and path[0] == "task" and len(path) > 1:
        return TaskSection.model_fields
    if path and path[0] == "configurations" and len(path) > 1:
        return MachineSection.model_fields
    return JobYaml.model_fields


def _read(path: Path, what: str) -> bytes:
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise BadFileError(f"{path} is larger than {_MAX_BYTES} bytes: this is no {what}")
        return path.read_bytes()
    except OSError as error:
        raise BadFileError(f"{path} cannot be read: {error.strerror}") from error


def _features(path: Path) -> dict[str, Any]:
    """The features in a file: alone, or in a line of `turnbuckle features --json`."""
    found: Any = None
    for line in (_read(path, "file of features").decode("utf-8", "replace").strip() or "null").splitlines():
        try:
            found = json.loads(line)
        except ValueError:
            found = None
            break
    if found is None:
        try:
            found = json.loads(_read(path, "file of features"))
        except ValueError as error:
            raise BadFileError(f"{path} is no JSON: {error}; write it with: turnbuckle features --json ...") from error
    features = found.get("features", found) if isinstance(found, dict) else None
    if not isinstance(features, dict):
        raise BadFileError(f"{path} holds no features; write it with: turnbuckle features --json ... > {path.name}")
    return {name: value for name, value in features.items() if name in TaskFeatures.model_fields}


def load_profile(path: Path) -> RunProfile:
    """Read a local run's file.

    Raises:
        BadFileError: it is none.
    """
    try:
        return decode_as(_read(path, "local run"), RunProfile)
    except CodecError as error:
        raise BadFileError(f"{path} is no local run of `turnbuckle profile`: {error}") from error

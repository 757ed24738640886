"""job.yaml: the training job whose configurations `turnbuckle advise` ranks."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from schemas.jobs import Configuration, TaskFeatures
from schemas.predictions import MAX_CONFIGURATIONS, Objective
from schemas.runs import RunProfile
from schemas.subjects import MAX_TOKEN_CHARACTERS
from services._runtime.command.errors import BadFileError, MissingFileError
from services._runtime.command.yaml_file import YamlSource, read_yaml, validate

_STRICT: Final = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)
_MAX_BYTES: Final = 1 << 20
_MAX_PROFILE_BYTES: Final = 16 << 20
"""In JSON; as a message it has to be much smaller."""
SECONDS_PER_HOUR: Final = 3600.0
Count = Annotated[int, Field(ge=1, le=100_000)]


class TaskSection(TaskFeatures):
    """The features of Table 4.1; an unknown name is an error."""

    model_config = _STRICT


class MachineSection(Configuration):
    """One configuration to rank."""

    model_config = _STRICT


class JobYaml(BaseModel):
    """A whole job.yaml."""

    model_config = _STRICT

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
    return validate(YamlSource(source.file, content, source.lines), JobYaml)


def _read(path: Path, what: str, most_bytes: int = _MAX_BYTES) -> bytes:
    try:
        if path.stat().st_size > most_bytes:
            raise BadFileError(f"{path} is larger than {most_bytes} bytes: this is no {what}")
        return path.read_bytes()
    except FileNotFoundError as error:
        raise MissingFileError(f"{path} cannot be read: {error.strerror}") from error
    except OSError as error:
        raise BadFileError(f"{path} cannot be read: {error.strerror}") from error


def _features(path: Path) -> dict[str, Any]:
    """The features in a file: alone, or in a line of `turnbuckle features --json`."""
    text = _read(path, "file of features").decode("utf-8", "replace")
    for part in (text, *reversed(text.splitlines())):
        try:
            found = json.loads(part)
        except (ValueError, RecursionError):
            continue
        features = found.get("features", found) if isinstance(found, dict) else None
        if isinstance(features, dict) and (known := features.keys() & TaskFeatures.model_fields.keys()):
            return {name: features[name] for name in known}
    raise BadFileError(f"{path} holds no features; write it with: turnbuckle features --json ... > {path.name}")


def load_profile(path: Path) -> RunProfile:
    """Read a local run's file.

    Raises:
        BadFileError: it is none.
    """
    try:
        return RunProfile.model_validate(json.loads(_read(path, "local run", _MAX_PROFILE_BYTES)))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}".removeprefix(": ")
    except (ValueError, RecursionError) as error:
        reason = str(error)
    raise BadFileError(f"{path} is no local run of `turnbuckle profile`: {reason}")

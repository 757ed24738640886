"""What a YAML file says of a training task: its features, its file of features, its local run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from pydantic import ConfigDict, ValidationError

from schemas.jobs import TaskFeatures
from schemas.runs import RunProfile
from services._runtime.command.errors import BadFileError, MissingFileError

STRICT: Final = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)
_MAX_BYTES: Final = 1 << 20
_MAX_PROFILE_BYTES: Final = 16 << 20
"""In JSON; as a message it has to be much smaller."""


class TaskSection(TaskFeatures):
    """The features of Table 4.1; an unknown name is an error."""

    model_config = STRICT


def with_task(content: dict[str, Any], directory: Path) -> dict[str, Any]:
    """The fields of a file with `task` as a map: of a name alone, and with those of the file that `features` names.

    Raises:
        BadFileError: the file of features cannot be read, or holds none.
    """
    task = content.get("task")
    if isinstance(task, str):
        task = {"task": task}
    if isinstance(content.get("features"), str) and isinstance(task, dict):
        task = _features(directory / content["features"]) | task
    return content | ({"task": task} if "task" in content else {})


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

"""Reads a host.yaml; every mistake with file, line, field and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from services._runtime.command.errors import BadFileError
from services._runtime.command.file_errors import describe_validation_errors, dotted
from services._runtime.command.yaml_source import FieldPath, YamlSource, parse_yaml, read_yaml
from services.fabric.model import HostFile, HostFileError


def load_host_file(file: Path) -> HostFile:
    """Read and check a host.yaml.

    Raises:
        BadFileError: with every mistake on a line of its own.
    """
    return _check(read_yaml(file))


def parse_host_file(text: str, file: str = "host.yaml") -> HostFile:
    """Check the text of a host.yaml.

    Raises:
        BadFileError: as `load_host_file`.
    """
    return _check(parse_yaml(text, file))


def _check(source: YamlSource) -> HostFile:
    if not isinstance(source.content, dict):
        raise BadFileError(f"{source.file}: expected fields such as 'name: gpu-07', 'asn: 65007', 'vtep: 10.255.0.7'")
    try:
        return HostFile.model_validate(source.content)
    except ValidationError as error:
        raise BadFileError(_describe(error, source)) from error


def _describe(error: ValidationError, source: YamlSource) -> str:
    for detail in error.errors(include_url=False):
        cause = detail.get("ctx", {}).get("error")
        if isinstance(cause, HostFileError):
            # Comes alone: pydantic looks at the whole only where every field is right.
            lines = (
                f"{source.place(mistake.path)}: {dotted(mistake.path)}: {mistake.what}" for mistake in cause.mistakes
            )
            return "\n".join(dict.fromkeys(lines))
    return describe_validation_errors(error, source, _fields_at)


def _fields_at(path: FieldPath) -> dict[str, FieldInfo]:
    """The fields that may stand beside the one at this path."""
    model: type[BaseModel] = HostFile
    for step in path[:-1]:
        if isinstance(step, str) and step in model.model_fields:
            model = _model_in(model.model_fields[step].annotation) or model
    return model.model_fields


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model of a field, also within a tuple, a union or an annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_in(part))), None)

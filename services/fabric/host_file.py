"""Reads a host.yaml; every mistake with file, line, field and what to do."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from services._runtime.command.errors import BadFileError
from services._runtime.command.yaml_file import (
    YamlSource,
    describe_validation_errors,
    dotted,
    parse_yaml,
    read_yaml,
)
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
    return describe_validation_errors(error, source, HostFile)

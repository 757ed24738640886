"""Validation errors of a YAML file, as sentences: file, line, field, what was expected, the probable name."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any, Final, get_args

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from schemas.sizes import SIZE_HINT
from services._runtime.command.yaml_source import FieldPath, YamlSource

_KUBERNETES: Final = (
    "pods join an application by their label turnbuckle.app, and its limits stand in an app.yaml of its own "
    "(compose/kubernetes/README.md)"
)
FieldsAt = Callable[[FieldPath], dict[str, FieldInfo]]
"""The fields that may stand beside the one at this path."""

_EXPECTED: Final = {
    "byte_size": SIZE_HINT,
    "dict_type": "a map of NAME: VALUE",
    "float_parsing": "a number",
    "float_type": "a number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "invalid_key": "a field's name",
    "model_type": "a map of fields such as 'name' and 'image'",
    "string_pattern_mismatch": "letters, digits, '_', '.' and '-', at most 63, a letter or digit first",
    "string_type": "text",
    "tuple_type": "a list",
}
"""Pydantic's error types in the words of somebody who writes YAML."""


def describe_validation_errors(error: ValidationError, source: YamlSource, fields_at: FieldsAt) -> str:
    """One line per mistake, such as ``app.yaml:4: unknown field 'cpu_limt': did you mean 'cpu_limit'?``."""
    lines: dict[str, None] = {}
    for detail in error.errors(include_input=True, include_url=False):
        path = _real_path(detail["loc"], source.content)
        sentence = _describe(detail["type"], detail["msg"], path, detail["input"], fields_at(path))
        lines[f"{source.place(path)}: {sentence}"] = None
    return "\n".join(lines)


def describe_foreign_file(source: YamlSource) -> str | None:
    """A sentence where the file is another tool's, Kubernetes' or Compose's; None: it may be an app.yaml."""
    content = source.content
    label = "give the containers the label turnbuckle.app: NAME, and announce NAME's limits in an app.yaml of its own"
    if "kind" in content or "apiVersion" in content:
        field = "kind" if "kind" in content else "apiVersion"
        found = f"this is a Kubernetes manifest ({field}: {content[field]})"
        return f"{source.place((field,))}: {found}, and no app.yaml: apply it with kubectl; {_KUBERNETES}"
    if "services" in content:
        return f"{source.place(('services',))}: this is a Compose file, and no app.yaml: {label}"
    return None


def dotted(path: FieldPath) -> str:
    """``containers[0].image``."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")


def _real_path(location: tuple[str | int, ...], content: Any) -> FieldPath:
    """Pydantic adds steps of its own (``[key]``): keep those that stand in the file, and a missing last one."""
    path: list[str | int] = []
    here = content
    for position, step in enumerate(location):
        if (isinstance(here, dict) and step in here) or (isinstance(step, int) and _has_item(here, step)):
            here = here[step]
        elif position != len(location) - 1 or not isinstance(here, dict):
            continue
        path.append(step)
    return tuple(path)


def _has_item(content: Any, position: int) -> bool:
    return isinstance(content, list) and position < len(content)


def _describe(kind: str, message: str, path: FieldPath, value: Any, known: dict[str, FieldInfo]) -> str:
    name = dotted(path)
    if kind == "extra_forbidden":
        return f"unknown field '{name}'{_suggest(str(path[-1]), known)}"
    if kind == "missing":
        return f"'{name}' is missing"
    if kind == "literal_error":
        choices = [str(choice) for choice in get_args(known[str(path[-1])].annotation)]
        near = difflib.get_close_matches(str(value), choices, n=1)
        return f"{name}: {value!r} must be one of {', '.join(choices)}" + (f": did you mean {near[0]}?" if near else "")
    if kind in _EXPECTED:
        return f"{name}: should be {_EXPECTED[kind]}, not {value!r}"
    said = message.removeprefix("Value error, ").removeprefix("Input ")
    shown = f", not {value!r}" if isinstance(value, str | int | float) and kind != "value_error" else ""
    return f"{name}: {said}{shown}" if name else said


def _suggest(name: str, known: dict[str, FieldInfo]) -> str:
    if near := difflib.get_close_matches(name, known, n=1):
        return f": did you mean '{near[0]}'?"
    return f": known are {', '.join(known)}"

"""YAML files of users: a reader with line numbers and bounded aliases, and validation errors as sentences.

In YAML 1.1 ``mode: off`` is False and ``22:22`` is the number 1342 (sexagesimal). `read_yaml` knows the scalars of YAML
1.2's core schema only, as current tools do, and refuses a key that stands twice instead of keeping the last.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from schemas.sizes import SIZE_HINT
from services._runtime.command.errors import BadFileError, MissingFileError

MAX_FILE_BYTES: Final = 1 << 20
_NAMESPACE: Final = "tag:yaml.org,2002:"
MAX_VALUES: Final = 10_000
"""Values that a file with aliases may stand for, each alias counted as all that it stands for."""

MOST_CHARACTERS: Final = 600
"""Of a sentence about a mistake."""

FieldPath = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class YamlSource:
    """A parsed file: plain values, and the line of every field."""

    file: str
    content: Any
    lines: dict[FieldPath, int]

    def place(self, path: FieldPath) -> str:
        """``app.yaml:7`` for a field, or for the nearest field around it that has a line."""
        line = self.line(path)
        return f"{self.file}:{line}" if line else self.file

    def line(self, path: FieldPath) -> int:
        """Of a field, or of the nearest field around it that has one; 0: there is none."""
        return next((line for length in range(len(path), -1, -1) if (line := self.lines.get(path[:length]))), 0)


class BoundedLoader(yaml.SafeLoader):
    """A SafeLoader for files of people; the check costs one addition per value, and comes before any expansion."""

    def __init__(self, stream: Any) -> None:
        super().__init__(stream)
        self._values = 0
        self._sizes: dict[int, int] = {}
        """By identity of a composed node: the values that it stands for."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """As PyYAML's; raises ComposerError at an alias that is too much, or that stands inside of its own value."""
        if not self.check_event(yaml.AliasEvent):
            before = self._values
            self._values += 1
            node = super().compose_node(parent, index)
            self._sizes[id(node)] = self._values - before
            return node
        event = self.peek_event()  # type: ignore[no-untyped-call]  # in the stubs
        node = super().compose_node(parent, index)
        if (size := self._sizes.get(id(node))) is None:
            problem = f"the alias *{event.anchor} stands inside of the value that it stands for"
            raise yaml.composer.ComposerError(None, None, problem, event.start_mark)
        self._values += size
        if self._values > MAX_VALUES:
            problem = f"with the alias *{event.anchor} the file stands for more than {MAX_VALUES} values"
            raise yaml.composer.ComposerError(None, None, problem, event.start_mark)
        return node


def describe_yaml_error(error: Exception, file: str) -> str:
    """``app.yaml:7: not valid YAML: ...``, in one line."""
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        place = f"{file}:{mark.line + 1}" if mark else file
        hint = " (YAML is indented with spaces, not tabs)" if "\\t" in str(error.problem) else ""
        return f"{place}: not valid YAML: {error.problem or error.context}{hint}"
    if isinstance(error, RecursionError):
        return f"{file}: not valid YAML: nested too deeply"
    place = f" (character {error.position + 1})" if isinstance(error, yaml.reader.ReaderError) else ""
    return f"{file}: not valid YAML: {(str(error).splitlines() or ['unknown'])[0]}{place}"


class _CoreLoader(BoundedLoader):
    """SafeLoader with the scalars of YAML 1.2's core schema."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's own attribute


def _add_scalar(kind: str, pattern: str, first: str) -> None:
    _CoreLoader.add_implicit_resolver(_NAMESPACE + kind, re.compile(pattern), list(first))


_add_scalar("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF")
_add_scalar("int", r"^(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$", "-+0123456789")
_add_scalar("float", r"^(?:[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?)$", "-+.0123456789")
_add_scalar("float", r"^(?:[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$", "-+.")
_add_scalar("null", r"^(?:~|null|Null|NULL|)$", "~nN\0")
_add_scalar("merge", r"^(?:<<)$", "<")
# PyYAML looks an empty scalar up under the empty string.
_CoreLoader.add_implicit_resolver(_NAMESPACE + "null", re.compile(r"^$"), [""])


def _construct_int(loader: _CoreLoader, node: yaml.ScalarNode) -> int:
    text = str(loader.construct_scalar(node))
    return int(text, 0) if text.lstrip("-+")[:2] in {"0o", "0x"} else int(text)


_CoreLoader.add_constructor(_NAMESPACE + "int", _construct_int)


def read_yaml(file: Path) -> YamlSource:
    """Read one YAML document.

    Raises:
        MissingFileError: it does not exist.
        BadFileError: it cannot be read, is too large, is no YAML, or holds a key twice.
    """
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            raise BadFileError(f"{file} is larger than {MAX_FILE_BYTES} bytes: this is no application file")
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise MissingFileError(f"{file} cannot be read: {error.strerror}") from error
    except OSError as error:
        raise BadFileError(f"{file} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadFileError(f"{file} is no UTF-8 text (byte {error.start})") from error
    return parse_yaml(text, str(file))


def parse_yaml(text: str, file: str) -> YamlSource:
    """Parse one YAML document; ``file`` is for messages.

    Raises:
        BadFileError: it is no YAML, holds a key twice, or its aliases stand for too much.
    """
    try:
        loader = _CoreLoader(text)  # reads the text, and refuses characters
    except yaml.YAMLError as error:
        raise BadFileError(describe_yaml_error(error, file)) from error
    try:
        node = loader.get_single_node()
        lines: dict[FieldPath, int] = {}
        _note_lines(node, (), lines, file)
        content = None if node is None else loader.construct_document(node)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadFileError(describe_yaml_error(error, file)) from error
    finally:
        loader.dispose()
    return YamlSource(file, content, lines)


def _note_lines(node: yaml.Node | None, path: FieldPath, lines: dict[FieldPath, int], file: str) -> None:
    if node is None:
        return
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.SequenceNode):
        for position, item in enumerate(node.value):
            _note_lines(item, (*path, position), lines, file)
    elif isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            name = str(key.value)
            line = key.start_mark.line + 1
            if name in seen:
                raise BadFileError(f"{file}:{line}: '{name}' stands here a second time")
            seen.add(name)
            lines[(*path, name)] = line
            _note_lines(value, (*path, name), lines, file)


def to_environment(value: Any) -> Any:
    """Accept ``[A=1]`` as well as ``{A: 1}``, and numbers and booleans as text, as Docker Compose does."""
    if isinstance(value, list):
        if wrong := next((item for item in value if "=" not in str(item)), None):
            raise ValueError(f"{wrong!r} should be NAME=VALUE")
        value = dict(str(item).split("=", 1) for item in value)
    if isinstance(value, dict):
        return {name: to_text(content) for name, content in value.items()}
    return value


def to_text(value: Any) -> Any:
    """Accept numbers and booleans as text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


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
"""Pydantic's error types in YAML's terms."""

ModelT = TypeVar("ModelT", bound=BaseModel)


def validate(source: YamlSource, model: type[ModelT]) -> ModelT:
    """The file's content as a model.

    Raises:
        BadFileError: with every mistake on a line of its own, each with file, line, field and what to do.
    """
    try:
        return model.model_validate(source.content)
    except ValidationError as error:
        raise BadFileError(describe_validation_errors(error, source, model)) from error


def describe_validation_errors(error: ValidationError, source: YamlSource, model: type[BaseModel]) -> str:
    """One line per mistake, such as ``app.yaml:4: unknown field 'cpu_limt': did you mean 'cpu_limit'?``."""
    line_of: dict[str, int] = {}
    details = error.errors(include_input=True, include_url=False)
    wrong = {detail["loc"][:length] for detail in details for length in range(len(detail["loc"]))}
    for detail in details:
        if detail["type"] == "too_short" and detail["loc"] in wrong:
            continue  # for what is wrong with its items, which are told
        path = _real_path(detail["loc"], source.content)
        sentence = _describe(detail["type"], detail["msg"], path, detail["input"], _fields_at(model, path))
        line_of[f"{source.place(path)}: {_shortened(sentence)}"] = source.line(path)
    return "\n".join(sorted(line_of, key=line_of.__getitem__))


def _shortened(sentence: str) -> str:
    """Without the middle of a value that has thousands of characters: what is wrong stands at either end."""
    half = MOST_CHARACTERS // 2
    return sentence if len(sentence) <= MOST_CHARACTERS else f"{sentence[:half]} ... {sentence[-half:]}"


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
        choices = list(_choices(known[str(path[-1])].annotation))
        near = difflib.get_close_matches(str(value), choices, n=1)
        return f"{name}: {value!r} must be one of {', '.join(choices)}" + (f": did you mean {near[0]}?" if near else "")
    if kind in _EXPECTED:
        return f"{name}: should be {_EXPECTED[kind]}, not {value!r}"
    said = message.removeprefix("Value error, ").removeprefix("Input ")
    shown = f", not {value!r}" if isinstance(value, str | int | float) and kind != "value_error" else ""
    return f"{name}: {said}{shown}" if name else said


def _choices(annotation: Any) -> Iterator[str]:
    """What a Literal allows, also within a union."""
    if get_origin(annotation) is Literal:
        yield from map(str, get_args(annotation))
        return
    for part in get_args(annotation):
        yield from _choices(part)


def _suggest(name: str, known: dict[str, FieldInfo]) -> str:
    if near := difflib.get_close_matches(name, known, n=1):
        return f": did you mean '{near[0]}'?"
    return f": known are {', '.join(known)}"


def _fields_at(root: type[BaseModel], path: FieldPath) -> dict[str, FieldInfo]:
    """The fields of the model that holds the field at this path."""
    model = root
    for step in path[:-1]:
        if isinstance(step, str) and step in model.model_fields:
            model = _model_in(model.model_fields[step].annotation) or model
    return model.model_fields


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """The model of a field, also within a tuple, a union or an annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_in(part))), None)

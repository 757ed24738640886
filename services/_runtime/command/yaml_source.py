"""YAML with line numbers, without YAML 1.1's surprises, for error messages that a person can act on.

In YAML 1.1 ``mode: off`` is False and ``22:22`` is the number 1342 (sexagesimal). The loader here knows the scalars of
YAML 1.2's core schema only, as current tools do, and refuses a key that stands twice instead of keeping the last.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

from services._runtime.command.errors import BadFileError, MissingFileError
from services._runtime.command.yaml_aliases import BoundedLoader, describe_yaml_error

MAX_FILE_BYTES: Final = 1 << 20
_NAMESPACE: Final = "tag:yaml.org,2002:"

FieldPath = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class YamlSource:
    """A parsed file: plain values, and the line of every field."""

    file: str
    content: Any
    lines: dict[FieldPath, int]

    def place(self, path: FieldPath) -> str:
        """``app.yaml:7`` for a field, or for the nearest field around it that has a line."""
        for length in range(len(path), -1, -1):
            if line := self.lines.get(path[:length]):
                return f"{self.file}:{line}"
        return self.file


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
    loader = _CoreLoader(text)
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

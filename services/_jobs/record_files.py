"""Job records and local runs in one Parquet file, without loss: the shipped dataset, exports, backups.

The file has two columns, ``job`` and ``run``: each row fills one of them with a structure that mirrors `JobRecord` or
`RunProfile` field by field, so that ``SELECT job.task.task, job.duration_s FROM 'data.parquet'`` works in any engine.
Attributes, which are a number or a text, become a map to a structure with one column for each.

DuckDB reads and writes it; it is imported when it is needed, because not every service has it.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from schemas.jobs import Attributes, JobRecord
from schemas.message import ColumnType, Message
from schemas.runs import RunProfile
from services._runtime.atomic_file import replacing
from services._runtime.install_hint import package_missing

FORM: Final = "turnbuckle.records.v1"
"""Stands in the file's metadata under `FORM_KEY`."""
FORM_KEY: Final = "turnbuckle_form"
_ATTRIBUTES_TYPE: Final = "MAP(VARCHAR, STRUCT(number DOUBLE, text VARCHAR))"
_SCALARS: Final[dict[object, str]] = {
    str: "VARCHAR",
    int: "BIGINT",
    float: "DOUBLE",
    bool: "BOOLEAN",
    date: "DATE",
}
_MAX_LINE_BYTES: Final = 64 << 20
MessageT = TypeVar("MessageT", bound=Message)


class JobFileError(Exception):
    """The file cannot be read or written; the text says why."""


@dataclass(frozen=True, slots=True)
class JobFile:
    """What a file holds, in its order."""

    records: tuple[JobRecord, ...]
    profiles: tuple[RunProfile, ...]


def write_job_file(path: Path, records: Iterable[JobRecord], profiles: Iterable[RunProfile] = ()) -> int:
    """Write a file, whole or not at all; returns the number of rows.

    Raises:
        JobFileError: it cannot be written, or a text holds a character that Parquet's UTF-8 has no form for.
    """
    try:
        with replacing(path) as draft, tempfile.NamedTemporaryFile("wb", suffix=".jsonl") as lines:
            count = 0
            for column, message in _rows(records, profiles):
                lines.write(json.dumps({column: _as_row(message)}, allow_nan=False).encode() + b"\n")
                count += 1
            lines.flush()
            _copy(Path(lines.name), draft, empty=count == 0)
            with draft.open("rb") as written:
                os.fsync(written.fileno())
    except OSError as error:
        raise JobFileError(f"{path} cannot be written: {error.strerror or error}") from error
    return count


def read_job_file(path: Path) -> JobFile:
    """Read what `write_job_file` wrote; fields that are missing get their defaults, unknown ones are left out.

    Raises:
        JobFileError: it cannot be read, is of another form, or holds a record that is not valid.
    """
    if not is_job_file(path):
        raise JobFileError(f"{path} does not hold job records in the form {FORM}")
    duckdb = _duckdb()
    try:
        with duckdb.connect(config=_CONFIG) as connection:
            rows = connection.execute("SELECT job, run FROM read_parquet(?)", [literal_path(path)]).fetchall()
    except duckdb.Error as error:
        raise JobFileError(f"{path} cannot be read: {_first_line(error)}") from error
    records = [_as_message(JobRecord, job, path) for job, _ in rows if job is not None]
    profiles = [_as_message(RunProfile, run, path) for _, run in rows if run is not None]
    return JobFile(tuple(records), tuple(profiles))


def is_job_file(path: Path) -> bool:
    """Whether a file is Parquet of our form.

    Raises:
        JobFileError: it cannot be read, or is no Parquet.
    """
    duckdb = _duckdb()
    try:
        with path.open("rb"), duckdb.connect(config=_CONFIG) as connection:
            pairs = connection.execute("SELECT key, value FROM parquet_kv_metadata(?)", [literal_path(path)]).fetchall()
    except OSError as error:
        raise JobFileError(f"{path} cannot be read: {error.strerror or error}") from error
    except duckdb.Error as error:
        raise JobFileError(f"{path} is no Parquet file: {_first_line(error)}") from error
    return (FORM_KEY.encode(), FORM.encode()) in [(bytes(key), bytes(value)) for key, value in pairs]


_CONFIG: Final[dict[str, str | bool | int | float | list[str]]] = {
    "threads": 2,
    # Nothing here needs an extension, and none may be fetched because of a name in a file.
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}


def _duckdb() -> Any:
    try:
        import duckdb  # noqa: PLC0415 - see the module's text
    except ImportError as error:
        raise JobFileError(f"Parquet needs DuckDB: {package_missing('duckdb', 'collector')}") from error
    return duckdb


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def literal_path(path: Path) -> str:
    """A path that DuckDB does not take for a pattern."""
    return "".join(f"[{character}]" if character in "*?[" else character for character in str(path.absolute()))


def _copy(lines: Path, target: Path, *, empty: bool) -> None:
    duckdb = _duckdb()
    columns = {"job": struct_type(JobRecord), "run": struct_type(RunProfile)}
    definitions = ", ".join(f"'{name}': '{kind}'" for name, kind in columns.items())
    options = f"format='newline_delimited', columns={{{definitions}}}, maximum_object_size={_MAX_LINE_BYTES}"
    source = f"SELECT * FROM read_json('{_quoted(lines)}', {options})"  # noqa: S608 - names and types are ours, quoted
    if empty:  # read_json finds nothing to read in an empty file
        source = "SELECT " + ", ".join(f"NULL::{kind} AS {name}" for name, kind in columns.items()) + " LIMIT 0"
    form = f"FORMAT parquet, COMPRESSION zstd, KV_METADATA {{{FORM_KEY}: '{FORM}'}}"
    try:
        with duckdb.connect(config=_CONFIG) as connection:
            connection.execute(f"COPY ({source}) TO '{_quoted(target)}' ({form})")
    except duckdb.Error as error:
        raise JobFileError(f"{target.name} cannot be written: {_first_line(error)}") from error


def _quoted(path: Path) -> str:
    return str(path.absolute()).replace("'", "''")


def _rows(records: Iterable[JobRecord], profiles: Iterable[RunProfile]) -> Iterable[tuple[str, Message]]:
    for record in records:
        yield "job", record
    for profile in profiles:
        yield "run", profile


# -- messages and rows -----------------------------------------------------------------------------------------


def struct_type(model: type[Message]) -> str:
    """The DuckDB type that mirrors a message."""
    columns = [f'"{name}" {_column_type(model, name)}' for name in model.model_fields]
    return f"STRUCT({', '.join(columns)})"


def _column_type(model: type[Message], name: str) -> str:
    field = model.model_fields[name]
    if any(isinstance(meta, ColumnType) for meta in field.metadata):
        return "DOUBLE[]"
    return _type_of(field.annotation)


def _type_of(annotation: Any) -> str:
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    if annotation == Attributes:
        return _ATTRIBUTES_TYPE
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (types.UnionType, typing.Union, typing.Annotated):  # optional, or with bounds
        return _type_of(next(argument for argument in arguments if argument is not types.NoneType))
    if origin is tuple:
        return f"{_type_of(arguments[0])}[]"
    assert issubclass(annotation, StrEnum | Message), annotation
    return "VARCHAR" if issubclass(annotation, StrEnum) else struct_type(annotation)


def _as_row(message: Message) -> dict[str, Any]:
    return {name: _as_cell(value) for name, value in message.model_dump(mode="json").items()}


def _as_cell(value: Any, key: str = "") -> Any:
    """Plain values; attributes, the only mappings with values that are no structure's fields, are split by type."""
    if isinstance(value, dict):
        if key == "attributes":
            return {name: _split(entry) for name, entry in value.items()}
        return {name: _as_cell(entry, name) for name, entry in value.items()}
    if isinstance(value, list):
        return [_as_cell(entry) for entry in value]
    return value


def _split(entry: float | str) -> dict[str, float | str]:
    if isinstance(entry, str):
        return {"text": entry}
    if not math.isfinite(entry):
        raise JobFileError(f"an attribute is {entry}: only finite numbers are kept")
    return {"number": entry}


def _as_message(model: type[MessageT], row: Mapping[str, Any], path: Path) -> MessageT:
    try:
        return model.model_validate(_as_fields(row))
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in detail["loc"])
        raise JobFileError(f"{path}: a {model.__name__} is not valid: {place}: {detail['msg']}") from error


def _as_fields(value: Any, key: str = "") -> Any:
    if isinstance(value, Mapping):
        if key == "attributes":
            return {name: _joined(entry) for name, entry in value.items()}
        return {name: _as_fields(entry, name) for name, entry in value.items() if entry is not None}
    if isinstance(value, list):
        return [_as_fields(entry) for entry in value]
    return value


def _joined(entry: Mapping[str, Any]) -> float | str | None:
    number: float | None = entry["number"]
    text: str | None = entry["text"]
    return text if number is None else number

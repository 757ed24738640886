"""Rows of a CSV or Parquet file, through DuckDB: as text, in order, with the number of each row."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import duckdb

from services._jobs.record_files import literal_path

_BATCH: Final = 1_000
_QUOTES: Final = "header=false, quote='\"', escape='\"'"
_SAFE: Final[dict[str, str | bool | int | float | list[str]]] = {
    "threads": 1,
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
}


class TableError(Exception):
    """The file cannot be read; the text says why."""


@dataclass(frozen=True, slots=True)
class NumberedRow:
    """A row, and where it stands: the line of a CSV file (the header is line 1), the row of a Parquet file."""

    number: int
    cells: dict[str, str | None]


@dataclass(slots=True)
class Table:
    """A file's rows."""

    columns: tuple[str, ...]
    rows: list[NumberedRow]
    rejected: list[tuple[int, str]] = field(default_factory=list)
    """Lines that are no rows, with the reason."""


def read_table(path: Path, separator: str = ",") -> Table:
    """Read a file; its name says what it is (``.parquet``, else CSV).

    Raises:
        TableError: it cannot be read, has no header, or names a column twice.
    """
    try:
        with path.open("rb") as file:
            if not file.read(1):
                raise TableError(f"{path} is empty")
    except OSError as error:
        raise TableError(f"{path} cannot be read: {error.strerror or error}") from error
    try:
        with duckdb.connect(config=_SAFE) as connection:
            if path.suffix.lower() == ".parquet":
                return _parquet(connection, path)
            return _csv(connection, path, separator)
    except (duckdb.Error, UnicodeDecodeError, csv.Error) as error:
        raise TableError(f"{path} cannot be read: {str(error).partition(chr(10))[0]}") from error


def _parquet(connection: duckdb.DuckDBPyConnection, path: Path) -> Table:
    connection.execute("SELECT * FROM read_parquet(?)", [literal_path(path)])
    columns = tuple(column[0] for column in connection.description or ())
    rows = [NumberedRow(number, _texts(columns, row)) for number, row in enumerate(_fetched(connection), start=1)]
    return Table(columns, rows)


def _csv(connection: duckdb.DuckDBPyConnection, path: Path, separator: str) -> Table:
    """Everything as text: what a cell means is the mapping's business, not a guess from the first rows."""
    header = _header(path, separator)
    if not any(name.strip() for name in header):
        raise TableError(f"{path} has no header: its first line must name the columns")
    definition = "{" + ", ".join(f"'c{number}': 'VARCHAR'" for number in range(len(header))) + "}"
    options = f"{_QUOTES}, skip=1, columns={definition}, auto_detect=false, store_rejects=true, nullstr=''"
    connection.execute(f"SELECT * FROM read_csv(?, delim=?, {options})", [literal_path(path), separator])  # noqa: S608 - ours
    found = list(_fetched(connection))
    # A line may be wrong in several ways.
    errors = connection.execute("SELECT line, min(error_message) FROM reject_errors GROUP BY line ORDER BY line")
    rejected = [(int(line), str(text).partition("\n")[0]) for line, text in errors.fetchall()]
    lines = _lines_without({line for line, _ in rejected})
    return Table(header, [NumberedRow(next(lines), _texts(header, row)) for row in found], rejected)


def _header(path: Path, separator: str) -> tuple[str, ...]:
    """DuckDB would take its width from the longest line of the file."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        names = tuple(next(csv.reader([file.readline()], delimiter=separator), ()))
    if twice := {name for name in names if names.count(name) > 1}:
        raise TableError(f"{path}: the header names {', '.join(sorted(twice)) or 'an empty column'} twice")
    return names


def _lines_without(rejected: set[int]) -> Iterator[int]:
    line = 1
    while True:
        line += 1
        if line not in rejected:
            yield line


def _fetched(connection: duckdb.DuckDBPyConnection) -> Iterator[tuple[object, ...]]:
    while batch := connection.fetchmany(_BATCH):
        yield from batch


def _texts(columns: tuple[str, ...], row: tuple[object, ...]) -> dict[str, str | None]:
    return {name: None if cell is None else str(cell) for name, cell in zip(columns, row, strict=True)}

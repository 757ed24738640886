"""Rows of a CSV file, or of a Parquet file through DuckDB: as text, in order, with the number of each row."""

from __future__ import annotations

import codecs
import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import duckdb

from services._jobs.record_files import literal_path

_BATCH: Final = 1_000
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


def read_table(path: Path, separator: str = ",", encoding: str = "") -> Table:
    """Read a file; its name says what it is (``.parquet``, else CSV).

    Args:
        path: The file.
        separator: Of a CSV file's cells.
        encoding: Of a CSV file; empty: what its byte order mark says, else UTF-8.

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
        if path.suffix.lower() != ".parquet":
            return _csv(path, separator, encoding)
        with duckdb.connect(config=_SAFE) as connection:
            return _parquet(connection, path)
    except (duckdb.Error, OSError, TypeError) as error:  # TypeError: no character that can separate cells
        raise TableError(f"{path} cannot be read: {str(error).partition(chr(10))[0]}") from error


def _parquet(connection: duckdb.DuckDBPyConnection, path: Path) -> Table:
    connection.execute("SELECT * FROM read_parquet(?)", [literal_path(path)])
    columns = tuple(column[0] for column in connection.description or ())
    rows = [NumberedRow(number, _texts(columns, row)) for number, row in enumerate(_fetched(connection), start=1)]
    return Table(columns, rows)


_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16's, which is its beginning
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def _decoded(path: Path, encoding: str) -> str:
    """Return a file's text without a byte order mark.

    Raises:
        TableError: it has bytes that the encoding has not.
    """
    content = path.read_bytes()
    name = encoding or next((name for mark, name in _MARKS if content.startswith(mark)), "utf-8")
    try:
        text = content.decode(name)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise TableError(
            f"{path} cannot be read: byte {error.start} (line {line}) is no {name}: write the file's encoding into the "
            "mapping (such as encoding: latin-1), or convert it (iconv -f latin1 -t utf-8)"
        ) from error
    except UnicodeError as error:  # such as UTF-16 cut off in the middle of its mark
        raise TableError(f"{path} cannot be read as {name}: {error}") from error
    return text.removeprefix("\ufeff")


def _csv(path: Path, separator: str, encoding: str) -> Table:
    """Everything as text: what a cell means is the mapping's business, not a guess from the first rows."""
    text = _decoded(path, encoding)
    rows = _numbered_rows(text, separator)
    _, header = next(rows, (1, ()))
    if isinstance(header, str):
        raise TableError(f"{path} cannot be read: line 1: {header}")
    if any("\0" in name for name in header):
        raise TableError(f"{path}: the header holds NUL characters: is it UTF-16? (encoding: utf-16-le in the mapping)")
    if not any(name.strip() for name in header):
        raise TableError(f"{path} has no header: its first line must name the columns")
    if twice := {name for name in header if header.count(name) > 1}:
        raise TableError(f"{path}: the header names {', '.join(sorted(twice)) or 'an empty column'} twice")
    table = Table(header, [])
    for line, cells in rows:
        if isinstance(cells, str):
            table.rejected.append((line, cells))
        elif len(cells) != len(header):
            table.rejected.append((line, f"Expected Number of Columns: {len(header)} Found: {len(cells)}"))
        else:
            table.rows.append(NumberedRow(line, {name: cell or None for name, cell in zip(header, cells, strict=True)}))
    return table


def _numbered_rows(text: str, separator: str) -> Iterator[tuple[int, tuple[str, ...] | str]]:
    """Each row with the line on which it begins, and its cells, or what is wrong with it; empty lines are left out."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    while True:
        line = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield line, _csv_error(str(error))
            continue
        if cells or line == 1:
            yield line, tuple(cells)


def _csv_error(text: str) -> str:
    if "unexpected end of data" in text:
        return "a quotation mark is opened here and never closed"
    return f"no row of a CSV file: {text}"


def _fetched(connection: duckdb.DuckDBPyConnection) -> Iterator[tuple[object, ...]]:
    while batch := connection.fetchmany(_BATCH):
        yield from batch


def _texts(columns: tuple[str, ...], row: tuple[object, ...]) -> dict[str, str | None]:
    return {name: None if cell is None else str(cell) for name, cell in zip(columns, row, strict=True)}

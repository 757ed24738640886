"""Records into files: Parquet without loss, CSV for spreadsheets."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import duckdb

from schemas.jobs import Configuration, JobRecord, Price, TaskFeatures
from schemas.message import Message
from schemas.runs import RunProfile
from services._runtime.atomic_file import replacing
from services._runtime.record_files import JobFileError, write_job_file

_PARTS: Final[dict[str, type[Message]]] = {"task": TaskFeatures, "configuration": Configuration, "price": Price}


def export_records(path: Path, records: list[JobRecord], profiles: list[RunProfile]) -> int:
    """Write a file, by its name's ending ``.parquet`` (everything) or ``.csv`` (jobs only); returns the rows.

    Raises:
        JobFileError: it cannot be written, or has another ending.
    """
    if path.suffix.lower() == ".parquet":
        return write_job_file(path, records, profiles)
    if path.suffix.lower() != ".csv":
        raise JobFileError(f"{path}: the name has to end in .parquet or .csv")
    try:
        with replacing(path) as draft, tempfile.TemporaryDirectory() as directory, duckdb.connect() as connection:
            whole = Path(directory) / "all.parquet"
            write_job_file(whole, records)
            columns = ", ".join(f'{expression} AS "{name}"' for name, expression in _columns())
            connection.read_parquet(str(whole)).create_view("records")
            connection.sql(f"SELECT {columns} FROM records").write_csv(str(draft))  # noqa: S608 - names are ours
    except (OSError, duckdb.Error) as error:
        raise JobFileError(f"{path} cannot be written: {str(error).partition(chr(10))[0]}") from error
    return len(records)


def _columns() -> Iterator[tuple[str, str]]:
    """Name and expression of each column: the fields by their paths, as a mapping file names them."""
    for name in JobRecord.model_fields:
        if name not in _PARTS:
            yield name, f'job."{name}"'
            continue
        for field in _PARTS[name].model_fields:
            path, value = f"{name}.{field}", f'job."{name}"."{field}"'
            if field == "layers":
                yield path, f"array_to_string({value}, ';')"
            elif field == "attributes":
                texts = "CASE WHEN it.value.text IS NULL THEN to_json(it.value.number) ELSE to_json(it.value.text) END"
                pairs = f"list_transform(map_entries({value}), lambda it: struct_pack(key := it.key, value := {texts}))"
                yield path, f"to_json(map_from_entries({pairs}))"
            else:
                yield path, value

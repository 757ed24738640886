"""Records from and to files: ``python -m services.collector.transfer.import_jobs import FILE ...`` and ``export``.

A file in our own Parquet form needs no mapping. One JSON object a line on standard output:
``error`` (a row that was refused, with its number), ``progress``, ``published``, ``result``. Exit codes: 0, 2 usage,
65 bad data (also where some rows were refused; the others are kept), 69 unavailable, 130 interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import duckdb

from schemas.jobs import Configuration, JobRecord, Price, TaskFeatures
from schemas.message import Message
from schemas.runs import RunProfile
from schemas.streams import JOB_STREAM, RUN_STREAM
from schemas.subjects import JOB_RECORDS, RUN_PROFILES
from services._jobs.record_files import JobFileError, is_job_file, read_job_file, write_job_file
from services._runtime.atomic_file import replacing
from services._runtime.bus.api import Delivery
from services._runtime.bus.nats import NatsBus
from services._runtime.bus.nats_history import read_stored
from services._runtime.command.errors import UsageError
from services._runtime.command.tool_events import emit, say
from services._runtime.command.tool_parser import ToolParser
from services._runtime.exit_code import ExitCode
from services.collector.settings import CollectorSettings
from services.collector.tool import OUT_HELP, BadDataError, default_directory, publish_to_bus, run_tool
from services.collector.transfer.importing import Imported, MappingError, import_table, read_mapping
from services.collector.transfer.tables import TableError
from services.collector.write_ahead_log import Journal, Record, UnsendableRecordError, read_journal, record_id

_BATCH: Final = 500
_CONNECT_S: Final = 5.0
_SAID: Final = 20
"""Refused rows that are told in words; all of them are events."""
_PARTS: Final[dict[str, type[Message]]] = {"task": TaskFeatures, "configuration": Configuration, "price": Price}


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    options = _parser().parse_args(sys.argv[1:] if arguments is None else arguments)
    try:
        return _import(options) if options.command == "import" else _export(options)
    except (MappingError, TableError, JobFileError) as error:
        raise BadDataError(str(error)) from error


def _parser() -> argparse.ArgumentParser:
    parser = ToolParser(
        prog="python -m services.collector.transfer.import_jobs", description=__doc__.partition("\n")[0]
    )
    commands = parser.add_subparsers(dest="command", required=True)
    take = commands.add_parser("import", help="make records of a file's rows, and publish them")
    take.add_argument("file", type=Path, help="CSV or Parquet file, or one that `export` wrote")
    take.add_argument("--mapping", type=Path, help="mapping.yaml: which column is which field")
    take.add_argument("--out", type=Path, default=default_directory("import"), help=OUT_HELP)
    take.add_argument("--no-bus", action="store_true", help="write the journal only")
    take.add_argument("--dry-run", action="store_true", help="check the file, and keep nothing")
    give = commands.add_parser("export", help="write records to a file: .parquet (everything) or .csv (jobs)")
    give.add_argument("file", type=Path, help="what is written: its ending says the form")
    give.add_argument("--journal", type=Path, help="of this journal's directory, rather than of the bus")
    give.add_argument("--dataset", help="only records of this dataset, and the local runs that they name")
    return parser


# -- import ----------------------------------------------------------------------------------------------------


def _import(options: argparse.Namespace) -> int:
    records, found = _read(options)
    for number, reason in found.rejected:
        emit("error", row=number, message=reason)
    for number, reason in found.rejected[:_SAID]:
        say(f"{options.file}:{number}: {reason}")
    if len(found.rejected) > _SAID:
        say(f"... and {len(found.rejected) - _SAID} more refused rows")
    counts: dict[str, Any] = {
        "read": len(records),
        "rejected": len(found.rejected),
        "duplicates": len(found.duplicates),
        "unused_columns": found.unused_columns,
        "without_price": found.without_price,
    }
    if found.without_price:
        say(f"{found.without_price} without a price (0 is none)")
    if options.dry_run:
        emit("result", **counts, new=0, unpublished=0, dry_run=True)
        return ExitCode.BAD_DATA if found.rejected else ExitCode.OK
    with Journal(options.out) as journal:
        new = _keep(journal, records)
        if journal.waiting and not options.no_bus:
            asyncio.run(publish_to_bus(journal, CollectorSettings.load()))
        emit("result", **counts, new=new, unpublished=journal.waiting, journal=str(options.out))
    return ExitCode.BAD_DATA if found.rejected else ExitCode.OK


def _read(options: argparse.Namespace) -> tuple[list[Record], Imported]:
    if options.mapping is None:
        if options.file.suffix.lower() != ".parquet" or not is_job_file(options.file):
            raise UsageError(
                f"{options.file} is no Parquet file of `turnbuckle jobs export`: --mapping has to say which column is "
                "which field"
            )
        content = read_job_file(options.file)
        return [*content.profiles, *content.records], Imported()
    found = import_table(options.file, read_mapping(options.mapping))
    return list(found.records), found


def _keep(journal: Journal, records: list[Record]) -> int:
    """Write what is new, in batches; returns how many were."""
    new = 0
    for start in range(0, len(records), _BATCH):
        batch = records[start : start + _BATCH]
        try:
            new += journal.append_all(batch)
        except UnsendableRecordError as error:
            raise BadDataError(str(error)) from error
        emit("progress", done=start + len(batch), total=len(records), new=new)
    return new


# -- export ----------------------------------------------------------------------------------------------------


def _export(options: argparse.Namespace) -> int:
    found = list(read_journal(options.journal)) if options.journal else asyncio.run(_read_bus())
    records = [it for it in found if isinstance(it, JobRecord) and options.dataset in {None, it.dataset}]
    runs = {record.local_run for record in records}
    profiles = [it for it in found if isinstance(it, RunProfile) and (options.dataset is None or it.run in runs)]
    if options.dataset and not records:
        known = sorted({it.dataset for it in found if isinstance(it, JobRecord)})
        raise BadDataError(
            f"nothing of a dataset {options.dataset!r} is known (there are: {', '.join(known) or 'none'})"
        )
    rows = export_records(options.file, records, profiles)
    emit("result", file=str(options.file), rows=rows, jobs=len(records), runs=len(profiles))
    return ExitCode.OK


async def _read_bus() -> list[Record]:
    """Every record that the streams hold, each once."""
    found: dict[tuple[type[Record], str], Record] = {}

    def take(delivery: Delivery) -> None:
        record = delivery.message
        if isinstance(record, JobRecord | RunProfile):
            found.setdefault((type(record), record_id(record)), record)

    bus = await NatsBus.connect(replace(CollectorSettings.load().bus_options(), connect_deadline_s=_CONNECT_S))
    try:
        for stream, template in ((RUN_STREAM, RUN_PROFILES), (JOB_STREAM, JOB_RECORDS)):
            await read_stored(bus, stream, template.pattern(bus.root), 0.0, take)
    finally:
        await bus.close(_CONNECT_S)
    return list(found.values())


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


if __name__ == "__main__":
    run_tool("import_jobs", main)

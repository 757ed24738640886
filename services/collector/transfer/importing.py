"""Import of a foreign table: rows as records, and rejected rows with their number."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import ValidationError

from schemas.jobs import JobRecord
from services._runtime.command.yaml_file import BoundedLoader, describe_yaml_error
from services.collector.transfer.mapping import RowError, TableMapping, job_record
from services.collector.transfer.tables import TableError, read_table
from services.collector.validation_errors import error_lines
from services.collector.write_ahead_log import UnsendableRecordError, require_sendable

_MAX_FILE_BYTES: Final = 1 << 20


class MappingError(Exception):
    """The mapping is invalid, or does not fit the file; the text lists every error."""


@dataclass(slots=True)
class Imported:
    """Result of an import."""

    records: list[JobRecord] = field(default_factory=list)
    rejected: list[tuple[int, str]] = field(default_factory=list)
    """Line (CSV) or row (Parquet), and why."""
    duplicates: list[int] = field(default_factory=list)
    """Rows equal to an earlier one."""
    unused_columns: list[str] = field(default_factory=list)
    without_price: int = 0
    """Records that the mapping's price rule gives none, or one of 0."""


class _Loader(BoundedLoader):
    """Every scalar but null is the text that stands there: no ``off`` that is False. A key twice is an error."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's own attribute


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [str(key.value) for key, _ in node.value]
    if twice := [key for key, count in Counter(keys).items() if count > 1]:
        raise yaml.constructor.ConstructorError(None, None, f"'{twice[0]}' stands here a second time", node.start_mark)
    return loader.construct_mapping(node, deep=True)


for _first in ("n", "~", ""):
    _Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile(r"^(?:null|~|)$"), [_first])
_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)


def read_mapping(path: Path) -> TableMapping:
    """Read a mapping file.

    Raises:
        MappingError: it cannot be read, is no YAML, or says something that cannot be.
    """
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise MappingError(f"{path} is larger than {_MAX_FILE_BYTES} bytes: this is no mapping file")
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)  # noqa: S506 - a SafeLoader
        return TableMapping.model_validate(content)
    except OSError as error:
        raise MappingError(f"{path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise MappingError(f"{path} is no usable mapping:\n  " + "\n  ".join(error_lines(error))) from error
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise MappingError(describe_yaml_error(error, str(path))) from error


def import_table(path: Path, mapping: TableMapping) -> Imported:
    """Read a file by a mapping.

    Raises:
        MappingError: the file has not the columns that the mapping names.
        TableError: the file cannot be read.
    """
    table = read_table(path, mapping.separator, mapping.encoding)
    if missing := sorted(mapping.columns() - set(table.columns)):
        raise MappingError(f"{path} has no column {', '.join(missing)}; it has {', '.join(table.columns)}")
    found = Imported(rejected=list(table.rejected))
    found.unused_columns = [name for name in table.columns if name not in mapping.columns() | set(mapping.ignore)]
    repeats: Counter[str] = Counter()
    seen: dict[str, tuple[int, JobRecord]] = {}
    for row in table.rows:
        try:
            record = job_record(mapping, row.cells, path.stem)
            require_sendable(record)
        except (RowError, UnsendableRecordError) as error:
            found.rejected.append((row.number, str(error)))
            continue
        found.without_price += mapping.price is not None and record.price is None
        first = seen.setdefault(record.job, (row.number, record))
        if first[1] is record:
            found.records.append(_numbered(record, repeats, mapping))
        elif first[1] == record:
            found.duplicates.append(row.number)
        else:
            reason = f"job: {record.job} is the name of row {first[0]} already, with other values"
            found.rejected.append((row.number, reason))
    found.rejected.sort()
    return found


def _numbered(record: JobRecord, repeats: Counter[str], mapping: TableMapping) -> JobRecord:
    """Runs of one task on one configuration are numbered in the order of the file, unless the mapping does it."""
    if "repeat" in mapping.fields:
        return record
    place = f"{record.task.model_dump_json()} {record.configuration.model_dump_json()}"
    repeats[place] += 1
    return record.model_copy(update={"repeat": repeats[place] - 1})


__all__ = ["Imported", "MappingError", "TableError", "import_table", "read_mapping"]

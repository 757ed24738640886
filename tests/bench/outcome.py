"""What every benchmark does on its way and with what it has measured."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

OUTPUT: Final = Path("bench-results")
UNAVAILABLE: Final = 69
"""Exit code where the machine does not allow the measurement (EX_UNAVAILABLE of sysexits.h)."""


def say(text: str) -> None:
    """Progress, beside the result on stdout."""
    print(f"... {text}", file=sys.stderr, flush=True)


def write_record(record: dict[str, Any], path: Path) -> Path:
    """The record as JSON; returns the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(record, indent=1), encoding="utf-8")
    return path


def tell(table: str, record: dict[str, Any], written: Sequence[Path], *, as_json: bool) -> None:
    """The result on stdout, and on stderr what was written."""
    print(json.dumps(record) if as_json else table)
    for path in written:
        print(f"written: {path}", file=sys.stderr)


def text_table(title: str, table: dict[str, Any]) -> list[str]:
    """For people."""
    rows = [table["columns"], *table["rows"]]
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return ["", title, *("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)]

"""The watchdog's reports: a line for each of its actions, until an agent takes them. Standard library only."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from services._runtime.file_lock import locked_briefly


def append_reports(path: Path, reports: Sequence[dict[str, Any]]) -> None:
    """Add lines to the reports. Raises OSError."""
    with locked_briefly(path.with_suffix(".lock"), attempts=200), path.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(report) + "\n" for report in reports)


def take_report_lines(path: Path, taken: Path) -> list[dict[str, Any]]:
    """All reports, moved to the taken ones; none while one is being written. Costs one stat where there is none.

    A process killed in between leaves some in both files: they are published twice, which their times and keys show.
    """
    try:
        if not path.stat().st_size:
            return []
    except OSError:
        return []
    with locked_briefly(path.with_suffix(".lock")) as held:
        if held is None:
            return []
        try:
            content = path.read_bytes()
            with taken.open("ab") as file:
                file.write(content)
            path.unlink()
        except OSError:
            return []
    return _report_lines(content)


def read_report_lines(path: Path) -> list[dict[str, Any]]:
    """All reports of a file that is not being written."""
    try:
        return _report_lines(path.read_bytes())
    except OSError:
        return []


def _report_lines(content: bytes) -> list[dict[str, Any]]:
    reports = []
    for line in content.splitlines():
        with suppress(ValueError):  # torn by a kill
            reports.append(json.loads(line))
    return [report for report in reports if isinstance(report, dict)]

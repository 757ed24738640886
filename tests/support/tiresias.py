"""Traces and outputs of the released Tiresias simulator: files of tests/unit/scheduler/tiresias."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Final

DIRECTORY: Final = Path(__file__).parents[1] / "unit" / "scheduler" / "tiresias"


def read(name: str) -> list[dict[str, str]]:
    """The rows of a file."""
    with (DIRECTORY / name).open(newline="", encoding="ascii") as file:
        return list(csv.DictReader(file))

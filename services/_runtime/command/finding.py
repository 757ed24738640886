"""What a check of `turnbuckle doctor` returns."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How a check ended."""

    OK = "ok"
    NOTE = "note"
    """Works, and something is worth knowing."""
    MISSING = "missing"
    """Optional: something works less well, or is simulated."""
    FAILED = "failed"
    """Required: `turnbuckle` cannot work, or a container hangs."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's report."""

    name: str
    level: Level
    found: str
    mend: str = ""
    """A command, or what to do; empty if nothing has to be done."""

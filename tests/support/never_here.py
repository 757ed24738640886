"""The list of what the machine of ``.ci/run`` can never run: ``python -m tests.support.never_here`` prints it."""

from __future__ import annotations

import sys
import textwrap
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

FILE: Final = Path(__file__).resolve().parents[1] / "never_here.toml"


@dataclass(frozen=True, slots=True)
class Impossible:
    """One thing that the machine lacks."""

    what: str
    reason: str
    tests: tuple[str, ...] = ()
    """Node ids without parameters of the tests that are skipped for want of it; empty: nothing tests it."""


@cache
def never_here() -> tuple[Impossible, ...]:
    """Every entry of the list."""
    entries = tomllib.loads(FILE.read_text(encoding="utf-8"))["never"]
    return tuple(Impossible(entry["what"], entry["reason"], tuple(entry["tests"])) for entry in entries)


def is_never_here(node_id: str) -> bool:
    """Whether the list lets this test be skipped."""
    return any(node_id.partition("[")[0] in entry.tests for entry in never_here())


def main() -> None:
    """Print the list."""
    for entry in never_here():
        sys.stdout.write(textwrap.fill(f"{entry.what}: {entry.reason}", 120, subsequent_indent="  ") + "\n")
        sys.stdout.writelines(f"    skips {test}\n" for test in entry.tests)


if __name__ == "__main__":
    main()

"""The ledger of tests that failed and then passed alone: ``tests/flaky_ledger.toml``."""

from __future__ import annotations

import ast
import datetime as dt
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
FILE: Final = ROOT / "tests" / "flaky_ledger.toml"
MOST: Final = 12
"""Entries. With more of them a red run says nothing any more: mend some first."""
CLASSES: Final = ("product", "test", "machine")
_KEYS: Final = {"test": str, "first_seen": dt.date, "times": int, "class": str, "reason": str}
_LEAST_WORDS: Final = 5
"""Of a reason."""


def entries() -> list[dict[str, Any]]:
    """What the ledger lists."""
    return list(tomllib.loads(FILE.read_text(encoding="utf-8"))["flaky"])


def functions_of(file: Path) -> set[str]:
    """Names of the functions and methods of a test file, as node ids have them."""
    if not file.is_file():
        return set()
    names = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        names |= {f"{prefix}{each.name}" for each in inner if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
    return names


def faults(ledger: Sequence[Mapping[str, Any]], root: Path = ROOT) -> Iterator[str]:
    """What is wrong with the ledger, a sentence each."""
    if len(ledger) > MOST:
        yield f"{len(ledger)} entries, at most {MOST} are allowed: mend the causes of some"
    for entry in ledger:
        test = entry.get("test", "an entry without a test")
        for key, kind in _KEYS.items():
            if not isinstance(entry.get(key), kind):
                yield f"{test}: {key} is missing or is no {kind.__name__}"
        if entry.get("class") not in CLASSES:
            yield f"{test}: class is none of {', '.join(CLASSES)}"
        if len(str(entry.get("reason", "")).split()) < _LEAST_WORDS:
            yield f"{test}: the reason says too little"
        file, _, name = str(test).partition("::")
        if name not in functions_of(root / file):
            yield f"{test}: there is no such test"

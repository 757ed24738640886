"""What calls itself pure is held to it: it stands in the import contract, and nothing in the contract reads a clock."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache

from scripts.house import PACKAGES, ROOT

CLOCKS = frozenset({("datetime", "now"), ("datetime", "utcnow"), ("datetime", "today"), ("date", "today")})
"""The contract forbids the module ``time``; ``datetime`` also has values, which what is pure may use."""


def pure_modules() -> tuple[str, ...]:
    """Of the contract: modules, and packages with all that is in them."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (pure,) = (contract for contract in contracts if contract["name"].startswith("cores are pure"))
    return tuple(pure["source_modules"])


@cache
def sources() -> tuple[tuple[str, ast.Module], ...]:
    return tuple(_parsed())


def _parsed() -> Iterator[tuple[str, ast.Module]]:
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            module = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            yield module, ast.parse(file.read_text(encoding="utf-8"))


def is_in(module: str, contract: tuple[str, ...]) -> bool:
    return any(module == listed or module.startswith(f"{listed}.") for listed in contract)


def says_pure(tree: ast.Module) -> bool:
    return re.search(r"\bPure\b|\bpure function\b", ast.get_docstring(tree) or "") is not None


def clock_reads(tree: ast.Module) -> list[int]:
    """Lines that ask for the present time."""
    return sorted(
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and (ast.unparse(node.value).rpartition(".")[2], node.attr) in CLOCKS
    )


def test_a_module_that_says_pure_stands_in_the_contract() -> None:
    contract, found = pure_modules(), {module for module, tree in sources() if says_pure(tree)}
    assert len(found) > 30, "the word is looked for where it stands"
    assert sorted(module for module in found if not is_in(module, contract)) == []


def test_nothing_pure_asks_for_the_present_time() -> None:
    contract = pure_modules()
    pure = {module: clock_reads(tree) for module, tree in sources() if is_in(module, contract)}
    assert len(pure) > len(contract), "packages count with their modules"
    assert {module: lines for module, lines in pure.items() if lines} == {}


def test_a_read_of_the_clock_is_found() -> None:
    tree = ast.parse(
        "import datetime as dt\nx = datetime.now(UTC)\ny = dt.date.today\nz = datetime.fromtimestamp(0, UTC)\n"
    )
    assert clock_reads(tree) == [2, 3]


def test_the_word_is_found() -> None:
    assert says_pure(ast.parse('"""Rows into numbers. Pure."""'))
    assert not says_pure(ast.parse('"""Purely a reader of files."""'))

"""What calls itself pure is held to it: it imports nothing that acts, reads no clock, and is given nothing that acts.

What acts is a handle, a host, a store, the bus and so on, as tests/support/effectful_types.py derives it.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from textwrap import dedent

import pytest

from scripts.house import PACKAGES, ROOT
from tests.support.effectful_types import Modules

CLOCKS = frozenset({("datetime", "now"), ("datetime", "utcnow"), ("datetime", "today"), ("date", "today")})
"""The contract forbids the module ``time``; ``datetime`` also has values, which what is pure may use."""
FILES_AND_THREADS = {
    *("concurrent.futures", "ctypes", "fcntl", "io", "mmap", "multiprocessing", "select", "selectors"),
    *("typing.IO", "typing.BinaryIO", "typing.TextIO"),
}
"""What acts beside the modules that the contract forbids."""


@cache
def contract() -> dict[str, list[str]]:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (pure,) = (contract for contract in contracts if contract["name"].startswith("cores are pure"))
    return dict(pure)


def pure_modules() -> tuple[str, ...]:
    """Of the contract: modules, and packages with all that is in them; ``*`` is any one part of a name."""
    return tuple(contract()["source_modules"])


def acting() -> set[str]:
    """Libraries by which something acts."""
    return FILES_AND_THREADS | {name for name in contract()["forbidden_modules"] if not name.startswith("services")}


@cache
def sources() -> tuple[tuple[str, ast.Module], ...]:
    return tuple(_parsed())


def _parsed() -> Iterator[tuple[str, ast.Module]]:
    for package in PACKAGES:
        for file in sorted((ROOT / package).rglob("*.py")):
            module = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            yield module, ast.parse(file.read_text(encoding="utf-8"))


def is_in(module: str, contract: tuple[str, ...]) -> bool:
    """Whether it, or a package that it is in, is listed."""
    names = "|".join(re.escape(listed).replace(r"\*", "[^.]+") for listed in contract)
    return re.match(rf"(?:{names})(?:\.|$)", module) is not None


Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def says_pure(node: Documented) -> bool:
    return re.search(r"\bPure\b|\bpure function\b", ast.get_docstring(node) or "") is not None


def parts_that_say_pure(trees: Iterable[tuple[str, ast.Module]]) -> Iterator[tuple[str, Documented]]:
    """Modules, all modules of packages, and elsewhere single classes and functions, each with its module."""
    packages: list[str] = []
    for module, tree in trees:
        if says_pure(tree) or is_in(module, tuple(packages)):
            packages.append(module)
            yield module, tree
        else:
            parts = (node for node in ast.walk(tree) if isinstance(node, Documented))
            yield from ((module, node) for node in parts if says_pure(node))


def given_what_acts(trees: Iterable[tuple[str, ast.Module]]) -> list[str]:
    """Parameters and fields of what says that it is pure, each with its place and type."""
    every = list(trees)
    modules = Modules(every, acting())
    return [
        f"{module}:{use.line} {use.name}: {use.type_name}"
        for module, node in parts_that_say_pure(every)
        for use in modules.uses(module, node)
    ]


def clock_reads(tree: ast.Module) -> list[int]:
    """Lines that ask for the present time."""
    return sorted(
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and (ast.unparse(node.value).rpartition(".")[2], node.attr) in CLOCKS
    )


def test_a_module_that_says_pure_stands_in_the_contract() -> None:
    found = {module for module, tree in sources() if says_pure(tree)}
    assert len(found) > 30, "the word is looked for where it stands"
    assert sorted(module for module in found if not is_in(module, pure_modules())) == []


def test_what_says_pure_is_given_nothing_that_acts() -> None:
    assert given_what_acts(sources()) == []


def test_nothing_pure_asks_for_the_present_time() -> None:
    pure = {module: clock_reads(tree) for module, tree in sources() if is_in(module, pure_modules())}
    assert len(pure) > len(pure_modules()), "packages count with their modules"
    assert {module: lines for module, lines in pure.items() if lines} == {}


def test_a_read_of_the_clock_is_found() -> None:
    tree = ast.parse(
        "import datetime as dt\nx = datetime.now(UTC)\ny = dt.date.today\nz = datetime.fromtimestamp(0, UTC)\n"
    )
    assert clock_reads(tree) == [2, 3]


def test_the_word_is_found() -> None:
    assert says_pure(ast.parse('"""Rows into numbers. Pure."""'))
    assert not says_pure(ast.parse('"""Purely a reader of files."""'))


HOST = """
    import os
    from dataclasses import dataclass
    from socket import socket
    from typing import Any, NamedTuple, Protocol

    class File:
        def read(self): return os.pread(3, 10, 0)

    class Opened:
        def __init__(self): self.file = open("x")

    class Connection:
        async def ask(self): ...

    def read_all(): return os.listdir()

    class Indirect:
        def count(self): return len(read_all())

    class Handle(File):
        def name(self): return "a"

    class Holder(NamedTuple):
        files: list[File]

    class Listener:
        def __init__(self, connection: socket): ...

    class Port(Protocol):
        def read(self) -> bytes: ...

    class Other(Protocol):
        def read(self, most: int) -> bytes: ...

    Files = dict[str, File]

    class FileError(Exception):
        def __init__(self, file: File): ...

    @dataclass
    class Value:
        size: int

        @classmethod
        def read(cls): return cls(os.stat("x").st_size)
"""


def made_up(code: str) -> list[tuple[str, ast.Module]]:
    return [("host", ast.parse(dedent(HOST))), ("core", ast.parse(dedent(code)))]


@pytest.mark.parametrize(
    "kind", ["File", "Opened", "Connection", "Indirect", "Handle", "Holder", "Listener", "Port", "Files", "socket"]
)
def test_each_way_to_act_is_found(kind: str) -> None:
    code = f'"""Decides. Pure."""\nfrom host import {kind}\ndef decide(now_s: int, given: {kind}): ...'
    origin = "socket.socket" if kind == "socket" else f"host.{kind}"
    assert given_what_acts(made_up(code.replace("from host import socket", "from socket import socket"))) == [
        f"core:3 given: {origin}"
    ]


@pytest.mark.parametrize("kind", ["Value", "FileError", "Other"])
def test_values_errors_and_what_nothing_that_acts_fulfils_are_given(kind: str) -> None:
    code = f'"""Decides. Pure."""\nfrom host import {kind}\ndef decide(now_s: int, given: {kind}): ...'
    assert given_what_acts(made_up(code)) == []


@pytest.mark.parametrize(
    "code",
    [
        '"""Pure."""\nimport host\nclass A:\n    def __init__(self, one: host.File): ...',
        '"""Pure."""\nimport host as h\nclass A:\n    one: list[h.File] | None = None',
        '"""Pure."""\nimport host\nclass A:\n    async def f(self, *, one: host.File): ...',
        '"""Reads."""\nimport host\nclass A:\n    """Pure."""\n    def f(self, one: host.File): ...',
        '"""Reads."""\nimport host\ndef f(one: host.File):\n    """A pure function."""',
    ],
)
def test_constructors_fields_methods_and_functions_are_read(code: str) -> None:
    assert [found.partition(" ")[2] for found in given_what_acts(made_up(code))] == ["one: host.File"]


def test_a_package_says_it_for_its_modules_and_others_are_free() -> None:
    takes = "import host\ndef f(one: host.File): ..."
    trees = [*made_up('"""Pure."""'), ("core.a", ast.parse(takes)), ("shell", ast.parse(takes))]
    assert given_what_acts(trees) == ["core.a:2 one: host.File"]

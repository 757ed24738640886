"""The trips in each service's README: what an event passes, as `file.py:function`, in at most seven files.

A README may have a section "## Trips" with one heading "### <name>" per trip and a numbered list below it. Each line of
the list begins with `path.py:Class.function`, the path relative to the service's folder.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

SERVICES = Path(__file__).parents[2] / "services"
MAX_FILES = 7
WITH_TRIPS = {
    path.name for path in SERVICES.iterdir() if path.is_dir() and path.name[0] not in "_." and path.name != "cli"
}
"""All rooms but the CLI, which is a client: its README is a table of commands."""

STEP = re.compile(r"^\d+\. `([\w/]+\.py):([\w.]+)`", re.MULTILINE)
LINE = re.compile(r"^\d+\. ", re.MULTILINE)


def trips(page: str) -> dict[str, str]:
    """Text of each trip by its name."""
    section = re.search(r"^## Trips$(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    parts = re.split(r"^### (.+)$", section[1] if section else "", flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def steps(trip: str) -> list[tuple[str, str]]:
    """File and function of each numbered line."""
    return STEP.findall(trip)


@cache
def functions(path: Path) -> frozenset[str]:
    """Qualified names of the functions and methods that a file defines."""
    found: set[str] = set()

    def collect(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                found.add(prefix + child.name)
            elif isinstance(child, ast.ClassDef):
                collect(child, f"{prefix}{child.name}.")

    collect(ast.parse(path.read_text()), "")
    return frozenset(found)


TRIPS = [
    (readme.parent.name, name, text)
    for readme in sorted(SERVICES.glob("*/README.md"))
    for name, text in trips(readme.read_text()).items()
]


def test_services_that_have_to_show_trips_do() -> None:
    assert {service for service, _, _ in TRIPS} >= WITH_TRIPS


@pytest.mark.parametrize(("service", "name", "text"), TRIPS, ids=[f"{service}-{name}" for service, name, _ in TRIPS])
def test_every_step_of_a_trip_exists(service: str, name: str, text: str) -> None:
    found = steps(text)

    assert found, f"{service}: the trip {name!r} has no step"
    assert len(found) == len(LINE.findall(text)), f"{service}: a step of {name!r} is not `file.py:function`"
    for file, function in found:
        path = SERVICES / service / file
        assert path.is_file(), f"{service}: {name!r} names {file}"
        assert function in functions(path), f"{service}: {name!r} names {function}, which {file} does not define"


@pytest.mark.parametrize(("service", "name", "text"), TRIPS, ids=[f"{service}-{name}" for service, name, _ in TRIPS])
def test_a_trip_passes_at_most_seven_files_of_its_service(service: str, name: str, text: str) -> None:
    files = {file for file, _ in steps(text)}

    assert len(files) <= MAX_FILES, f"{service}: {name!r} passes {sorted(files)}"


def test_a_page_is_read_as_it_is_written() -> None:
    page = (
        "# x\n## Trips\n### decide\n1. `cycle.py:Cycle.step` - reads\n2. broken\n"
        "### sample\n1. `a/b.py:f`\n## More\n1. `c.py:g`\n"
    )

    found = trips(page)

    assert {name: steps(text) for name, text in found.items()} == {
        "decide": [("cycle.py", "Cycle.step")],
        "sample": [("a/b.py", "f")],
    }
    assert len(LINE.findall(found["decide"])) == 2

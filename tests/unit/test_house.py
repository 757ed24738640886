"""What `make house` counts: rooms, floors and cycles of a graph of imports."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import pytest

from scripts import house
from scripts.house import FLOORS, NEW_SERVICE_FLOORS, ROOT, House, cycles, floor_count, import_graph, merged, room_of

GOOD = House(
    lines=1_000,
    rooms={"services.agent": 90, "services.allocator": 80},
    floors=FLOORS,
    file_floors={"services.agent": 12, "services.allocator": 12},
    cycles=[],
    room_cycles=[],
    layers_kept=True,
)


def test_a_room_is_a_folder_below_services_or_the_schemas() -> None:
    assert room_of("services.agent.limits.accepted_updates") == "services.agent"
    assert room_of("schemas.cfs") == "schemas"
    assert room_of("services.agent.limits.accepted_updates", 3) == "services.agent.limits"


@pytest.mark.parametrize(
    ("imports", "floors"),
    [([], 0), ([("a", "b")], 2), ([("a", "b"), ("b", "c"), ("a", "c")], 3), ([("a", "b"), ("b", "a"), ("b", "c")], 2)],
)
def test_a_floor_is_the_longest_import_path_and_a_cycle_is_on_one_floor(
    imports: list[tuple[str, str]], floors: int
) -> None:
    assert floor_count(nx.DiGraph(imports)) == floors


def test_modules_that_import_each_other_are_named() -> None:
    assert cycles(nx.DiGraph([("b", "a"), ("a", "b"), ("c", "a")])) == [["a", "b"]]


def test_imports_within_a_room_are_none_of_the_plan() -> None:
    graph = nx.DiGraph([("x.core.a", "x.core.b"), ("x.service", "x.core.a"), ("x.service", "y.z")])
    rooms = {"x.core.a": "x.core", "x.core.b": "x.core", "x.service": "x.service"}
    assert list(merged(graph, rooms).edges) == [("x.service", "x.core")]


def test_the_real_graph_knows_imports_of_both_packages() -> None:
    graph = import_graph()
    assert graph.has_edge("services.allocator.service", "schemas.cfs")
    assert not any(name.startswith("services") for _, name in graph.out_edges("schemas.cfs"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"cycles": [["a", "b"]]}, "cycle: a - b"),
        ({"room_cycles": [["x", "y"]]}, "cycle: x - y"),
        ({"layers_kept": False}, "an import contract is broken: make contracts"),
        ({"rooms": {"services.cli": 91}}, "services.cli has 9.1% of all lines, at most 9% is asked"),
        ({"floors": FLOORS | {"services.cli": 4}}, "services.cli has 4 floors, FLOORS has 3"),
        ({"floors": FLOORS | {"services.cli": 2}}, "services.cli has 2 floors, FLOORS has 3"),
        ({"floors": FLOORS | {"services.sketch": 4}}, "services.sketch has 4 floors, FLOORS has none for it"),
        (
            {"floors": {k: v for k, v in FLOORS.items() if k != "services.cli"}},
            "services.cli has no floors, FLOORS has 3",
        ),
    ],
)
def test_each_limit_that_does_not_hold_is_said(change: dict[str, Any], said: str) -> None:
    assert not GOOD.broken
    assert replace(GOOD, **change).broken == [said]


def test_a_new_service_has_the_floors_of_the_skeleton_before_it_has_a_limit() -> None:
    assert replace(GOOD, floors=FLOORS | {"services.sketch": NEW_SERVICE_FLOORS}).broken == []


@pytest.mark.parametrize(("change", "code"), [({}, 0), ({"layers_kept": False}, 1)])
def test_a_limit_that_does_not_hold_is_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], code: int
) -> None:
    monkeypatch.setattr(house, "measure", lambda: replace(GOOD, **change))
    monkeypatch.setattr("sys.argv", ["house"])
    assert house.main() == code


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs make with this tree's Makefile, where an environment seems to be installed whose Python ends with 1."""
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "scripts").mkdir()
    (tmp_path / ".venv/bin").mkdir(parents=True)
    for name in (
        "pyproject.toml",
        "constraints.txt",
        "scripts/make_venv.sh",
        ".venv/installed-run",
        ".venv/installed-dev",
    ):
        (tmp_path / name).touch()
    (tmp_path / ".venv/checkout").write_text(f"{tmp_path}\n")
    python = tmp_path / ".venv/bin/python"
    python.write_text("#!/bin/sh\necho ran $*\nexit 1\n")
    python.chmod(0o755)
    own = {"PATH": os.environ["PATH"]}  # without what a make around the tests says
    return lambda *given: subprocess.run(
        ["make", *given], cwd=tmp_path, env=own, capture_output=True, text=True, check=False
    )


def test_make_house_fails_with_it(made: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    done = made("house")
    assert (done.returncode, done.stdout) == (2, "ran -m scripts.house\n")  # 2: make's own, of any recipe that fails


def test_the_gate_runs_it(made: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    assert "-m scripts.house\n" in made("--dry-run", "check").stdout
    assert "make check\n" in (ROOT / ".ci/run").read_text()

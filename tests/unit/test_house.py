"""What `make house` counts: rooms, floors and cycles of a graph of imports."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import networkx as nx
import pytest

from scripts.house import House, cycles, floor_count, import_graph, merged, room_of

GOOD = House(
    lines=1_000,
    rooms={"services.agent": 130, "services.allocator": 100},
    floors={"services.agent": 8, "services.allocator": 9},
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
        ({"rooms": {"services.cli": 131}}, "services.cli has 13.1% of all lines, at most 13% is asked"),
        (
            {"floors": {"services.agent": 9, "services.allocator": 9}},
            "services.agent has 9 floors, at most 8 are asked",
        ),
    ],
)
def test_each_limit_that_does_not_hold_is_said(change: dict[str, Any], said: str) -> None:
    assert not GOOD.broken
    assert replace(GOOD, **change).broken == [said]

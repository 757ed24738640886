"""The structure of services and schemas in figures: rooms, floors, cycles, layers. ``make house``.

A room is a folder below services/, or schemas; inside a service it is one file or one folder of it. Room A stands on
room B where a module of A imports one of B, for type checking too. A room's floor is the longest import path down from
it; rooms that import each other share a floor. Exit code 1 where a limit below does not hold: each is what the tree has
now, so that a change which needs more says so here.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from typing import Final

import grimp
import networkx as nx
from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGES: Final = ("services", "schemas")
LARGEST_ROOM: Final = 0.09
"""Share of the lines of services and schemas."""
FLOORS: Final = {
    "services._edge": 2,
    "services._host": 4,
    "services._jobs": 1,
    "services._runtime": 5,
    "services.advisor": 7,
    "services.agent": 8,
    "services.aggregator": 4,
    "services.allocator": 8,
    "services.cli": 3,
    "services.collector": 6,
    "services.console": 4,
    "services.fabric": 7,
    "services.fastpath": 6,
    "services.kubeoperator": 5,
    "services.memory": 7,
    "services.planner": 5,
    "services.reconciler": 8,
    "services.runner": 9,
    "services.scheduler": 7,
    "services.trainer": 3,
}
"""Of each room. One that has fewer gets a lower limit, too: else the next change takes the floor back unnoticed."""
NEW_SERVICE_FLOORS: Final = 3
"""Of a room that has no limit there yet: as `scripts.new_service` makes it."""


@dataclass(frozen=True, slots=True)
class House:
    """What was counted."""

    lines: int
    """Of Python, blank ones included."""
    rooms: dict[str, int]
    """Lines, the largest room first."""
    floors: dict[str, int]
    """By service, of the rooms inside it."""
    file_floors: dict[str, int]
    """By service, with each file as a room."""
    cycles: list[list[str]]
    """Modules that import each other."""
    room_cycles: list[list[str]]
    """Rooms of one service that import each other without a cycle of modules; they count as one floor."""
    layers_kept: bool
    """No import contract of pyproject.toml is broken."""

    @property
    def broken(self) -> list[str]:
        """The limits that do not hold."""
        largest, lines = next(iter(self.rooms.items()))
        found = [f"cycle: {' - '.join(cycle)}" for cycle in (*self.cycles, *self.room_cycles)]
        if not self.layers_kept:
            found.append("an import contract is broken: make contracts")
        if lines > LARGEST_ROOM * self.lines:
            found.append(f"{largest} has {lines / self.lines:.1%} of all lines, at most {LARGEST_ROOM:.0%} is asked")
        found += [
            f"{room} has {self.floors.get(room, 'no')} floors, FLOORS has {floors}"
            for room, floors in FLOORS.items()
            if self.floors.get(room) != floors
        ]
        found += [
            f"{room} has {floors} floors, FLOORS has none for it"
            for room, floors in self.floors.items()
            if room not in FLOORS and floors > NEW_SERVICE_FLOORS
        ]
        return found


def room_of(module: str, depth: int = 2) -> str:
    """The room that a module is in: its name's first parts; schemas are one room."""
    return "schemas" if module.startswith("schemas") and depth == 2 else ".".join(module.split(".")[:depth])


def import_graph() -> nx.DiGraph[str]:
    """Modules and their imports of each other, those under TYPE_CHECKING included."""
    found = grimp.build_graph(*PACKAGES, cache_dir=None)
    graph: nx.DiGraph[str] = nx.DiGraph()
    for module in sorted(found.modules):
        graph.add_node(module)
        graph.add_edges_from((module, other) for other in found.find_modules_directly_imported_by(module))
    return graph


def cycles(graph: nx.DiGraph[str]) -> list[list[str]]:
    """Groups of nodes that reach each other, the smallest names first."""
    return sorted(sorted(part) for part in nx.strongly_connected_components(graph) if len(part) > 1)


def merged(graph: nx.DiGraph[str], rooms: dict[str, str]) -> nx.DiGraph[str]:
    """The graph of rooms instead of modules; modules without a room are left out."""
    result: nx.DiGraph[str] = nx.DiGraph()
    result.add_nodes_from(rooms.values())
    pairs = ((rooms[a], rooms[b]) for a, b in graph.edges if a in rooms and b in rooms)
    result.add_edges_from((a, b) for a, b in pairs if a != b)
    return result


def floor_count(graph: nx.DiGraph[str]) -> int:
    """Nodes on the longest import path; nodes of a cycle count as one."""
    return int(nx.dag_longest_path_length(nx.condensation(graph))) + 1 if graph else 0


def lines_of(modules: Iterable[str]) -> Counter[str]:
    """Lines by room."""
    found: Counter[str] = Counter()
    for module in modules:
        path = ROOT / Path(*module.split("."))
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        found[room_of(module)] += len(path.read_bytes().splitlines())
    del found["services"]  # its __init__.py
    return found


def contracts_kept() -> bool:
    """Whether import-linter finds every contract kept."""
    with redirect_stdout(StringIO()):
        return lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True) == EXIT_STATUS_SUCCESS


def measure() -> House:
    """The house as it stands in this checkout."""
    graph = import_graph()
    rooms = lines_of(graph)
    inside = {
        service: {module: room_of(module, 3) for module in graph if module.startswith(f"{service}.")}
        for service in sorted(rooms)
        if service != "schemas"
    }
    tangled = cycles(graph)
    return House(
        lines=rooms.total(),
        rooms=dict(rooms.most_common()),
        floors={service: floor_count(merged(graph, named)) for service, named in inside.items()},
        file_floors={service: floor_count(graph.subgraph(named)) for service, named in inside.items()},
        cycles=tangled,
        room_cycles=[
            cycle for named in inside.values() for cycle in cycles(merged(graph, named)) if cycle not in tangled
        ],
        layers_kept=contracts_kept(),
    )


def text(house: House) -> str:
    """For people."""
    rows = [f"{'room':<24}{'lines':>8}{'share':>7}{'floors':>8}{'by file':>9}"]
    for room, lines in house.rooms.items():
        floors = f"{house.floors[room]:>8}{house.file_floors[room]:>9}" if room in house.floors else ""
        rows.append(f"{room:<24}{lines:>8,}{lines / house.lines:>7.1%}{floors}")
    tangles = f"cycles: {len(house.cycles)} of modules, {len(house.room_cycles)} of rooms"
    rows += [f"{'all':<24}{house.lines:>8,}", tangles]
    return "\n".join([*rows, *(f"does not hold: {each}" for each in house.broken)])


def main() -> int:
    """Print the figures; 1 where a limit does not hold."""
    parser = argparse.ArgumentParser(prog="python -m scripts.house", description=__doc__.partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="JSON instead of the table")
    as_json = parser.parse_args().json
    house = measure()
    record = {**asdict(house), "broken": house.broken}
    sys.stdout.write(f"{json.dumps(record, indent=1) if as_json else text(house)}\n")
    return 1 if house.broken else 0


if __name__ == "__main__":
    raise SystemExit(main())

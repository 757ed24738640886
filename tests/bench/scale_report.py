"""What `tests.bench.scale` has measured: a table for people, JSON for programs, a picture."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from tests.bench.figures import Spread, expectation_lines, percentiles
from tests.bench.outcome import write_record
from tests.bench.pictures import panels, save
from tests.bench.scale_figures import (
    ALLOCATOR_US,
    LOOP_US,
    ScaleResults,
    bytes_per_container,
    capacities,
    expectations,
    kept_up,
)
from tests.bench.scenario_agent import AgentRun
from tests.bench.scenario_allocator import AllocatorRun

_Run = TypeVar("_Run", AgentRun, AllocatorRun)
_MIB: Final = 1 << 20
_WITH_RANGE: Final = ("agent", "allocator")
_HOST_COLUMNS: Final[dict[str, tuple[Callable[[AgentRun], float], int]]] = {
    "read": (lambda run: run.cost_us["read"], 2),
    "recheck": (lambda run: run.cost_us["recheck"], 2),
    "columns": (lambda run: run.cost_us["columns"], 2),
    "publish": (lambda run: run.cost_us["publish"], 2),
    "orders": (lambda run: run.cost_us["orders"], 2),
    "agent": (lambda run: run.process_us, 1),
    "watchdog": (lambda run: run.companions_us, 2),
    "allocator": (lambda run: run.allocator_us, 1),
    "nats": (lambda run: run.nats_us, 1),
    "bytes": (lambda run: run.wire_bytes, 0),
    "changes": (lambda run: run.changes_per_period / run.containers, 2),
    "ticks": (lambda run: run.ticks_per_period, 2),
    "agent MiB": (lambda run: run.agent_bytes / _MIB, 0),
    "allocator MiB": (lambda run: run.allocator_bytes / _MIB, 0),
}
_FLEET_COLUMNS: Final[dict[str, tuple[Callable[[AllocatorRun], float], int]]] = {
    "allocator": (lambda run: run.process_us, 2),
    "of that step": (lambda run: run.step_us, 2),
    "nats": (lambda run: run.nats_us, 2),
    "bytes": (lambda run: run.wire_bytes, 0),
    "changes": (lambda run: run.changed_share, 2),
    "ticks": (lambda run: run.ticks_per_period, 2),
    "last order ms": (lambda run: percentiles(run.last_order_ms)["p50"], 1),
    "busiest replica": (lambda run: max(run.replica_us) / run.process_us, 2),
    "replica MiB": (lambda run: max(run.replica_bytes) / _MIB, 0),
}


def table(results: ScaleResults) -> str:
    """Everything as text."""
    lines = [results.machine.line, ""]
    if hosts := results.host_groups():
        lines.append(
            "real control groups, one agent: CPU us, bytes through the server, limits changed, each per container and "
            "period: median, of agent and allocator also the range"
        )
        host_rows = [(f"{key.containers:>10,} {key.busy:>5} {key.source:<10}", runs) for key, runs in hosts.items()]
        lines += _rows(f"{'containers':>10} {'busy':>5} {'read by':<10}", _HOST_COLUMNS, host_rows)
    if fleets := results.fleet_groups():
        lines.append("synthetic agents: the same, all replicas together")
        fleet_rows = [
            (f"{key.containers:>10,}{key.containers_per_node:>8,}{key.replicas:>9} {key.activity:<6}", runs)
            for key, runs in fleets.items()
        ]
        lines += _rows(f"{'containers':>10}{'a node':>8}{'replicas':>9} {'load':<6}", _FLEET_COLUMNS, fleet_rows)
    lines += _memory_lines(results) + _capacity_lines(results)
    lines += expectation_lines(expectations(results), 66, 2)
    return "\n".join([*lines, *results.notes])


def _rows(
    head: str, columns: dict[str, tuple[Callable[[_Run], float], int]], groups: Sequence[tuple[str, list[_Run]]]
) -> list[str]:
    lines: list[str] = [head + "".join(f"{column:>{_width(column)}}" for column in columns)]
    for name, runs in groups:
        cells = [
            f"{_cell(column, Spread.of([value(run) for run in runs]), digits):>{_width(column)}}"
            for column, (value, digits) in columns.items()
        ]
        lines.append(name + "".join(cells) + ("" if kept_up(runs) else "  DID NOT KEEP UP"))
    return [*lines, ""]


def _width(column: str) -> int:
    return 23 if column in _WITH_RANGE else max(9, len(column) + 2)


def _cell(column: str, spread: Spread, digits: int) -> str:
    return spread.text(digits) if column in _WITH_RANGE else f"{spread.median:.{digits}f}"


def _memory_lines(results: ScaleResults) -> list[str]:
    lines = []
    for source in dict.fromkeys(run.source for run in results.hosts):
        if sizes := bytes_per_container(results, source):
            cells = ", ".join(f"{count:,}: {size / 1024:.1f}" for count, size in sizes.items())
            lines.append(f"agent's resident KiB per container beyond the fewest, {source}: {cells}")
    return [*lines, ""] if lines else []


def _capacity_lines(results: ScaleResults) -> list[str]:
    rows = [f"  {row.what:<66} {row.per_core.text(0):>28}  from {row.measured}" for row in capacities(results)]
    return ["containers per core, extrapolated from CPU time: median (range)", *rows, ""]


def write_json(results: ScaleResults, directory: Path) -> Path:
    """The record; returns its path."""
    return write_record(results.as_dict(), directory / "scale.json")


def write(results: ScaleResults, directory: Path) -> list[Path]:
    """JSON and picture into a directory; returns what was written."""
    figure, (left, middle, right) = panels(3, (16, 4.8))
    _draw_hosts(left, results)
    _draw_fleets(middle, results)
    _draw_sizes(right, results)
    caption = results.machine.line + "\nMedians; agent + allocator includes the agent's watchdog."
    return [write_json(results, directory), save(figure, caption, directory / "scale.png")]


def _draw_hosts(axes: Any, results: ScaleResults) -> None:
    lines: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
    for key, runs in results.host_groups().items():
        kind = f"{key.source}, {'busy' if key.busy else 'idle'}"
        lines[f"agent, {kind}"].append((key.containers, Spread.of([run.process_us for run in runs]).median))
        lines[f"agent + allocator, {kind}"].append((key.containers, Spread.of([run.loop_us for run in runs]).median))
    for kind, points in lines.items():
        style = "--" if kind.startswith("agent,") else "-"
        axes.plot(*zip(*points, strict=True), marker="o", linestyle=style, label=kind)
    axes.axhline(LOOP_US, color="grey", linestyle=":", label="10,000 containers per core")
    axes.set(title="one node, real control groups", ylabel="CPU us per container and period", xlabel="containers")
    axes.set(xscale="log", yscale="log")
    if axes.lines:
        axes.legend(fontsize=7)


def _draw_fleets(axes: Any, results: ScaleResults) -> None:
    lines: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
    for key, runs in results.fleet_groups().items():
        replicas = "" if key.replicas == 1 else f", {key.replicas} replicas"
        kind = f"{key.containers_per_node:,} a node, {key.activity}{replicas}"
        lines[kind].append((key.containers, Spread.of([run.process_us for run in runs]).median))
    for kind, points in lines.items():
        axes.plot(*zip(*points, strict=True), marker="o", label=kind)
    axes.axhline(ALLOCATOR_US, color="grey", linestyle=":", label="500,000 containers per core")
    axes.set(title="allocator, synthetic agents", ylabel="CPU us per container and period", xlabel="containers")
    axes.set(xscale="log", yscale="log")
    if axes.lines:
        axes.legend(fontsize=7)


def _draw_sizes(axes: Any, results: ScaleResults) -> None:
    for source in dict.fromkeys(run.source for run in results.hosts):
        if sizes := bytes_per_container(results, source):
            axes.plot(sizes.keys(), [size / 1024 for size in sizes.values()], marker="o", label=f"KiB of RSS, {source}")
    for busy in (False, True):
        points = [
            (key.containers, Spread.of([run.wire_bytes for run in runs]).median / 1024)
            for key, runs in results.host_groups().items()
            if bool(key.busy) == busy and key.source == results.hosts[0].source
        ]
        if points:
            label = f"KiB on the wire per period, {'busy' if busy else 'idle'}"
            axes.plot(*zip(*points, strict=True), marker="s", linestyle="--", label=label)
    axes.set(title="agent's memory, bytes on the wire", ylabel="KiB per container", xlabel="containers", xscale="log")
    axes.set(yscale="log")
    if axes.lines:
        axes.legend(fontsize=7)

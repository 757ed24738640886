"""The results as a table for people, JSON for programs and a picture."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.bench.comparison import Comparison
from tests.bench.figures import Expectation, Spread, expectation_lines, percentiles
from tests.bench.machine import Machine
from tests.bench.outcome import write_record
from tests.bench.pictures import panels, save
from tests.bench.scenario_allocator import AllocatorRun

AllocatorKey = tuple[int, int, str]


@dataclass(slots=True)
class Results:
    """Everything that was measured."""

    machine: Machine
    allocator: list[AllocatorRun] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def allocator_groups(self) -> dict[AllocatorKey, list[AllocatorRun]]:
        """Runs of one setting together, in the order in which they were first made."""
        groups: defaultdict[AllocatorKey, list[AllocatorRun]] = defaultdict(list)
        for run in self.allocator:
            groups[run.load.containers, len(run.load.apps), run.policy].append(run)
        return dict(groups)

    def expectations(self) -> list[Expectation]:
        """The project's figures beside the measured ones, where they were measured."""
        allocators = {key: runs for key, runs in self.allocator_groups().items() if key[0] == 1_000}
        found = []
        for (_, apps, policy), cases in allocators.items():
            cost = Spread.of([run.process_us for run in cases])
            what = f"allocator CPU, 1,000 containers, {apps} apps, {policy}"
            found.append(Expectation(what, 1.0, "us/container/period", cost))
        return found


def table(results: Results) -> str:
    """Everything as text."""
    lines = [results.machine.line, ""]
    if results.allocator:
        lines += _allocator_costs(results)
    if results.comparisons:
        lines += ["against the naive way: median (range)"]
        lines += [
            f"  {row.what:<45} {row.ours.text(2):>24} {row.naive.text(2):>30}  x{row.ratio.text():<24} {row.unit}"
            for row in results.comparisons
        ]
        lines.append("")
    lines += expectation_lines(results.expectations(), 58, 2)
    return "\n".join([*lines, *results.notes])


def _allocator_costs(results: Results) -> list[str]:
    heads = f"{'containers':>12} {'apps':>5} {'policy':<10}{'process':>20}{'step':>20}{'changed share':>20}"
    heads += f"{'ticks, steps/period':>22}{'orders/period':>20}{'tick -> last order p50 ms':>28}{'nats ms/period':>18}"
    lines = ["allocator: CPU us per container and period, median (range); step: the synchronous part of it", heads]
    for (count, apps, policy), runs in results.allocator_groups().items():
        spreads = [
            Spread.of([run.process_us for run in runs]).text(2),
            Spread.of([run.step_us for run in runs]).text(2),
            Spread.of([run.changed_share for run in runs]).text(2),
        ]
        ticks = Spread.of([run.ticks_per_period for run in runs])
        steps = f"{ticks.median:.2f}, {Spread.of([run.steps_per_period for run in runs]).text(1)}"
        orders = Spread.of([run.orders_per_period for run in runs]).text(0)
        delay = Spread.of([percentiles(run.last_order_ms)["p50"] for run in runs]).text()
        server = Spread.of([run.nats_ms_per_period for run in runs]).text()
        cells = "".join(f"{text:>20}" for text in spreads)
        lines.append(f"{count:>12} {apps:>5} {policy:<10}{cells}{steps:>22}{orders:>20}{delay:>28}{server:>18}")
    return [*lines, ""]


def as_json(results: Results) -> dict[str, Any]:
    """Everything, raw latencies included."""
    return {
        "machine": results.machine.as_dict(),
        "expectations": [row.as_dict() for row in results.expectations()],
        "allocator": [asdict(run) for run in results.allocator],
        "comparisons": [asdict(row) for row in results.comparisons],
        "notes": results.notes,
    }


def write(results: Results, directory: Path) -> list[Path]:
    """JSON and picture into a directory; returns what was written."""
    record = write_record(as_json(results), directory / "loop.json")
    figure, axes = panels(1, (7, 4.8))
    _draw_allocator(axes, results)
    return [record, save(figure, results.machine.line, directory / "loop.png")]


def _draw_allocator(axes: Any, results: Results) -> None:
    lines: defaultdict[str, list[tuple[int, float]]] = defaultdict(list)
    for (count, apps, policy), runs in results.allocator_groups().items():
        kind = f"{policy}, {'one application' if apps == 1 else 'one per 20'}"
        lines[kind].append((count, Spread.of([run.process_us for run in runs]).median))
    for kind, points in lines.items():
        axes.plot(*zip(*sorted(points), strict=True), marker="o", label=kind)
    axes.axhline(1.0, color="grey", linestyle=":", label="expected at 1,000")
    axes.set(
        title="allocator", xlabel="containers", ylabel="CPU us per container and period", xscale="log", yscale="log"
    )
    axes.legend(fontsize=8)

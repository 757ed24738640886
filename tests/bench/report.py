"""The results as a table for people, JSON for programs and a picture."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.bench.comparison import Comparison
from tests.bench.figures import Expectation, Spread, expectation_lines, percentiles
from tests.bench.machine import Machine
from tests.bench.outcome import write_record
from tests.bench.pictures import panels, save
from tests.bench.scenario_agent import AgentRun
from tests.bench.scenario_allocator import AllocatorRun

PARTS = ("read", "columns", "publish", "orders", "process")
LATENCIES = {
    "from_due_ms": "tick due -> last quota at once",
    "from_sample_ms": "sample start -> last quota at once",
    "raises_ms": "sample start -> last raise",
    "funded_ms": "cut acknowledged -> raises it paid for",
    "boundary_ms": "sample start -> cut at its own boundary",
    "tick_ms": "tick: sample and publish",
    "order_transit_ms": "tick's end -> order carried out",
}
AgentKey = tuple[int, str, bool]
AllocatorKey = tuple[int, int, str]


@dataclass(slots=True)
class Results:
    """Everything that was measured."""

    machine: Machine
    agent: list[AgentRun] = field(default_factory=list)
    allocator: list[AllocatorRun] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def agent_groups(self) -> dict[AgentKey, list[AgentRun]]:
        """Runs of one setting together, in the order in which they were first made."""
        groups: defaultdict[AgentKey, list[AgentRun]] = defaultdict(list)
        for run in self.agent:
            groups[run.containers, run.scheduling, run.burning].append(run)
        return dict(groups)

    def allocator_groups(self) -> dict[AllocatorKey, list[AllocatorRun]]:
        """As `agent_groups`, by containers, applications and policy."""
        groups: defaultdict[AllocatorKey, list[AllocatorRun]] = defaultdict(list)
        for run in self.allocator:
            groups[run.load.containers, len(run.load.apps), run.policy].append(run)
        return dict(groups)

    def expectations(self) -> list[Expectation]:
        """The project's figures beside the measured ones, where they were measured."""
        agents = {key: runs for key, runs in self.agent_groups().items() if key[0] == 100 and key[2]}
        allocators = {key: runs for key, runs in self.allocator_groups().items() if key[0] == 1_000}
        found = []
        for (_, scheduling, _), runs in agents.items():
            cost = Spread.of([run.cost_us["process"] for run in runs])
            found.append(Expectation(f"agent CPU, 100 containers, {scheduling}", 20.0, "us/container/period", cost))
        for (_, scheduling, _), runs in agents.items():
            delay = Spread.of([percentiles(run.from_sample_ms)["p50"] for run in runs])
            found.append(Expectation(f"sample start -> quota written, p50, {scheduling}", 5.0, "ms", delay))
        for (_, apps, policy), cases in allocators.items():
            cost = Spread.of([run.process_us for run in cases])
            what = f"allocator CPU, 1,000 containers, {apps} apps, {policy}"
            found.append(Expectation(what, 1.0, "us/container/period", cost))
        return found


def table(results: Results) -> str:
    """Everything as text."""
    lines = [results.machine.line, ""]
    if results.agent:
        lines += _agent_costs(results) + _latencies(results)
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


def _cost_of(part: str) -> Callable[[AgentRun], float]:
    return lambda run: run.cost_us[part]


def _over(runs: list[AgentRun], value: Callable[[AgentRun], float], digits: int = 1) -> str:
    return Spread.of([value(run) for run in runs]).text(digits)


def _agent_costs(results: Results) -> list[str]:
    heads = "".join(f"{part:>20}" for part in PARTS)
    lines = [
        "agent: CPU us per container and period, median (range); process: all of it, discovery and replies included",
        f"{'containers':>12} {'busy':>5} {'scheduling':<11}{heads}"
        + "".join(f"{head:>20}" for head in ("changes/period", "allocator", "nats ms/period")),
    ]
    for (count, scheduling, _), runs in results.agent_groups().items():
        cells = "".join(f"{_over(runs, _cost_of(part)):>20}" for part in PARTS)
        lines.append(
            f"{count:>12} {runs[0].busy:>5} {scheduling:<11}{cells}"
            f"{_over(runs, lambda run: run.changes_per_period):>20}{_over(runs, lambda run: run.allocator_us):>20}"
            f"{_over(runs, lambda run: run.nats_ms_per_period, 2):>20}"
        )
    return [*lines, ""]


def _latencies(results: Results) -> list[str]:
    lines = [
        "the loop: ms, median (range) over repetitions of each run's percentile",
        f"{'containers':>12} {'scheduling':<11} {'what':<40}{'p50':>20}{'p90':>20}{'p99':>22}{'max':>22}{'samples':>9}",
    ]
    for (count, scheduling, burning), runs in results.agent_groups().items():
        for name, text in LATENCIES.items():
            series = [values for run in runs if (values := getattr(run, name))]
            if not burning or not series:
                continue
            spreads = [
                Spread.of([percentiles(values)[key] for values in series]) for key in ("p50", "p90", "p99", "max")
            ]
            p50, p90, p99, most = (spread.text() for spread in spreads)
            samples = sum(len(values) for values in series)
            lines.append(f"{count:>12} {scheduling:<11} {text:<40}{p50:>20}{p90:>20}{p99:>22}{most:>22}{samples:>9}")
    return [*lines, ""]


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
        "agent": [asdict(run) for run in results.agent],
        "allocator": [asdict(run) for run in results.allocator],
        "comparisons": [asdict(row) for row in results.comparisons],
        "notes": results.notes,
    }


def write(results: Results, directory: Path) -> list[Path]:
    """JSON and picture into a directory; returns what was written."""
    record = write_record(as_json(results), directory / "loop.json")
    figure, (left, middle, right) = panels(3, (16, 4.5))
    _draw_costs(left, results)
    _draw_latencies(middle, results)
    _draw_allocator(right, results)
    return [record, save(figure, results.machine.line, directory / "loop.png")]


def _draw_costs(axes: Any, results: Results) -> None:
    groups = {key: runs for key, runs in results.agent_groups().items() if key[1] == "default"}
    names = [f"{count}\n{'busy' if burning else 'idle'}" for count, _, burning in groups]
    bottom = [0.0] * len(groups)
    for part in PARTS[:-1]:
        heights = [Spread.of([run.cost_us[part] for run in runs]).median for runs in groups.values()]
        axes.bar(names, heights, bottom=bottom, label=part)
        bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    whole = [Spread.of([run.cost_us["process"] for run in runs]).median for runs in groups.values()]
    rest = [max(0.0, total - low) for total, low in zip(whole, bottom, strict=True)]
    axes.bar(names, rest, bottom=bottom, label="the rest", color="lightgrey")
    axes.set(title="agent", ylabel="CPU us per container and period", xlabel="containers")
    axes.legend(fontsize=8)


def _draw_latencies(axes: Any, results: Results) -> None:
    for (count, scheduling, burning), runs in results.agent_groups().items():
        values = sorted(value for run in runs for value in run.from_sample_ms)
        if count == 100 and burning and values:
            axes.plot(values, [(rank + 1) / len(values) for rank in range(len(values))], label=scheduling)
    axes.axvline(5.0, color="grey", linestyle=":", label="expected p50")
    axes.set(
        title="100 containers", xlabel="ms from sample start to the last quota at once", ylabel="share", xscale="log"
    )
    axes.legend(fontsize=8)


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

"""From a sample to the quota in the kernel: results, what is expected, a table, JSON and a picture."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.bench.figures import Expectation, Spread, expectation_lines, percentiles
from tests.bench.machine import Machine
from tests.bench.outcome import write_record
from tests.bench.pictures import panels, save
from tests.bench.scenario_agent import LATENCIES, AgentRun

P50_MS: Final = 3.0
P99_MS: Final = 10.0
FOCUS: Final = 100
"""Containers for which something is expected."""
_KINDS_DRAWN: Final = ("raise", "cut")


@dataclass(frozen=True, slots=True, order=True)
class LatencyKey:
    """One setting."""

    containers: int
    busy: int
    source: str
    scheduling: str

    @property
    def text(self) -> str:
        """For people."""
        return f"{self.containers:,} containers, {self.source}, {self.scheduling}"


@dataclass(slots=True)
class LatencyResults:
    """Everything that was measured."""

    machine: Machine
    runs: list[AgentRun] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def groups(self) -> dict[LatencyKey, list[AgentRun]]:
        """Repetitions of one setting together."""
        groups: defaultdict[LatencyKey, list[AgentRun]] = defaultdict(list)
        for run in self.runs:
            groups[LatencyKey(run.containers, run.busy, run.source, run.scheduling)].append(run)
        return dict(sorted(groups.items()))

    def as_dict(self) -> dict[str, Any]:
        """For the JSON record, every latency included."""
        return {
            "machine": self.machine.as_dict(),
            "kinds": LATENCIES,
            "figures": figures(self),
            "expectations": [row.as_dict() for row in expectations(self)],
            "percentiles_ms": [
                asdict(key) | {kind: {name: asdict(of) for name, of in found.items()}}
                for key, runs in self.groups().items()
                for kind in LATENCIES
                if (found := spreads(runs, kind))
            ],
            "runs": [asdict(run) for run in self.runs],
            "notes": self.notes,
        }


def spreads(runs: list[AgentRun], kind: str) -> dict[str, Spread]:
    """Each percentile over repetitions; empty where nothing of the kind happened."""
    series = [percentiles(values) for run in runs if (values := run.latency_ms.get(kind, []))]
    return {name: Spread.of([found[name] for found in series]) for name in ("p50", "p90", "p99", "max") if series}


def expectations(results: LatencyResults) -> list[Expectation]:
    """Of raises: they are written as soon as the agent knows. A cut waits for its period's end by intention."""
    found = []
    for key, runs in results.groups().items():
        measured = spreads(runs, "raise")
        if key.containers == FOCUS and measured:
            found += [
                Expectation(f"raise, {key.text}, {name}", most_ms, "ms", measured[name])
                for name, most_ms in (("p50", P50_MS), ("p99", P99_MS))
            ]
    return found


def figures(results: LatencyResults) -> dict[str, dict[str, str]]:
    """Rows for pages (`scripts.generate_figures`): raises with `FOCUS` containers under the default scheduling."""
    kernel = f"from reading a container's counters to its raised CPU limit in the kernel, {FOCUS} busy containers"
    found = {}
    for key, runs in results.groups().items():
        measured = spreads(runs, "raise")
        if key.containers == FOCUS and key.scheduling == "default" and measured:
            by_programs = key.source.startswith("bpf")
            p50, p99, most = (measured[name] for name in ("p50", "p99", "max"))
            found["raise" if by_programs else "files"] = {
                "what": kernel if by_programs else "the same without the kernel programs",
                "unit": "",
                "shown": f"p50 {p50.brief()} ms, p99 {p99.brief()} ms, max {most.most:.3g} ms",
            }
    return found


def table(results: LatencyResults) -> str:
    """Everything as text."""
    lines = [results.machine.line, "", "ms: median (range) over repetitions of each run's percentile"]
    for key, runs in results.groups().items():
        throttled = Spread.of([run.throttled_per_period for run in runs])
        changes = Spread.of([run.changes_per_period for run in runs])
        ticks = Spread.of([run.ticks_per_period for run in runs])
        load = f"{throttled.text()} of them throttled, {changes.text()} limits changed, {ticks.text(2)} ticks"
        lines += [
            "",
            f"{key.text}: {key.busy} busy; per period {load}",
            f"  {'':<50}{'p50':>20}{'p90':>20}{'p99':>20}{'max':>22}{'samples':>9}",
        ]
        for kind, text in LATENCIES.items():
            if found := spreads(runs, kind):
                p50, p90, p99, most = (spread.text(2) for spread in found.values())
                samples = sum(len(run.latency_ms.get(kind, [])) for run in runs)
                lines.append(f"  {text:<50}{p50:>20}{p90:>20}{p99:>20}{most:>22}{samples:>9}")
    lines += ["", *expectation_lines(expectations(results), 58, 2)]
    return "\n".join([*lines, *results.notes])


def write_json(results: LatencyResults, directory: Path) -> Path:
    """The record; returns its path."""
    return write_record(results.as_dict(), directory / "latency.json")


def write(results: LatencyResults, directory: Path) -> list[Path]:
    """JSON and picture into a directory; returns what was written."""
    figure, axes = panels(len(_KINDS_DRAWN), (13, 4.8))
    for each, kind in zip(axes, _KINDS_DRAWN, strict=True):
        _draw(each, results, kind)
    axes[0].axvline(P99_MS, color="grey", linestyle=":")
    return [write_json(results, directory), save(figure, results.machine.line, directory / "latency.png")]


def _draw(axes: Any, results: LatencyResults, kind: str) -> None:
    for key, runs in results.groups().items():
        values = sorted(value for run in runs for value in run.latency_ms.get(kind, []))
        if values:
            shares = [1 - rank / len(values) for rank in range(len(values))]
            axes.plot(values, shares, label=key.text)
    axes.set(title=LATENCIES[kind], xlabel="ms", ylabel="share of the writes that took longer")
    axes.set(xscale="log", yscale="log")
    if axes.lines:
        axes.legend(fontsize=7)

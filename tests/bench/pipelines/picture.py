"""Samples per second of each way, and what each sends over the link."""

from __future__ import annotations

from pathlib import Path

from tests.bench.figures import Spread
from tests.bench.machine import Machine
from tests.bench.pictures import panels, save
from tests.bench.pipelines.cases import WAYS
from tests.bench.pipelines.report import Result, rates_line


def draw(machine: Machine, result: Result, path: Path) -> Path:
    """Write the picture; returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure, (speed, link) = panels(2, (11, 4.2))
    for place, way in enumerate(WAYS):
        found = result.samples_per_s(way)
        span = [[found.median - found.least], [found.most - found.median]]
        speed.bar(place, found.median, yerr=span, color=f"C{place}")
        link.bar(place, Spread.of([run.link_bytes / 1e6 for run in result.of(way)]).median, color=f"C{place}")
    for axes in (speed, link):
        axes.set_xticks(range(len(WAYS)), list(WAYS), fontsize=8)
    speed.set(title="samples per second (range of turns)")
    link.set(title="MB over the link between the machines, a step", yscale="log")
    return save(figure, f"{machine.line}\n{rates_line(result)}", path)

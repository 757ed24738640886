"""Step times of each set as bars, and predicted against measured ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.bench.figures import Spread
from tests.bench.machine import Machine
from tests.bench.pictures import panels, save
from tests.bench.unequal.cases import COLUMNS
from tests.bench.unequal.report import WITHIN, Result, compared, timed


def draw(machine: Machine, results: Sequence[Result], path: Path) -> Path:
    """Write the picture; returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure, (bars, points) = panels(2, (13, 5.2))
    _bars(bars, results)
    _points(points, results)
    return save(figure, machine.line, path)


def _bars(axes: Any, results: Sequence[Result]) -> None:
    sets, width = compared(results), 0.8 / len(COLUMNS)
    for place, column in enumerate(COLUMNS):
        for row, columns in enumerate(sets.values()):
            one = columns[column]
            at = row + (place - (len(COLUMNS) - 1) / 2) * width
            if not one.took_us:
                axes.text(at, 0.02, "out of memory", rotation=90, ha="center", va="bottom", fontsize=7)
                continue
            spread = Spread.of([us / 1e6 for us in one.took_us])
            range_s = [[spread.median - spread.least], [spread.most - spread.median]]
            label = column if row == 0 else None
            axes.bar(at, spread.median, width, yerr=range_s, color=f"C{place}", label=label)
    axes.set_xticks(range(len(sets)), [name.replace(", ", "\n") for name in sets], fontsize=7)
    axes.set(title="seconds of a step (range of turns)", ylabel="s")
    axes.legend(fontsize=8)


def _points(axes: Any, results: Sequence[Result]) -> None:
    runs = timed(results)
    for place, column in enumerate(COLUMNS):
        own = [(one.median_us / 1e6, one.plan.step_us / 1e6) for one in runs if one.column == column]
        if own:
            axes.scatter(*zip(*own, strict=True), s=14, color=f"C{place}", label=column)
    most = max((one.median_us / 1e6 for one in runs), default=1.0) * 1.1
    axes.plot([0, most], [0, most], color="grey", linewidth=0.8)
    axes.fill_between([0, most], [0, (1 - WITHIN) * most], [0, (1 + WITHIN) * most], color="grey", alpha=0.2)
    axes.set(
        title=f"a step, predicted against measured; band: {WITHIN:.0%}", xlabel="measured, s", ylabel="predicted, s"
    )
    axes.legend(fontsize=8)

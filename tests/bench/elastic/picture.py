"""Pauses by kind of change, samples per dollar beside the time of the job, hybrid plans predicted and measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.bench.elastic.report import ASKED_P50_US, ASKED_P95_US, Results
from tests.bench.figures import Spread
from tests.bench.machine import Machine
from tests.bench.pictures import panels, save


def draw(machine: Machine, results: Results, path: Path) -> Path:
    """Write the picture; returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure, (pauses, dollars, plans) = panels(3, (15, 4.8))
    _pauses(pauses, results)
    _dollars(dollars, results)
    _plans(plans, results)
    return save(figure, machine.line, path)


def _pauses(axes: Any, results: Results) -> None:
    kinds = list(dict.fromkeys((one.before, one.after) for one in results.changes))
    for place, kind in enumerate(kinds):
        values = [one.pause_us / 1e6 for one in results.changes if (one.before, one.after) == kind]
        axes.scatter([place] * len(values), values, s=14, color="C0")
    for us, name in ((ASKED_P50_US, "asked, p50"), (ASKED_P95_US, "asked, p95")):
        axes.axhline(us / 1e6, color="grey", linewidth=0.8, linestyle="--")
        axes.text(0, us / 1e6, name, fontsize=7, va="bottom")
    axes.set_xticks(range(len(kinds)), [f"{before} to {after}" for before, after in kinds])
    axes.set(title="pause of each change of workers", ylabel="s", ylim=(0, None))


def _dollars(axes: Any, results: Results) -> None:
    for place, run in enumerate(results.runs):
        axes.scatter([run.wall_s], [run.samples_per_usd], color=f"C{place}", label=run.name)
        axes.scatter([run.wall_s], [run.samples_per_stepping_usd], color=f"C{place}", marker="^")
    axes.set(title="samples per dollar (triangles: of steps alone)", xlabel="seconds of the whole job")
    if results.runs:
        axes.legend(fontsize=8)
        axes.set(ylim=(0, None), xlim=(0, None))


def _plans(axes: Any, results: Results) -> None:
    for place, one in enumerate(results.plans):
        spread = Spread.of([us / 1e6 for us in one.took_us])
        range_s = [[spread.median - spread.least], [spread.most - spread.median]]
        own, predicted = ("measured", "predicted") if place == 0 else (None, None)
        axes.bar(place - 0.2, spread.median, 0.4, yerr=range_s, color="C0", label=own)
        axes.bar(place + 0.2, one.plan.step_ms / 1e3, 0.4, color="C1", label=predicted)
    axes.set_xticks(range(len(results.plans)), [one.name for one in results.plans], fontsize=8)
    axes.set(title="a step, by stages x replicas", ylabel="s")
    if results.plans:
        axes.legend(fontsize=8)

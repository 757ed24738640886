"""The interleaving benchmark's runs as tables, JSON and pictures of the phases over time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from tests.bench.figures import Spread
from tests.bench.interleave.figures import BUSY_LOAD, Run, ratios
from tests.bench.interleave.plan import ALONE, UPLINK_BITS_PER_S, Load
from tests.bench.machine import Machine
from tests.bench.pictures import panels, save

_HEADS: Final = ("column", "run", "iteration", "/ alone", "sending", "longest", "overlap", "load average", "")
_SHOWN_S: Final = 45.0
"""Of each run in the picture."""


def table(machine: Machine, loads: Sequence[Load], runs: Sequence[Run], notes: Sequence[str]) -> str:
    """Every run, and below it each column's median and range."""
    lines = [
        machine.line,
        "last third of each run's iterations; / alone: mean iteration over that of the same round's",
    ]
    lines += [f"* begun at a load average above {BUSY_LOAD:g}; ! does not count, with the reason"]
    for load in loads:
        mine = [run for run in runs if run.load == load.name]
        rows = [list(_HEADS), *(_run_row(run, mine, load) for run in mine)]
        widths = [max(len(row[place]) for row in rows) for place in range(len(_HEADS))]
        lines += ["", load.description]
        lines += [
            "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
        ]
        lines += ["", *_median_lines(mine)]
    return "\n".join([*lines, "", *notes])


def _run_row(run: Run, beside: Sequence[Run], load: Load) -> list[str]:
    average = f"{run.load_average:.1f}{'*' if run.began_busy else ' '}"
    if not run.counts:
        return [run.column, str(run.round), *["-"] * 5, average, "! " + "; ".join(run.problems or ["it has no lines"])]
    alone = next((one.iteration_s for one in beside if one.counts and (one.column, one.round) == (ALONE, run.round)), 0)
    ratio = f"{run.iteration_s / alone:.3f}" if alone else "-"
    also = f"bulk flow: {run.bulk_share(UPLINK_BITS_PER_S):.2f} of an equal share" if load.bulk and run.bulk else ""
    if load.change_at and run.learned:
        also = f"learned {', '.join(f'{share:.2f}' for share in run.learned)} of the jobs' bytes"
    times = [f"{run.iteration_s:.3f} s", ratio, f"{run.sending_s:.3f} s", f"{run.worst_s:.3f} s"]
    return [run.column, str(run.round), *times, f"{run.overlap:.1%}", average, also]


def _median_lines(runs: Sequence[Run]) -> list[str]:
    lines = []
    for (_, column), found in ratios(runs, ALONE).items():
        mine = [run for run in runs if run.counts and run.column == column]
        busy = sum(run.began_busy for run in mine)
        seconds, shared = Spread.of([run.iteration_s for run in mine]), Spread.of([100 * run.overlap for run in mine])
        lines.append(
            f"  {column:<16} iteration {seconds.text(3)} s, / alone {Spread.of(found).text(3)}, "
            f"overlap {shared.text(1)} %, {len(mine)} runs{f', {busy} of them *' if busy else ''}"
        )
    return lines


def as_json(machine: Machine, loads: Sequence[Load], runs: Sequence[Run], notes: Sequence[str]) -> dict[str, Any]:
    """Every iteration of every run, and the tables of the page."""
    return {
        "machine": machine.as_dict(),
        "loads": {load.name: load.description for load in loads},
        "runs": [run.as_dict() for run in runs],
        "notes": list(notes),
        "tables": {"ratios": _page_table(machine, loads, runs)},
    }


def _page_table(machine: Machine, loads: Sequence[Load], runs: Sequence[Run]) -> dict[str, Any]:
    found = ratios(runs, ALONE)
    columns = list(dict.fromkeys(column for _, column in found if column != ALONE))
    rows = [
        [
            load.name,
            *(Spread.of(found[load.name, name]).brief() if (load.name, name) in found else "-" for name in columns),
        ]
        for load in loads
    ]
    return {"machine": machine.line, "columns": ["iteration over alone, median (range)", *columns], "rows": rows}


def draw(machine: Machine, load: Load, runs: Sequence[Run], path: Path) -> Path:
    """When each job sent, for one run of each column, and every run's mean iteration over alone."""
    mine = [run for run in runs if run.load == load.name and run.counts]
    first = {run.column: run for run in reversed(mine)}
    shown = [first[name] for name in dict.fromkeys(run.column for run in mine)]
    figure, (phases, points) = panels(2, (13, 1.2 + 0.32 * sum(len(run.jobs) for run in shown)), width_ratios=(3, 1))
    _draw_phases(phases, shown)
    found = ratios(mine, ALONE)
    names = [run.column for run in shown if run.column != ALONE]
    for place, name in enumerate(names):
        values = found.get((load.name, name), [])
        points.plot(values, [place] * len(values), "o", alpha=0.6)
    points.axvline(1.0, color="grey", linestyle=":")
    points.set(title="mean iteration / alone, each run", yticks=range(len(names)), yticklabels=names)
    points.invert_yaxis()
    return save(figure, f"{load.description}\n{machine.line}", path)


def _draw_phases(axes: Any, runs: Sequence[Run]) -> None:
    place, ticks = 0.0, {}
    for run in runs:
        begin_s = min(job[0].begin_s for job in run.jobs)
        for number, job in enumerate(run.jobs):
            bars = [(one.sending_s - begin_s, one.end_s - one.sending_s) for one in job]
            axes.broken_barh(bars, (place, 0.8), facecolors=f"C{number}")
            ticks[place + 0.4] = f"{run.column}, job {number + 1}"
            place += 1
        place += 0.4
    longest_s = max((job[-1].end_s - job[0].begin_s for run in runs for job in run.jobs), default=math.nan)
    axes.set(title="sending phases", xlabel="seconds", yticks=list(ticks), yticklabels=list(ticks.values()))
    axes.set_xlim(0, min(_SHOWN_S, longest_s))
    axes.invert_yaxis()

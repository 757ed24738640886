"""Pictures of simulations: how completion times are distributed, and how many slots each run used over time."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl

mpl.use("Agg")

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from services.scheduler.core.simulation import Run

_STYLE: Final[dict[Any, Any]] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "savefig.facecolor": "white",
}
# Okabe and Ito's colours, which people with any colour vision can tell apart; dashes tell those apart that share one.
_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000", "#999999")
_HOUR_S: Final = 3_600.0


def draw(runs: Mapping[str, Run], caption: str, file: Path) -> None:
    """Write a PNG with both, of each policy's run.

    Raises:
        OSError: the file cannot be written.
    """
    with plt.rc_context(_STYLE):
        figure, (cdf, use) = plt.subplots(1, 2, figsize=(12, 4.6), layout="constrained")
        for colour, (name, run) in zip(_COLOURS * len(runs), runs.items(), strict=False):
            _completions(cdf, name, run, colour)
            _slots(use, name, run, colour)
        cdf.set(xscale="log", xlabel="job completion time, s", ylabel="share of jobs", ylim=(0, 1))
        use.set(
            xlabel="hours since the first submission", ylabel="slots in use, mean of a 60th of the run", ylim=(0, None)
        )
        cdf.legend(frameon=False)
        figure.suptitle(caption)
        try:
            figure.savefig(file, dpi=110)
        finally:
            plt.close(figure)


def draw_beside(runs: Mapping[str, Run], caption: str, file: Path) -> None:
    """Write a PNG: completion times of each run, and below that who ran when, run beside run.

    Raises:
        OSError: the file cannot be written.
    """
    rows = timeline_rows(runs)
    with plt.rc_context(_STYLE):
        figure = plt.figure(figsize=(12, 9), layout="constrained")
        halves: Any = figure.subfigures(2, 1, height_ratios=(1, 1.5))
        above, below = halves
        cdf = above.subplots()
        for colour, (name, run) in zip(_COLOURS, runs.items(), strict=False):
            _completions(cdf, name, run, colour)
        cdf.set(xlabel="job completion time, s", ylabel="share of jobs", ylim=(0, 1))
        cdf.legend(frameon=False)
        timelines = below.subplots(1, len(runs), sharex=True, sharey=True, squeeze=False)[0]
        for axes, colour, (name, run) in zip(timelines, _COLOURS, runs.items(), strict=False):
            for span in run.spans:
                axes.barh(rows[span.job], span.end_s - span.begin_s, left=span.begin_s, height=0.8, color=colour)
            axes.set(title=name, xlabel="seconds since the first submission", yticks=[])
        figure.suptitle(caption)
        try:
            figure.savefig(file, dpi=110)
        finally:
            plt.close(figure)


def timeline_rows(runs: Mapping[str, Run]) -> dict[str, int]:
    """The row of each job, the same in all runs: the first that started in the first run is on top."""
    jobs = dict.fromkeys(span.job for run in runs.values() for span in sorted(run.spans, key=lambda one: one.begin_s))
    return {job: len(jobs) - place for place, job in enumerate(jobs)}


def _completions(axes: Axes, name: str, run: Run, colour: str) -> None:
    times = np.sort([max(each.completion_s, 1.0) for each in run.ended])
    axes.plot(times, np.arange(1, len(times) + 1) / len(times), color=colour, label=name)


def _slots(axes: Axes, name: str, run: Run, colour: str) -> None:
    hours, slots = mean_slots_in_use(run)
    axes.plot(hours, slots, color=colour, label=name)


def mean_slots_in_use(run: Run, parts: int = 60) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Slots in use, each the mean of an equal part of the run; and the middle of that part, hours since its begin."""
    begin_s, end_s = min(span.begin_s for span in run.spans), max(span.end_s for span in run.spans)
    edges = np.linspace(begin_s, end_s, parts + 1)
    used = np.zeros(parts)
    for span in run.spans:
        overlap_s = np.minimum(edges[1:], span.end_s) - np.maximum(edges[:-1], span.begin_s)
        used += np.maximum(overlap_s, 0.0) * len(span.nodes) * span.slots_per_worker
    width_s = max((end_s - begin_s) / parts, 1e-9)
    return ((edges[1:] + edges[:-1]) / 2 - begin_s) / _HOUR_S, used / width_s

"""The picture of time against cost: every configuration of the answer with its interval, and the front."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl
import numpy as np

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from schemas.predictions import ConfigurationPrediction, Estimate
from services.cli.advise.view import configuration_name, dollars, heading, interval_coverage, price_of, seconds

if TYPE_CHECKING:
    from services.cli.advise.query import Answer

# Okabe and Ito's colours, which people with any colour vision can tell apart.
FORMATS: Final = frozenset(FigureCanvasBase.get_supported_filetypes())
"""Endings of file names that can be drawn."""
_FRONT_COLOUR: Final = "#0072B2"
_OTHER_COLOUR: Final = "#999999"
_MEASURED_COLOUR: Final = "#D55E00"
_LABELS: Final = 8
_LEAST_TICKS: Final = 3
_MOST_TICKS: Final = 8
_ROUND_TIMES_S: Final = (
    *(step * 10.0**power for power in range(-2, 1) for step in (1, 2, 5)),
    10.0,
    20.0,
    30.0,
    *(60.0 * minutes for minutes in (1, 2, 5, 10, 20, 30)),
    *(3_600.0 * hours for hours in (1, 2, 4, 8, 12)),
    *(86_400.0 * days for days in (1, 2, 5, 10, 20, 50, 100)),
)
_ROUND_DOLLARS: Final = tuple(step * 10.0**power for power in range(-7, 7) for step in (1, 2, 5))
_STYLE: Final[dict[Any, Any]] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "savefig.facecolor": "white",
}


def draw_front(answer: Answer, path: Path) -> bool:
    """Write a PNG; False where there is nothing to draw."""
    reply = answer.reply
    front = _points_of(reply.pareto, answer)
    others = _points_of([one for one in reply.ranked if not one.pareto], answer)
    if not front and not others:
        return False
    with plt.rc_context(_STYLE):
        figure, axes = plt.subplots(figsize=(8.0, 5.6), layout="constrained")
        _draw_points(axes, others, _OTHER_COLOUR, "ranked")
        _draw_points(axes, front, _FRONT_COLOUR, "on the front")
        if line := sorted((one.time_s.median, one.cost.median) for one in front):
            axes.step(*zip(*line, strict=True), where="post", color=_FRONT_COLOUR, linewidth=1.0, alpha=0.5)
        _label(axes, front)
        if answer.measured is not None:
            _measured(axes, answer)
        axes.set_xscale("log")
        axes.set_yscale("log")
        _ticks(axes.xaxis, axes.get_xlim(), _ROUND_TIMES_S, seconds)
        _ticks(axes.yaxis, axes.get_ylim(), _ROUND_DOLLARS, dollars)
        axes.set_xlabel("; ".join(filter(None, ["time", interval_coverage(reply)])))
        axes.set_ylabel("cost on spot machines" if answer.spot else "cost")
        axes.set_title(heading(reply).replace("; ", "\n", 1), fontsize=9, loc="left")
        axes.legend(frameon=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=130)
        plt.close(figure)
    return True


def _ticks(axis: Axis, ends: tuple[float, float], round_values: Sequence[float], show: Callable[[float], str]) -> None:
    """Ticks at round values; where fewer than three are in sight, at even distances."""
    ticks = [value for value in round_values if ends[0] <= value <= ends[1]]
    if len(ticks) < _LEAST_TICKS:
        ticks = np.geomspace(*ends, _LEAST_TICKS + 2)[1:-1].tolist()
    axis.set_major_locator(FixedLocator(ticks[:: -(-len(ticks) // _MOST_TICKS)]))
    axis.set_major_formatter(FuncFormatter(lambda value, _: show(value)))
    axis.set_minor_locator(NullLocator())


@dataclass(frozen=True, slots=True)
class _Point:
    name: str
    time_s: Estimate
    cost: Estimate


def _points_of(found: Sequence[ConfigurationPrediction], answer: Answer) -> list[_Point]:
    return [
        _Point(configuration_name(one.configuration), one.time_s, cost)
        for one in found
        if (cost := price_of(one, answer)) is not None and cost.low > 0 and one.time_s.low > 0
    ]


def _draw_points(axes: Axes, found: list[_Point], colour: str, label: str) -> None:
    if not found:
        return
    wide, high = (
        [[one.median - one.low for one in each], [one.high - one.median for one in each]]
        for each in ([one.time_s for one in found], [one.cost for one in found])
    )
    axes.errorbar(
        [one.time_s.median for one in found],
        [one.cost.median for one in found],
        xerr=wide,
        yerr=high,
        fmt="o",
        markersize=5,
        color=colour,
        ecolor=colour,
        elinewidth=0.7,
        alpha=0.8,
        label=label,
    )


def _label(axes: Axes, front: list[_Point]) -> None:
    for one in front[:: max(1, -(-len(front) // _LABELS))]:
        place = (one.time_s.median, one.cost.median)
        axes.annotate(one.name, place, xytext=(5, 5), textcoords="offset points", fontsize=8)


def _measured(axes: Axes, answer: Answer) -> None:
    """What the same configurations really took."""
    assert answer.measured is not None
    times, costs = answer.measured.time_s, answer.measured.cost_usd
    names = {configuration_name(one.configuration) for one in (*answer.reply.ranked, *answer.reply.pareto)}
    shown = sorted(name for name in names if name in times and name in costs)
    axes.plot(
        [times[name] for name in shown], [costs[name] for name in shown], "x", color=_MEASURED_COLOUR, label="measured"
    )

"""The picture of time against cost: every configuration of the answer with its interval, and the front."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from schemas.predictions import ConfigurationPrediction
from services.cli.advise_view import configuration_name, heading

if TYPE_CHECKING:
    from services.cli.advise import Answer

# Okabe and Ito's colours, which people with any colour vision can tell apart.
_FRONT_COLOUR: Final = "#0072B2"
_OTHER_COLOUR: Final = "#999999"
_MEASURED_COLOUR: Final = "#D55E00"
_LABELS: Final = 8
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
    front = [one for one in reply.pareto if one.cost_usd is not None]
    others = [one for one in reply.ranked if one.cost_usd is not None and not one.pareto]
    if not front and not others:
        return False
    with plt.rc_context(_STYLE):
        figure, axes = plt.subplots(figsize=(8.0, 5.6), layout="constrained")
        _points(axes, others, _OTHER_COLOUR, "ranked")
        _points(axes, front, _FRONT_COLOUR, "front")
        line = sorted((one.time_s.median, one.cost_usd.median) for one in front if one.cost_usd is not None)
        if line:
            axes.step(*zip(*line, strict=True), where="post", color=_FRONT_COLOUR, linewidth=1.0, alpha=0.5)
        _label(axes, front)
        if answer.measured is not None:
            _measured(axes, answer)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel(f"time (s), intervals of {reply.level:.0%}")
        axes.set_ylabel("cost (dollars)")
        axes.set_title(heading(reply), fontsize=8, loc="left")
        axes.legend(frameon=False)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=130)
        plt.close(figure)
    return True


def _points(axes: Axes, found: list[ConfigurationPrediction], colour: str, label: str) -> None:
    known = [(one.time_s, one.cost_usd) for one in found if one.cost_usd is not None]
    if not known:
        return
    across = [time_s.median for time_s, _ in known]
    up = [cost.median for _, cost in known]
    wide = [[t.median - t.low for t, _ in known], [t.high - t.median for t, _ in known]]
    high = [[c.median - c.low for _, c in known], [c.high - c.median for _, c in known]]
    axes.errorbar(
        across, up, xerr=wide, yerr=high, fmt="o", markersize=5, color=colour, ecolor=colour, elinewidth=0.7,
        alpha=0.8, label=label,
    )  # fmt: skip


def _label(axes: Axes, front: list[ConfigurationPrediction]) -> None:
    step = max(1, -(-len(front) // _LABELS))
    for one in front[::step]:
        if one.cost_usd is not None:
            place = (one.time_s.median, one.cost_usd.median)
            name = configuration_name(one.configuration)
            axes.annotate(name, place, xytext=(5, 5), textcoords="offset points", fontsize=8)


def _measured(axes: Axes, answer: Answer) -> None:
    """What the same configurations really took."""
    assert answer.measured is not None
    times, costs = answer.measured.time_s, answer.measured.cost_usd
    names = {configuration_name(one.configuration) for one in (*answer.reply.ranked, *answer.reply.pareto)}
    shown = sorted(name for name in names if name in times and name in costs)
    axes.plot(
        [times[name] for name in shown], [costs[name] for name in shown], "x", color=_MEASURED_COLOUR, label="measured"
    )

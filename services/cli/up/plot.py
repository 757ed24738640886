"""The picture of limit against usage over time, per container, after the thesis' Figure 2.2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from services.cli.up.recording import AppRecording, Timeline

COLUMNS: Final = 3
MAX_CONTAINERS: Final = 12
_MIB: Final = 1 << 20
# Okabe and Ito's colours, which people with any colour vision can tell apart.
_USAGE_COLOUR: Final = "#56B4E9"
_LIMIT_COLOUR: Final = "#D55E00"
_STATIC_COLOUR: Final = "#444444"
_STYLE: Final[dict[Any, Any]] = {
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "savefig.facecolor": "white",
}


@dataclass(frozen=True, slots=True)
class StaticLimits:
    """What every container would keep without Turnbuckle: equations 2.1 and 2.2."""

    quota_us: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class _Band:
    """One panel's series, in the panel's unit."""

    seconds: list[float]
    usage: list[float]
    limit: list[float]
    static: float
    unit: str


def draw(recording: AppRecording, static: StaticLimits, caption: str, file: Path) -> Path | None:
    """Write a PNG with a CPU and a memory panel for each container; the busiest ones if there are too many.

    Returns:
        The file, or None when nothing was recorded.
    """
    chosen = _choose(recording.timelines)
    if not chosen:
        return None
    columns = min(COLUMNS, len(chosen))
    blocks = -(-len(chosen) // columns)
    height = 3.9 * blocks + 0.9
    with plt.rc_context(_STYLE):
        figure = plt.figure(figsize=(4.4 * columns, height))
        top, bottom = 1 - 1.0 / height, 0.55 / height
        grid = figure.add_gridspec(
            blocks, columns, top=top, bottom=bottom, left=0.06, right=0.99, hspace=0.28, wspace=0.17
        )
        for position, (name, timeline) in enumerate(chosen):
            cell = grid[position // columns, position % columns].subgridspec(2, 1, hspace=0.12)
            cpu = figure.add_subplot(cell[0])
            memory = figure.add_subplot(cell[1], sharex=cpu)
            _draw_container(cpu, memory, timeline, recording.period_us, static)
            cpu.set_title(name, loc="left")
            cpu.tick_params(labelbottom=False)
            if position % columns == 0:
                cpu.set_ylabel("CPU (cores)")
                memory.set_ylabel("memory (MiB)")
            if position + columns >= len(chosen):
                memory.set_xlabel("time (s)")
        _write_head(figure, caption)
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, dpi=110)
        plt.close(figure)
    return file


def _choose(timelines: Mapping[str, Timeline]) -> list[tuple[str, Timeline]]:
    busiest = sorted(timelines.items(), key=lambda item: -sum(item[1].used_us))[:MAX_CONTAINERS]
    return sorted(busiest)


def _draw_container(cpu: Axes, memory: Axes, timeline: Timeline, period_us: int, static: StaticLimits) -> None:
    seconds = [time_ns / 1e9 for time_ns in timeline.time_ns]
    _draw_band(
        cpu,
        _Band(
            seconds,
            [used / period_us for used in timeline.used_us],
            [_or_gap(quota, period_us) for quota in timeline.quota_us],
            static.quota_us / period_us,
            "cores",
        ),
    )
    _draw_band(
        memory,
        _Band(
            seconds,
            [usage / _MIB for usage in timeline.memory_usage_bytes],
            [_or_gap(limit, _MIB) for limit in timeline.memory_limit_bytes],
            static.memory_bytes / _MIB,
            "MiB",
        ),
    )


def _or_gap(value: float, unit: float) -> float:
    """An unlimited value is a gap in the line."""
    return value / unit if value >= 0 else float("nan")


def _draw_band(axes: Axes, band: _Band) -> None:
    # A sample tells what was used since the one before, and which limit holds from now on.
    axes.fill_between(band.seconds, band.usage, step="pre", color=_USAGE_COLOUR, alpha=0.75, linewidth=0, label="used")
    axes.step(band.seconds, band.limit, where="post", color=_LIMIT_COLOUR, linewidth=1.4, label="limit (Turnbuckle)")
    axes.axhline(
        band.static, color=_STATIC_COLOUR, linestyle=(0, (5, 4)), linewidth=1.1, label="static limit (eq. 2.1, 2.2)"
    )
    shown = [value for value in (*band.usage, *band.limit, band.static) if value == value]  # noqa: PLR0124 - not NaN
    axes.set_ylim(0, max(shown, default=1.0) * 1.12 or 1.0)
    axes.margins(x=0)
    axes.yaxis.set_major_locator(MaxNLocator(4))


def _write_head(figure: Figure, caption: str) -> None:
    height = figure.get_size_inches()[1]
    figure.suptitle(caption, x=0.01, y=1 - 0.1 / height, ha="left", va="top", fontsize=12)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="upper left", bbox_to_anchor=(0.005, 1 - 0.4 / height), ncols=len(labels), frameon=False
    )

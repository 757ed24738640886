"""Pictures of the training job: accuracy over time (thesis figure 3.5) and iteration times (figure 3.6)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.ticker import NullFormatter

from tests.bench.pictures import panels, save
from tests.bench.thorn_job_report import JobResult


def draw(results: Sequence[JobResult], caption: str, directory: Path) -> list[Path]:
    """Write both pictures into a directory; returns their paths."""
    written = []
    for name, fill in (("accuracy", _draw_accuracy), ("iterations", _draw_iterations)):
        figure, axes = panels(1, (8, 4.5))
        fill(axes, results)
        written.append(save(figure, caption, directory / f"thorn_job_{name}.png", 7))
    return written


def _draw_accuracy(axes: Any, results: Sequence[JobResult]) -> None:
    for number, result in enumerate(results):
        label = f"{result.name} ({len(result.faults)} faults, {result.restarts} restarts)"
        times = [0.0, *(t for t, _ in result.accuracy), result.total_s]
        shares = [0.0, *(share for _, share in result.accuracy)]
        # A step holds until the next evaluation: time that a restart takes shows as it is, without progress.
        axes.plot(times, [*shares, shares[-1]], drawstyle="steps-post", label=label, color=f"C{number}")
        row = -0.02 * (number + 1)
        for _, since, until in result.faults:
            axes.plot([since, until], [row, row], color=f"C{number}", linewidth=3, solid_capstyle="butt")
    axes.set(xlabel="s since the job was started (bars: a port is down)", ylabel="accuracy on held-out images")
    axes.set(ylim=(-0.02 * (len(results) + 2), 1.0), yticks=[0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    axes.legend(fontsize=8)


def _draw_iterations(axes: Any, results: Sequence[JobResult]) -> None:
    for result in results:
        values = sorted(result.iteration_ms)
        if values:
            axes.plot(values, [(rank + 1) / len(values) for rank in range(len(values))], label=result.name)
    axes.set(xlabel="ms per iteration", ylabel="share of iterations", xscale="log")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.legend(fontsize=8)

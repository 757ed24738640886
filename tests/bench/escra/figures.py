"""Figures of the comparison: slack CDFs, latency against slack, limits against use over time."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from schemas.apps import PERIOD_US
from tests.bench.escra.judgement import DEFAULT_POLICY, front, point
from tests.bench.escra.metrics import MIB, total_limits, total_used_us
from tests.bench.escra.plan import BATCH_LOAD, LIMITS, Limit
from tests.bench.escra.policies import POLICIES, parse
from tests.bench.escra.results import CellResult, Pooled, Results
from tests.bench.escra.store import Store
from tests.bench.pictures import panels, save

_TRACED: Final = ("static-1.5", "autopilot-1s", "captain-0.1", "escra", "waterfill")
_MARKERS: Final = {"static": "s", "autopilot": "^", "vpa": "v", "captain": "D", "escra": "o", "waterfill": "*"}
_COLOURS: Final = {
    "none": "black",
    "static": "tab:grey",
    "autopilot": "tab:orange",
    "vpa": "tab:brown",
    "captain": "tab:blue",
    "escra": "tab:green",
    "waterfill": "tab:red",
}


def draw(results: Results, store: Store, directory: Path) -> list[Path]:
    """Everything that there is something to draw of; returns what was written."""
    written = []
    for limit in LIMITS:
        if results.pairs(limit):
            written += [_pareto(results, limit, directory / f"pareto-{limit}.png")]
            written += [_slack(results, limit, directory / f"slack-{limit}.png")]
    for pair in (*results.pairs("ample"), *results.pairs("ample", batches=True)):
        if path := _traces(results, store, pair, directory):
            written.append(path)
    return written


def _pareto(results: Results, limit: Limit, path: Path) -> Path:
    """Every policy a point, and the front of those that nobody beats in both."""
    figure, (axes, memory) = panels(2, (13, 5.6))
    points = {name: point(results, limit, name) for name in results.policies(limit) if parse(name).limited}
    points = {name: value for name, value in points.items() if np.isfinite(value).all()}
    for name, (slack, latency) in points.items():
        _mark(axes, name, slack, latency)
        held = results.memory_slack_mib(limit, name, 50)
        if np.isfinite(held):
            _mark(memory, name, held, latency)
    best = [points[name] for name in front(points)]
    if best:
        axes.step(
            *zip(*best, strict=True),
            where="post",
            color="tab:red",
            alpha=0.4,
            linewidth=1,
            label="nobody better in both",
        )
        axes.legend(fontsize=7)
    for each in (axes, memory):
        each.axhline(1.0, color="black", linestyle=":", linewidth=0.8)
        each.set(yscale="log", ylabel="p99.9 over that of no limits (geometric mean over pairs)")
        each.grid(alpha=0.25, which="both")
    axes.set(xlabel="median CPU slack, cores (mean over pairs)")
    memory.set(xlabel="median memory slack, MiB (mean over pairs)")
    count = len(results.pairs(limit))
    return save(
        figure,
        f"{limit} limit, {count} pairs of application and load; below and left is better. {results.machine.line}",
        path,
    )


def _mark(axes: Any, name: str, x: float, y: float) -> None:
    family = parse(name).family
    axes.plot(
        x, y, marker=_MARKERS.get(family, "x"), color=_COLOURS[family], markersize=11 if name == DEFAULT_POLICY else 7
    )
    axes.annotate(name, (x, y), textcoords="offset points", xytext=(6, 4), fontsize=7)


def _slack(results: Results, limit: Limit, path: Path) -> Path:
    """CDFs of CPU and memory slack over all container-periods of all pairs."""
    figure, (cpu, memory) = panels(2, (13, 5))
    for name in results.policies(limit):
        if not parse(name).limited:
            continue
        cells = [cell for one in results.of_policy(limit, name) for cell in one.cells]
        _cdf(cpu, name, [cell.cpu_slack_us / PERIOD_US for cell in cells])
        _cdf(memory, name, [cell.memory_slack_bytes / MIB for cell in cells])
    cpu.set(xlabel="CPU slack (limit - use), cores", ylabel="share of container-periods", xlim=(-0.01, None))
    memory.set(xlabel="memory slack (limit - use), MiB", xlim=(0, None))
    cpu.legend(fontsize=7, loc="lower right")
    for each in (cpu, memory):
        each.grid(alpha=0.25)
    return save(figure, f"Slack, {limit} limit, all pairs of application and load. {results.machine.line}", path)


def _cdf(axes: Any, name: str, parts: list[np.ndarray[Any, Any]]) -> None:
    values = np.sort(np.concatenate(parts)) if parts else np.zeros(0)
    if not len(values):
        return
    kept = np.linspace(0, len(values) - 1, min(len(values), 1_000)).astype(np.int64)
    family = parse(name).family
    same = [other for other in POLICIES if POLICIES[other].family == family]
    style = ("-", "--", "-.", ":")[same.index(name) % 4 if name in same else 0]
    axes.plot(
        values[kept], (kept + 1) / len(values), label=name, color=_COLOURS[family], linestyle=style, linewidth=1.3
    )


def _traces(results: Results, store: Store, pair: str, directory: Path) -> Path | None:
    """Sum of limits and use over the first repetition's window, policy by policy."""
    shown = [name for name in _TRACED if (pair, "ample", name) in results.pooled]
    if not shown:
        return None
    figure, axes = panels(len(shown), (3.4 * len(shown), 3.6), sharey=True, squeeze=False)
    cells = [_first(results.pooled[pair, "ample", name]) for name in shown]
    for each, name, cell in zip(axes[0], shown, cells, strict=True):
        _trace(each, name, cell, store)
    axes[0][0].set_ylabel("cores, all containers")
    axes[0][0].legend(fontsize=7)
    app, _, load = pair.partition("/")
    what = "a batch" if load == BATCH_LOAD else load
    caption = f"{app}, {what}, ample limit: sum of CPU limits and use, one repetition. {results.machine.line}"
    return save(figure, caption, directory / f"trace-{app}-{load}.png")


def _first(pooled: Pooled) -> CellResult:
    return min(pooled.cells, key=lambda one: one.cell.repetition)


def _trace(axes: Any, name: str, result: CellResult, store: Store) -> None:
    recording = store.recording(result.cell)
    if not len(recording.time_ns):
        return
    seconds = (recording.time_ns - recording.time_ns[0]) / 1e9
    limits = total_limits(recording, "quota_us") / PERIOD_US
    limits[limits < 0] = np.nan
    axes.step(seconds, limits, where="post", color=_COLOURS[parse(name).family], label="sum of limits")
    axes.fill_between(
        seconds, total_used_us(recording) / PERIOD_US, step="post", color="tab:grey", alpha=0.5, label="use"
    )
    axes.axhline(
        result.record["limits"]["cpu_cores"], color="black", linestyle=":", linewidth=0.8, label="application's limit"
    )
    axes.set(title=name, xlabel="s", ylim=(0, None))
    axes.title.set_fontsize(9)

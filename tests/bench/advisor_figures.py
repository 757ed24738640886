"""The advisor's benchmark as pictures, after the thesis' Figures 4.4 to 4.8."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from tests.bench.advisor_models import MEAN_RANKING
from tests.bench.advisor_report import Part, per_task, regrets_by_task, select
from tests.bench.advisor_runs import LEFT_OUT, RANDOM, SEARCH
from tests.bench.evaluation import metrics
from tests.bench.pictures import panels, save

UNITS: Final = {"time": "training time (s)", "cost": "cost ($)"}
_DRAWN: Final = ("gp", "thesis", "boosting", "random forest", "forest classifier", "linear", MEAN_RANKING)
"""Those that are drawn where a picture has room for few, in this order."""

_RATIOS: Final = (1, 1.1, 1.2, 1.5, 2, 3, 5, 10, 20, 50, 100, 200, 500, 1000)


def drawn(parts: Mapping[str, Part], most: int) -> dict[str, Part]:
    """Few models, the important ones first."""
    known = [name for name in _DRAWN if name in parts] + [name for name in parts if name not in _DRAWN]
    return {name: parts[name] for name in known[:most]}


def _first(part: Part) -> tuple[Any, Any]:
    """Truth and prediction of the first random split."""
    answer = part["answers"][0]
    actual = np.array(answer["values"], dtype=np.float64)
    predicted = np.array([np.nan if one is None else one for one in answer.get("predicted", ())], dtype=np.float64)
    return (actual, predicted) if len(predicted) else (np.zeros(0), np.zeros(0))


def _axes(count: int, width: float = 4.0, height: float = 3.8) -> tuple[Any, list[Any]]:
    figure, axes = panels(count, (width * count, height), squeeze=False)
    return figure, list(axes[0])


def confusion_plots(parts: Mapping[str, Part], unit: str, caption: str, path: Path) -> Path:
    """Figure 4.5: predicted over true values of one random split, with y = x."""
    chosen = drawn(parts, 4)
    figure, axes = _axes(len(chosen))
    for axis, (name, part) in zip(axes, chosen.items(), strict=True):
        actual, predicted = _first(part)
        axis.loglog(actual, predicted, ".", markersize=3, alpha=0.5)
        ends = [actual.min(initial=np.inf), actual.max(initial=0.0)]
        axis.loglog(ends, ends, "k-", linewidth=0.8)
        axis.set(title=name, xlabel=f"true {unit}", ylabel=f"predicted {unit}")
    return save(figure, caption, path)


def error_cdfs(parts: Mapping[str, Part], unit: str, caption: str, path: Path) -> Path:
    """Figure 4.6: distribution of values and of absolute errors; beside it, of relative errors."""
    figure, (left, right) = _axes(2, 5.5)
    chosen = drawn(parts, 5)
    for at, (name, part) in enumerate(chosen.items()):
        actual, predicted = _first(part)
        if at == 0:
            _cdf(left, actual, "values", color="black", linestyle="--")
        known = np.isfinite(predicted)
        _cdf(left, np.abs(predicted - actual)[known], f"error, {name}")
        _cdf(right, metrics.relative_errors(actual[known], predicted[known]), name)
    left.set(xscale="log", xlabel=unit, ylabel="part of the jobs")
    right.set(xscale="log", xlabel="relative error", ylabel="part of the jobs")
    for axis in (left, right):
        axis.axhline(0.9, color="grey", linewidth=0.6)
        axis.legend(fontsize=7)
    return save(figure, caption, path)


def _ratio_ticks(axis: Any, least: float, most: float) -> None:
    """Ratios in words that are read at once, on a logarithmic axis (``axis.xaxis`` or ``axis.yaxis``)."""
    shown = [one for one in _RATIOS if least <= one <= most * 1.2 and (one != 1.1 or most < 3)]
    axis.set_ticks(shown, [f"{one:g}" for one in shown])
    axis.set_ticks([], minor=True)


def _cdf(axis: Any, values: Any, label: str, **options: Any) -> None:
    ordered = np.sort(values)
    axis.plot(ordered, np.arange(1, len(ordered) + 1) / max(len(ordered), 1), label=label, linewidth=1.2, **options)


def roc_curves(parts: Mapping[str, Part], _unit: str, caption: str, path: Path) -> Path:
    """Figure 4.7, but for every left-out task: the mean curve of each model and its least area."""
    figure, (axis,) = _axes(1, 5.5, 5.0)
    grid = np.linspace(0, 1, 201)
    for name, part in drawn(parts, 7).items():
        curves = []
        for answer in part["answers"]:
            labels = np.array(answer["labels"], dtype=bool)
            false, true = metrics.roc(labels, np.array(answer["scores"], dtype=np.float64))
            curves.append(np.interp(grid, false, true))
        areas = list(per_task(part, "auc").values())
        label = f"{name}: {np.nanmean(areas):.3f}, least {np.nanmin(areas):.3f}"
        axis.plot(grid, np.mean(curves, axis=0), label=label, linewidth=1.2)
    axis.plot([0, 1], [0, 1], "k:", linewidth=0.8)
    axis.set(xlabel="false positive rate", ylabel="true positive rate")
    axis.legend(fontsize=7, title="area: mean of tasks, least", title_fontsize=7)
    return save(figure, caption, path)


def regrets(parts: Mapping[str, Part], _unit: str, caption: str, path: Path) -> Path:
    """Chosen over best, one dot per left-out task."""
    ordered = sorted(parts.items(), key=lambda item: np.nanmean(list(per_task(item[1], "regret").values())))
    figure, (axis,) = _axes(1, 9.0, 0.35 * len(ordered) + 1.6)
    for row, (_, part) in enumerate(ordered):
        values = np.array(list(per_task(part, "regret").values()))
        axis.plot(values, np.full(len(values), row), "o", markersize=3, alpha=0.5)
        axis.plot([np.nanmean(values)], [row], "k|", markersize=14)
    axis.set_yticks(range(len(ordered)), [name for name, _ in ordered], fontsize=8)
    axis.invert_yaxis()
    axis.set(xscale="log", xlabel="chosen over best, per left-out task; bar: mean")
    worst = max(max(per_task(part, "regret").values()) for part in parts.values())
    _ratio_ticks(axis.xaxis, 1.0, worst)
    return save(figure, caption, path)


def search_curves(parts: Mapping[str, Part], _unit: str, caption: str, path: Path) -> Path:
    """Mean regret over the number of runs."""
    figure, (axis,) = _axes(1, 6.0, 4.0)
    for name, part in parts.items():
        most = max((len(one["regrets"]) for one in part["searches"]), default=0)
        counts = range(1, most + 1)
        axis.plot(counts, [np.mean(list(regrets_by_task(part, k).values())) for k in counts], ".-", label=name)
    axis.set(xlabel="runs of the left-out task", ylabel="chosen over best, mean of tasks", yscale="log")
    _ratio_ticks(axis.yaxis, *axis.get_ylim())
    axis.legend(fontsize=7)
    return save(figure, caption, path)


def loss_curves(parts: Mapping[str, Part], _unit: str, caption: str, path: Path) -> Path | None:
    """Figure 4.4: what models tell of their training, a panel for each of loss, R2 and RMSE; None where none does.

    Axes are linear, as in the thesis: a Poisson loss may be negative, and so may R2.
    """
    told = [
        (f"{model}: {kind}", curves)
        for model, part in parts.items()
        for kind, curves in _by_kind(part.get("curves", {})).items()
    ]
    if not told:
        return None
    figure, axes = _axes(len(told))
    for axis, (title, curves) in zip(axes, told, strict=True):
        for label, values in curves.items():
            axis.plot(range(1, len(values) + 1), np.array(values, dtype=np.float64), label=label, linewidth=1.0)
        axis.set(title=title, xlabel="epoch")
        axis.legend(fontsize=7)
    return save(figure, caption, path)


def _by_kind(curves: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Curves such as ``validation loss`` by their last word, and there by what is before it."""
    found: dict[str, dict[str, Any]] = {}
    for name, values in curves.items():
        rows, _, kind = name.rpartition(" ")
        found.setdefault(kind, {})[rows] = values
    return found


def importance_bars(parts: Mapping[str, Part], _unit: str, caption: str, path: Path) -> Path | None:
    """After Figure 4.8: the ten families that matter most; None where no model was asked."""
    told = {name: list(part["importance"].items())[:10] for name, part in parts.items() if part.get("importance")}
    if not told:
        return None
    figure, axes = _axes(len(told), 6.0)
    for axis, (name, found) in zip(axes, told.items(), strict=True):
        axis.barh([family for family, _ in found][::-1], [value for _, value in found][::-1])
        axis.tick_params(axis="y", labelsize=7)
        axis.set(title=name, xlabel="growth of the RMSE of logarithms when shuffled")
    return save(figure, caption, path)


_Draw = Callable[[Mapping[str, Part], str, str, Path], Path | None]
_PICTURES: Final[tuple[tuple[str, str, str, _Draw], ...]] = (
    (RANDOM, "confusion", "true and predicted, one random fifth", confusion_plots),
    (RANDOM, "error_cdf", "values and errors, one random fifth", error_cdfs),
    (RANDOM, "loss", "training", loss_curves),
    (RANDOM, "importance", "permutation importance, one random fifth", importance_bars),
    (LEFT_OUT, "roc", "top configurations of left-out tasks", roc_curves),
    (LEFT_OUT, "regret", "regret on left-out tasks", regrets),
    (SEARCH, "search", "left-out tasks with k runs", search_curves),
)


def draw(parts: Sequence[Part], machine: str, folder: Path) -> list[Path]:
    """All pictures that the parts allow; returns their paths."""
    written = []
    for data, objective in dict.fromkeys((one["set"], one["objective"]) for one in parts):
        for protocol, kind, title, picture in _PICTURES:
            chosen = select(parts, data, protocol, objective)
            caption = f"{data}, {objective}: {title}\n{machine}"
            path = folder / f"advisor_{data}_{objective}_{kind}.png"
            drawn_to = picture(chosen, UNITS[objective], caption, path) if chosen else None
            written += [drawn_to] if drawn_to else []
    return written

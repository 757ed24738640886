"""The advisor's benchmark as tables: parts in, lines out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from tests.bench.advisor_models import MEAN_RANKING
from tests.bench.advisor_runs import LEFT_OUT, RANDOM, SEARCH, SPEED, SPEED_QUESTIONS
from tests.bench.evaluation import metrics
from tests.bench.evaluation.measures import means

Part = Mapping[str, Any]
_PAIRED_SEARCHES: Final = ("bayesian", f"first of {MEAN_RANKING}")
_SHOWN_RUNS: Final = (1, 2, 3, 4, 5, 8)


def select(parts: Iterable[Part], data: str, protocol: str, objective: str) -> dict[str, Part]:
    """The parts of one table, by model."""
    return {
        one["model"]: one
        for one in parts
        if (one["set"], one["protocol"], one["objective"]) == (data, protocol, objective)
    }


def number(value: float | None, digits: int = 3) -> str:
    """Such as ``1.17``; a dash where there is none."""
    if value is None or not np.isfinite(value):
        return "-"
    return f"{value:.{digits}f}" if abs(value) < 1000 else f"{value:.3g}"


def per_task(part: Part, figure: str) -> dict[str, float]:
    """One figure by task, averaged over seeds; NaN where a task has none."""
    found: dict[str, list[float]] = {}
    for answer in part["answers"]:
        value = answer["figures"].get(figure)
        found.setdefault(answer["task"], []).append(np.nan if value is None else value)
    return {task: float(np.mean(values)) for task, values in found.items()}


def paired(ours: Mapping[str, float], other: Mapping[str, float]) -> metrics.Difference:
    """The difference over the tasks (or seeds) that both have."""
    tasks = sorted(ours.keys() & other.keys())
    return metrics.paired_difference(np.array([ours[one] for one in tasks]), np.array([other[one] for one in tasks]))


def difference_text(difference: metrics.Difference) -> str:
    """Such as ``-0.031 [-0.050, -0.012]*``; the star: the interval leaves 0 out."""
    if not np.isfinite(difference.low):
        return number(difference.mean)
    star = "*" if difference.significant else " "
    return f"{difference.mean:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}]{star}"


def whole_errors(part: Part) -> dict[str, float]:
    """Errors over all tasks' rows together."""
    answers = [one for one in part["answers"] if one.get("predicted")]
    if not answers:
        return {}
    return metrics.error_figures(_joined(answers, "values"), _joined(answers, "predicted"))


def _joined(answers: Sequence[Mapping[str, Any]], name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.array([np.nan if one is None else one for answer in answers for one in answer[name]], dtype=np.float64)


_ERRORS: Final = ("rmse", "rmse_over_mean", "r2", "median_ape", "p90_ape", "err90_over_val90")
_ERROR_HEAD: Final = f"{'RMSE':>10}{'/mean':>8}{'R2':>8}{'mdAPE':>8}{'p90APE':>8}{'e90/v90':>8}"


def _error_cells(figures: Mapping[str, float]) -> str:
    cells = [f"{number(figures.get('rmse')):>10}"]
    return "".join(cells + [f"{number(figures.get(name)):>8}" for name in _ERRORS[1:]])


def random_table(parts: Mapping[str, Part]) -> list[str]:
    """Protocol (i): means over seeds, and the range of RMSE/mean."""
    lines = [f"  {'model':<22}{_ERROR_HEAD}{'cover':>8}{'width':>8}   RMSE/mean, least-most; against boosting, paired"]
    rival = _by_seed(parts["boosting"]) if "boosting" in parts else {}
    for model, part in parts.items():
        figures = means([{name: _nan(value) for name, value in one["figures"].items()} for one in part["answers"]])
        by_seed = _by_seed(part)
        spread = f"{number(min(by_seed.values()))}-{number(max(by_seed.values()))}"
        against = "" if model == "boosting" or not rival else difference_text(paired(by_seed, rival))
        lines.append(
            f"  {model:<22}{_error_cells(figures)}{number(figures.get('coverage')):>8}"
            f"{number(figures.get('interval_width'), 2):>8}   {spread:<14}{against}"
        )
    return lines


def _by_seed(part: Part) -> dict[str, float]:
    return {str(one["seed"]): _nan(one["figures"].get("rmse_over_mean")) for one in part["answers"]}


def _nan(value: float | None) -> float:
    return float("nan") if value is None else value


def choice_table(parts: Mapping[str, Part]) -> list[str]:
    """Protocol (ii), choices: means over tasks, differences to mean ranking with 95 % intervals over tasks."""
    lines = [
        (
            f"  {'model':<22}{'regret':>8}{'  less that of mean ranking':<30}{'best-5':>8}"
            f"{'  less that of mean ranking':<30}{'AUC mean':>9}{'median':>8}{'least':>7}{'recall5':>8}{'FP@80':>7}"
            f"{'tuned recall':>13}{'tuned FP':>9}{'1st fails':>10}"
        )
    ]
    rival = parts.get(MEAN_RANKING)
    for model, part in parts.items():
        middle = {name: _mean(part, name) for name in _CHOICES}
        against = [
            ""
            if rival is None or model == MEAN_RANKING
            else difference_text(paired(per_task(part, name), per_task(rival, name)))
            for name in ("regret", "best_of_5")
        ]
        areas = np.array(list(per_task(part, "auc").values()))
        lines.append(
            f"  {model:<22}{number(middle['regret']):>8}  {against[0]:<28}{number(middle['best_of_5']):>8}"
            f"  {against[1]:<28}{number(middle['auc']):>9}{number(float(np.nanmedian(areas))):>8}"
            f"{number(float(np.nanmin(areas))):>7}{number(middle['recall_at_5']):>8}"
            f"{number(middle['false_positives_at_80'], 1):>7}{number(middle['tuned_recall']):>13}"
            f"{number(middle['tuned_false_positives'], 1):>9}{number(middle['first_fails'], 2):>10}"
        )
    return lines


_CHOICES: Final = (
    "regret",
    "best_of_5",
    "auc",
    "recall_at_5",
    "false_positives_at_80",
    "tuned_recall",
    "tuned_false_positives",
    "first_fails",
)


def _mean(part: Part, figure: str) -> float:
    """Over the tasks that have the figure; NaN where none has."""
    values = np.array(list(per_task(part, figure).values()))
    return float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")


def left_out_error_table(parts: Mapping[str, Part]) -> list[str]:
    """Protocol (ii), absolute predictions: over all rows together, and coverage per task.

    ``fits AUC``: how well the model tells configurations that run from those that do not, mean of tasks with both.
    """
    lines = [
        (
            f"  {'model':<22}{_ERROR_HEAD}{'cover, mean of tasks':>22}{'least':>8}{'most':>8}{'width':>8}"
            f"{'fits AUC':>10}   median APE per task: middle, worst"
        )
    ]
    for model, part in parts.items():
        figures = whole_errors(part)
        if not figures:
            continue
        covers = np.array(list(per_task(part, "coverage").values()))
        covered = (
            (float(np.nanmean(covers)), float(np.nanmin(covers)), float(np.nanmax(covers)))
            if np.isfinite(covers).any()
            else (float("nan"),) * 3
        )
        widths = np.array(list(per_task(part, "interval_width").values()))
        width = float(np.nanmedian(widths)) if np.isfinite(widths).any() else float("nan")
        apes = np.array(list(per_task(part, "median_ape").values()))
        lines.append(
            f"  {model:<22}{_error_cells(figures)}{number(covered[0]):>22}{number(covered[1]):>8}"
            f"{number(covered[2]):>8}{number(width, 2):>8}{number(_mean(part, 'feasibility_auc')):>10}"
            f"   {number(float(np.nanmedian(apes)))}, "
            f"{number(float(np.nanmax(apes)))}"
        )
    return lines if len(lines) > 1 else []


def regrets_by_task(part: Part, runs: int) -> dict[str, float]:
    """Mean regret over seeds after `runs` runs, by task; a task with fewer candidates: after its last."""
    found: dict[str, list[float]] = {}
    for one in part["searches"]:
        found.setdefault(one["task"], []).append(one["regrets"][min(runs, len(one["regrets"])) - 1])
    return {task: float(np.mean(values)) for task, values in found.items()}


def _search_difference(part: Part, rival: Part, runs: int) -> str:
    if part is rival:
        return ""
    return difference_text(paired(regrets_by_task(part, runs), regrets_by_task(rival, runs)))


def search_table(parts: Mapping[str, Part]) -> list[str]:
    """Regret after k runs, and paired differences at 3 and 5 runs."""
    most = max((len(one["regrets"]) for part in parts.values() for one in part["searches"]), default=0)
    shown = [runs for runs in _SHOWN_RUNS if runs <= most]
    head = "".join(f"{f'k={runs}':>8}" for runs in shown)
    rivals = [name for name in _PAIRED_SEARCHES if name in parts]
    lines = [f"  {'search':<26}{head}" + "".join(f"   k={k}, less {name:<22}" for name in rivals for k in (3, 5))]
    for model, part in parts.items():
        cells = "".join(f"{number(float(np.mean(list(regrets_by_task(part, k).values())))):>8}" for k in shown)
        against = "".join(
            f"   {_search_difference(part, parts[name], k):<{len('k=3, less ') + 22}}"
            for name in rivals
            for k in (3, 5)
        )
        lines.append(f"  {model:<26}{cells}{against}")
    return lines


def speed_table(parts: Mapping[str, Part]) -> list[str]:
    """Training, and predictions for many configurations of one task."""
    return [
        f"  {model:<22}{part['rows']:>6} rows learned in {part['fit_s']:>8.2f} s   {SPEED_QUESTIONS} predicted in "
        f"{part['predict_ms']['p50']:>8.2f} ms, p99 {part['predict_ms']['p99']:.2f} ms"
        for model, part in parts.items()
    ]


def importance_lines(parts: Mapping[str, Part], most: int = 8) -> list[str]:
    """Families whose shuffling hurts most."""
    lines = []
    for model, part in parts.items():
        found = list(part.get("importance", {}).items())[:most]
        if found:
            lines.append(f"  {model:<22}" + ", ".join(f"{name} {value:.3f}" for name, value in found))
    return lines


def tables(parts: Sequence[Part], about: Mapping[str, str], machine: str) -> str:
    """Everything for people."""
    lines = [f"machine: {machine}", "star: a 95 % bootstrap interval over tasks (or seeds) leaves 0 out", ""]
    for data, text in about.items():
        lines += [f"=== {data}: {text}"]
        for objective in dict.fromkeys(one["objective"] for one in parts if one["set"] == data):
            found = {
                protocol: select(parts, data, protocol, objective) for protocol in (RANDOM, LEFT_OUT, SEARCH, SPEED)
            }
            sections = (
                ("(i) random fifth held out, means over seeds", random_table, found[RANDOM]),
                ("permutation importance, growth of the RMSE of logarithms", importance_lines, found[RANDOM]),
                ("(ii) left-out applications: choosing", choice_table, found[LEFT_OUT]),
                ("(ii) left-out applications: predicting", left_out_error_table, found[LEFT_OUT]),
                ("(ii) with k runs of the left-out task: mean regret", search_table, found[SEARCH]),
                ("time that it takes", speed_table, found[SPEED]),
            )
            for title, table, chosen in sections:
                rows = table(chosen) if chosen else []
                lines += [f"-- {data}, {objective}: {title}", *rows, ""] if rows else []
    return "\n".join(lines)

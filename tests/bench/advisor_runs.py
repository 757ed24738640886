"""What the advisor's benchmark measures: one part per data set, model, objective and protocol."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from schemas.predictions import Objective
from services.advisor.core.table import Table
from services.advisor.models.baselines.regressor_model import Fitted
from tests.bench.advisor_data import DataSet
from tests.bench.advisor_models import BY_CHANCE, ONLY_KNOWN_TASKS, RANKERS, REGRESSORS, SEARCHES, SLOW
from tests.bench.evaluation.evaluation import (
    Answer,
    Search,
    Split,
    evaluate_left_out,
    evaluate_search,
    evaluate_split,
    in_groups,
    leave_one_task_out,
    random_split,
)
from tests.bench.evaluation.importance import permutation_importance
from tests.bench.evaluation.measures import choice_figures, error_figures, interval_figures
from tests.bench.evaluation.protocols import FittedCurves
from tests.bench.figures import percentiles

RANDOM: Final = "random"
LEFT_OUT: Final = "left-out"
SEARCH: Final = "search"
SPEED: Final = "speed"
PROTOCOLS: Final = (RANDOM, LEFT_OUT, SEARCH, SPEED)
IMPORTANCE_OF: Final = frozenset({"random forest", "boosting", "gp"})
SPEED_RECORDS: Final = 1_000
SPEED_QUESTIONS: Final = 500
SPEED_REPEATS: Final = 100
_DIGITS: Final = 6


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured."""

    objectives: tuple[Objective, ...]
    protocols: tuple[str, ...]
    models: frozenset[str]
    """Empty: all."""
    seeds: int
    """Random splits."""
    chances: int
    """Seeds of those who choose by chance, where tasks are left out."""
    runs: int
    """Most runs of a search."""
    inner_folds: int
    """Parts of the training tasks that thresholds are tuned on; 0: not tuned."""
    slow_seeds: int
    """Random splits of `SLOW` models."""
    slow_groups: int
    """In how many groups applications are left out of `SLOW` models."""


@dataclass(frozen=True, slots=True)
class Job:
    """One part."""

    data: DataSet
    protocol: str
    model: str
    objective: Objective

    @property
    def path(self) -> Path:
        """Below the folder of the parts."""
        model = self.model.replace(" ", "-").replace("$/h", "hour")
        return Path(self.data.name) / f"{self.protocol}-{self.objective.value}-{model}.json"


def planned(data: DataSet, plan: Plan) -> list[Job]:
    """All parts of a data set."""
    models = {
        RANDOM: tuple(REGRESSORS),
        LEFT_OUT: tuple(name for name in (*RANKERS, *REGRESSORS) if name not in ONLY_KNOWN_TASKS),
        SEARCH: tuple(SEARCHES),
        SPEED: tuple(REGRESSORS),
    }
    return [
        Job(data, protocol, model, objective)
        for protocol in plan.protocols
        for objective in plan.objectives
        for model in models[protocol]
        if not plan.models or model in plan.models
    ]


def measured(job: Job, plan: Plan, say: Callable[[str], None]) -> dict[str, Any]:
    """Measure one part; JSON-able."""
    began_s = time.perf_counter()
    content = {RANDOM: _random, LEFT_OUT: _left_out, SEARCH: _searched, SPEED: _timed}[job.protocol](job, plan, say)
    return {
        "set": job.data.name,
        "digest": job.data.digest,
        "protocol": job.protocol,
        "model": job.model,
        "objective": job.objective.value,
        "seconds": round(time.perf_counter() - began_s, 1),
        **content,
    }


def _random(job: Job, plan: Plan, say: Callable[[str], None]) -> dict[str, Any]:
    """Protocol (i)."""
    model, table = REGRESSORS[job.model](job.objective), job.data.table()
    seeds = range(min(plan.seeds, plan.slow_seeds) if job.model in SLOW else plan.seeds)
    answers, extra = [], {}
    for seed in seeds:
        say(f"seed {seed + 1} of {len(seeds)}")
        split = random_split(table, seed=seed)
        answer, fitted = evaluate_split(model, table, split, seed=seed)
        answers.append(_answer_record(answer, seed, error_figures([answer]) | interval_figures([answer])))
        if seed == 0 and isinstance(fitted, FittedCurves):
            extra["curves"] = {name: _numbers(values) for name, values in fitted.curves.items()}
        if seed == 0 and job.model in IMPORTANCE_OF and isinstance(fitted, Fitted):
            rows = answer.rows[answer.counted]
            questions = table.select(rows).without_outcomes()
            extra["importance"] = permutation_importance(fitted, questions, answer.values[answer.counted], seed=seed)
    return {"answers": answers, **extra}


def _left_out(job: Job, plan: Plan, say: Callable[[str], None]) -> dict[str, Any]:
    """Protocol (ii)."""
    make = REGRESSORS.get(job.model) or RANKERS[job.model]
    model, table = make(job.objective), job.data.table()
    splits, folds = _splits(job.data, table), plan.inner_folds
    if job.model in SLOW:
        splits, folds = in_groups(splits, plan.slow_groups), min(folds, 2)
    seeds = plan.chances if job.model in BY_CHANCE else 1
    answers = []
    for at, split in enumerate(splits):
        say(f"without {split.name} ({at + 1} of {len(splits)})")
        for seed in range(seeds):
            answers += [
                _answer_record(one, seed, choice_figures(one))
                for one in evaluate_left_out(model, table, split, seed=seed, inner_folds=folds)
            ]
    return {"answers": answers, "groups": len(splits)}


def _searched(job: Job, plan: Plan, say: Callable[[str], None]) -> dict[str, Any]:
    """Protocol (ii) with k runs of the left-out task."""
    model, table = SEARCHES[job.model](job.objective), job.data.table()
    splits = _splits(job.data, table)
    seeds = plan.chances if job.model in BY_CHANCE else 1
    searches: list[dict[str, Any]] = []
    for at, split in enumerate(splits):
        say(f"without {split.name} ({at + 1} of {len(splits)})")
        for seed in range(seeds):
            found = evaluate_search(model, table, split, seed=seed, runs=plan.runs)
            searches += [_search_record(one, seed) for one in found]
    return {"searches": searches}


def _timed(job: Job, plan: Plan, say: Callable[[str], None]) -> dict[str, Any]:
    """How long one training and predictions for one task's configurations take."""
    del plan
    model, table = REGRESSORS[job.model](job.objective), job.data.table()
    rows = np.flatnonzero(table.completed(job.objective))
    rows = np.random.default_rng(0).permutation(rows)[:SPEED_RECORDS]
    say(f"training on {len(rows)} rows")
    began_s = time.perf_counter()
    fitted = model.fit(table.select(rows), seed=0)
    fit_s = time.perf_counter() - began_s
    task = np.flatnonzero(table.task == table.task[rows[0]])
    questions = table.select(np.resize(task, SPEED_QUESTIONS)).without_outcomes()
    took_ms = []
    for at in range(SPEED_REPEATS):
        say(f"prediction {at + 1} of {SPEED_REPEATS}")
        began_s = time.perf_counter()
        fitted.predict(questions)
        took_ms.append((time.perf_counter() - began_s) * 1e3)
    return {"rows": len(rows), "fit_s": round(fit_s, 3), "predict_ms": percentiles(took_ms)}


def _splits(data: DataSet, table: Table) -> list[Split]:
    """What is left out in turn: applications with a local run. The others are learned from only."""
    observed = np.isfinite(table.feature("local.observed_s"))
    return [one for one in leave_one_task_out(table, data.groups(table)) if observed[one.test].any()]


def _numbers(values: Sequence[float] | np.ndarray[Any, Any]) -> list[float | None]:
    """Few digits, and None for NaN: JSON has none."""
    return [float(f"{value:.{_DIGITS}g}") if np.isfinite(value) else None for value in np.asarray(values).tolist()]


def _answer_record(answer: Answer, seed: int, figures: dict[str, float]) -> dict[str, Any]:
    kept = answer.counted
    record: dict[str, Any] = {
        "split": answer.split,
        "task": answer.task,
        "seed": seed,
        "figures": dict(zip(figures, _numbers(list(figures.values())), strict=True)),
        "values": _numbers(answer.values[kept]),
        "labels": answer.labels[kept].astype(int).tolist(),
        "scores": _numbers(answer.scores[kept]),
    }
    for name in ("predicted", "low", "high"):
        values = getattr(answer, name)
        if values is not None:
            record[name] = _numbers(values[kept])
    return record


def _search_record(search: Search, seed: int) -> dict[str, Any]:
    return {"task": search.task, "split": search.split, "seed": seed, "regrets": _numbers(search.regrets)}

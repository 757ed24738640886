"""Who predicts well, and whose choice is good: without leaks.

Protocol (i): a random fifth of the rows is held out, repeats of a configuration together. Protocol (ii): every task is
left out in turn. In both, the reference configuration's own row (`Table.is_reference`) is trained on but never scored,
and rows that are asked about come without their outcomes. Thresholds are tuned inside the training tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from sklearn.model_selection import GroupShuffleSplit

from schemas.predictions import Objective
from services.advisor.core.arrays import BoolArray, FloatArray, IntArray, TextArray
from services.advisor.core.table import Table
from services.advisor.models.baselines.regressor_model import Fitted, Regressor
from tests.bench.evaluation.labels import top_labels
from tests.bench.evaluation.metrics import regret
from tests.bench.evaluation.protocols import (
    FitsValidated,
    FittedFeasibility,
    FittedIntervals,
    FittedRanker,
    Ranker,
    Sequential,
    ranking_of,
)

LEVEL: Final = 0.9
"""Nominal coverage of the intervals that are asked for."""


@dataclass(frozen=True, eq=False)
class Split:
    """Rows to learn from, and rows to score."""

    name: str
    """What is left out, or ``random``."""
    training: IntArray
    test: IntArray
    """Anchors among them are not asked about: see `asked`."""


def random_split(table: Table, *, seed: int, share: float = 0.2) -> Split:
    """Hold out a share of the rows; repeats of one task's configuration are on the same side."""
    _, group = np.unique(np.char.add(np.char.add(table.task, "\n"), table.configuration_key), return_inverse=True)
    held_out = max(1, round((int(group.max()) + 1) * share))
    splits = GroupShuffleSplit(1, test_size=held_out, random_state=seed).split(table.features, groups=group)
    training, test = next(splits)
    return Split("random", training, test)


def leave_one_task_out(table: Table, groups: TextArray | None = None) -> Iterator[Split]:
    """Leave out every task in turn.

    Args:
        table: The rows.
        groups: What is left out together where that is more than one task (such as one network on several data
            sizes), shape ``(rows,)``; None: the task.
    """
    kinds = table.task if groups is None else groups
    for one in np.unique(kinds):
        yield Split(str(one), np.flatnonzero(kinds != one), np.flatnonzero(kinds == one))


def in_groups(splits: Sequence[Split], groups: int) -> list[Split]:
    """Return splits that leave out several of `splits` together, for models that cannot be fitted so often."""
    if len(splits) <= groups:
        return list(splits)
    parts = [splits[at::groups] for at in range(groups)]
    rows = len(splits[0].training) + len(splits[0].test)
    merged = []
    for part in parts:
        test = np.sort(np.concatenate([one.test for one in part]))
        merged.append(Split(", ".join(one.name for one in part), np.setdiff1d(np.arange(rows), test), test))
    return merged


def asked(table: Table, rows: IntArray) -> IntArray:
    """Return which of `rows` are asked about: not the reference configuration's, whose outcome is known before."""
    return np.asarray(rows[~table.is_reference[rows]])


@dataclass(frozen=True, eq=False)
class Answer:
    """What one model says about one task's held-out rows (or about a random fifth), beside what is true."""

    model: str
    objective: Objective
    split: str
    task: str
    """Empty for a random fifth."""
    rows: IntArray
    """In the evaluated table; all that were asked about. The other arrays are aligned with it."""
    values: FloatArray
    """Seconds or dollars."""
    counted: BoolArray
    """The value is known exactly: neither failed nor stopped at a limit."""
    feasible: BoolArray
    labels: BoolArray
    """Top configurations among the counted ones."""
    scores: FloatArray
    predicted: FloatArray | None = None
    low: FloatArray | None = None
    high: FloatArray | None = None
    feasibility: FloatArray | None = None
    """Predicted probability that it runs."""
    threshold: float = float("nan")
    """Of `relative` scores; NaN where it was not tuned."""

    def relative(self) -> FloatArray:
        """Return scores less the best score of the counted ones: comparable between tasks."""
        return np.asarray(self.scores - self.scores[self.counted].max(initial=-np.inf))


def answer_of(fitted: Fitted | FittedRanker, table: Table, rows: IntArray, about: Answer) -> Answer:
    """Return what a fitted model says about `rows`, which it sees without outcomes."""
    questions = table.select(rows).without_outcomes()
    low, high = fitted.interval(questions, LEVEL) if isinstance(fitted, FittedIntervals) else (None, None)
    return replace(
        about,
        scores=ranking_of(fitted).score(questions),
        predicted=fitted.predict(questions) if isinstance(fitted, Fitted) else None,
        low=low,
        high=high,
        feasibility=fitted.feasible(questions) if isinstance(fitted, FittedFeasibility) else None,
    )


def _question(model: Regressor | Ranker, table: Table, split: Split, task: str, rows: IntArray) -> Answer:
    """The truth about `rows`, not answered yet."""
    values = table.value(model.target)[rows]
    counted = table.completed(model.target)[rows]
    labels = top_labels(table.task[rows], np.where(counted, values, np.nan))
    return Answer(
        model.name,
        model.target,
        split.name,
        task,
        rows,
        values,
        counted,
        table.feasible[rows],
        labels,
        scores=np.zeros(len(rows)),
    )


def evaluate_split(
    model: Regressor | Ranker, table: Table, split: Split, *, seed: int
) -> tuple[Answer, Fitted | FittedRanker]:
    """Fit on one side and answer about all of the other at once; returns also what was fitted.

    A model with training curves follows the other side, too; it learns nothing of it (`FitsValidated`).
    """
    training, rows = table.select(split.training), asked(table, split.test)
    fitted: Fitted | FittedRanker
    if isinstance(model, FitsValidated):
        fitted = model.fit_validated(training, table.select(rows), seed=seed)
    else:
        fitted = model.fit(training, seed=seed)
    return answer_of(fitted, table, rows, _question(model, table, split, "", rows)), fitted


def evaluate_left_out(
    model: Regressor | Ranker, table: Table, split: Split, *, seed: int, inner_folds: int = 0
) -> list[Answer]:
    """Fit on the other tasks and answer about each task of the split.

    Args:
        model: Fitted anew.
        table: One row per task and configuration: see `Table.without_repeats`.
        split: Of `leave_one_task_out`.
        seed: Of the fit.
        inner_folds: Where positive, a threshold is tuned by leaving parts of the *training* tasks out.
    """
    training = table.select(split.training)
    fitted = model.fit(training, seed=seed)
    threshold = tuned_threshold(model, training, seed=seed, folds=inner_folds) if inner_folds else float("nan")
    answers = []
    for task in np.unique(table.task[split.test]):
        rows = asked(table, split.test[table.task[split.test] == task])
        question = _question(model, table, split, str(task), rows)
        if question.counted.any():
            answers.append(replace(answer_of(fitted, table, rows, question), threshold=threshold))
    return answers


def tuned_threshold(model: Regressor | Ranker, training: Table, *, seed: int, folds: int) -> float:
    """Return the threshold of relative scores that finds the training tasks' top configurations best (F1).

    Every task is scored by a model that has not seen it. Of a single task there is nothing to tune on: 0, which calls
    only the best-scored configuration top.
    """
    tasks = np.random.default_rng(seed).permutation(np.unique(training.task))
    labels, relative = [], []
    for fold in np.array_split(tasks, min(folds, len(tasks))) if len(tasks) > 1 else []:
        held_out = np.isin(training.task, fold)
        split = Split("inner", np.flatnonzero(~held_out), np.flatnonzero(held_out))
        for answer in evaluate_left_out(model, training, split, seed=seed):
            labels.append(answer.labels[answer.counted])
            relative.append(answer.relative()[answer.counted])
    return best_threshold(np.concatenate(labels), np.concatenate(relative)) if labels else 0.0


def best_threshold(labels: BoolArray, scores: FloatArray) -> float:
    """Return the score from which on rows are called top, so that the F1 score of `labels` is largest."""
    order = np.argsort(-scores, kind="stable")
    found = np.cumsum(labels[order])
    f1 = 2 * found / (np.arange(1, len(scores) + 1) + labels.sum())
    last_of_equals = np.append(np.diff(scores[order]) != 0, True)
    return float(scores[order][int(np.argmax(np.where(last_of_equals, f1, -1.0)))])


@dataclass(frozen=True, eq=False)
class Search:
    """What one search found on one left-out task."""

    model: str
    objective: Objective
    split: str
    task: str
    runs: IntArray
    """Rows of the table, in the order in which they were run, shape ``(k,)``."""
    regrets: FloatArray
    """Chosen over best after each run, shape ``(k,)``."""


def evaluate_search(model: Sequential, table: Table, split: Split, *, seed: int, runs: int) -> list[Search]:
    """Fit on the other tasks, then let it run `runs` configurations of each task of the split.

    Candidates are the completed configurations without the reference. What is not run yet has no outcome.
    """
    fitted = model.fit(table.select(split.training), seed=seed)
    searches = []
    for task in np.unique(table.task[split.test]):
        rows = asked(table, split.test[table.task[split.test] == task])
        rows = rows[table.completed(model.target)[rows]]
        if not len(rows):
            continue
        values, questions = table.value(model.target)[rows], table.select(rows).without_outcomes()
        measured, regrets = np.zeros(0, dtype=np.int64), []
        for _ in range(min(runs, len(rows))):
            measured = np.append(measured, fitted.propose(questions, measured, values[measured]))
            chosen = fitted.choose(questions, measured, values[measured])
            regrets.append(regret(values, chosen))
        searches.append(Search(model.name, model.target, split.name, str(task), rows[measured], np.array(regrets)))
    return searches

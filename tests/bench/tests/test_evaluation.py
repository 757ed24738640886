"""Nothing leaks: neither rows, nor outcomes, nor thresholds."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from schemas.jobs import JobState
from schemas.predictions import Objective
from services.advisor.core.arrays import FloatArray, IntArray
from services.advisor.core.table import Table, build
from services.advisor.models.baselines.learned import Boosting
from tests.bench.evaluation.evaluation import (
    asked,
    best_threshold,
    evaluate_left_out,
    evaluate_search,
    evaluate_split,
    leave_one_task_out,
    random_split,
    tuned_threshold,
)
from tests.bench.evaluation.measures import choice_figures, error_figures, interval_figures, means
from tests.bench.evaluation.metrics import confusion
from tests.bench.evaluation.workload_agnostic import MeanRanking
from tests.support.advisor_records import grid, made_table, profile, record

TASKS = st.lists(st.sampled_from(["a", "bb", "ccc", "dddd", "eeeee"]), min_size=2, max_size=5, unique=True)


@dataclass
class Spy:
    """Says nothing clever, and remembers what it was shown."""

    target: Objective = Objective.TIME
    name: str = "spy"
    trained: list[Table] = field(default_factory=list)
    shown: list[Table] = field(default_factory=list)
    knew: list[set[str]] = field(default_factory=list)
    """Per element of `shown`: the tasks that had been learned from."""

    def fit(self, table: Table, *, seed: int) -> Spy:
        self.trained.append(table)
        return self

    def _note(self, table: Table) -> None:
        self.shown.append(table)
        self.knew.append(set(self.trained[-1].task.tolist()))

    def predict(self, table: Table) -> FloatArray:
        self._note(table)
        return np.arange(1.0, len(table) + 1)

    def interval(self, table: Table, level: float) -> tuple[FloatArray, FloatArray]:
        self._note(table)
        return np.zeros(len(table)), np.full(len(table), np.inf)

    def feasible(self, table: Table) -> FloatArray:
        self._note(table)
        return np.linspace(0, 1, len(table))

    def propose(self, table: Table, measured: IntArray, values: FloatArray) -> int:
        self._note(table)
        return len(measured)

    def choose(self, table: Table, measured: IntArray, values: FloatArray) -> int:
        return int(measured[-1])


@settings(max_examples=20)
@given(TASKS)
def test_no_row_of_a_left_out_task_is_learned_from(tasks: list[str]) -> None:
    table = made_table(tasks)
    splits = list(leave_one_task_out(table))
    assert [one.name for one in splits] == sorted(tasks)
    for split in splits:
        assert split.name not in table.task[split.training]
        assert set(table.task[split.test]) == {split.name}
        assert sorted([*split.training, *split.test]) == list(range(len(table)))


def test_tasks_of_one_application_are_left_out_together() -> None:
    table = made_table(("a", "bb", "ccc"))
    groups = np.where(table.task == "ccc", "other", "same")
    names = {one.name: set(table.task[one.training].tolist()) for one in leave_one_task_out(table, groups)}
    assert names == {"other": {"a", "bb"}, "same": {"ccc"}}


@settings(max_examples=20)
@given(st.integers(0, 1000), TASKS)
def test_a_random_fifth_holds_repeats_together(seed: int, tasks: list[str]) -> None:
    repeats = [record(one.task.task, "small", 2, job=f"{one.job}-again") for one in grid(tasks)[::16]]
    table, _ = build([*grid(tasks), *repeats], {})
    split = random_split(table, seed=seed)
    sides = [
        set(zip(table.task[rows], table.configuration_key[rows], strict=True)) for rows in (split.training, split.test)
    ]
    assert not sides[0] & sides[1]
    assert len(sides[1]) == round(len(grid(tasks)) / 5)
    assert sorted([*split.training, *split.test]) == list(range(len(table)))


def test_a_random_split_is_the_same_under_the_same_seed_only() -> None:
    table = made_table()
    assert np.array_equal(random_split(table, seed=3).test, random_split(table, seed=3).test)
    assert not np.array_equal(random_split(table, seed=3).test, random_split(table, seed=4).test)


def evaluate_everything(spy: Spy, table: Table) -> None:
    evaluate_split(spy, table, random_split(table, seed=0), seed=0)
    for split in leave_one_task_out(table):
        evaluate_left_out(spy, table, split, seed=0, inner_folds=2)
        evaluate_search(spy, table, split, seed=0, runs=3)


def test_whoever_is_asked_sees_no_outcome_and_no_reference() -> None:
    spy = Spy()
    evaluate_everything(spy, made_table())
    assert spy.shown
    for table in spy.shown:
        assert np.isnan(table.time_s).all()
        assert np.isnan(table.cost_usd).all()
        assert not table.is_reference.any()


def test_thresholds_are_tuned_without_the_left_out_task() -> None:
    table = made_table()
    for split in leave_one_task_out(table):
        spy = Spy()
        evaluate_left_out(spy, table, split, seed=0, inner_folds=3)
        assert len(spy.trained) == 4
        assert all(split.name not in one.task for one in spy.trained)


def test_inner_folds_are_scored_by_who_has_not_seen_them() -> None:
    table, spy = made_table(), Spy()
    tuned_threshold(spy, table, seed=1, folds=4)
    assert {task for shown in spy.shown for task in shown.task.tolist()} == {"a", "bb", "ccc", "dddd"}
    assert not any(knew & set(shown.task.tolist()) for knew, shown in zip(spy.knew, spy.shown, strict=True))


def test_of_one_training_task_no_threshold_can_be_tuned() -> None:
    assert tuned_threshold(Spy(), made_table(("a",)), seed=0, folds=3) == 0.0


def test_failed_and_stopped_rows_are_asked_about_and_not_counted() -> None:
    records = grid(("a", "bb"))
    records[1] = records[1].model_copy(update={"state": JobState.OUT_OF_MEMORY})
    records[2] = records[2].model_copy(update={"state": JobState.TIMED_OUT})
    table, _ = build(records, {"run-a": profile("a")})
    (answer,) = evaluate_left_out(Spy(), table, next(leave_one_task_out(table)), seed=0)
    assert len(answer.rows) == 15
    assert answer.counted.sum() == 13
    assert not answer.labels[~answer.counted].any()
    assert (~answer.feasible).sum() == 1


def test_a_task_without_any_completed_row_is_not_scored() -> None:
    records = [one.model_copy(update={"state": JobState.FAILED}) if one.task.task == "a" else one for one in grid("ab")]
    table, _ = build(records, {})
    splits = {one.name: one for one in leave_one_task_out(table)}
    assert evaluate_left_out(Spy(), table, splits["a"], seed=0) == []
    assert evaluate_search(Spy(), table, splits["a"], seed=0, runs=2) == []


def test_asked_are_all_rows_but_the_anchors() -> None:
    table = made_table(("a",))
    assert len(asked(table, np.arange(len(table)))) == len(table) - 1


@given(
    st.integers(1, 25).flatmap(
        lambda rows: st.tuples(
            arrays.arrays(np.bool_, rows), arrays.arrays(np.float64, rows, elements=st.integers(-3, 3).map(float))
        )
    )
)
def test_the_tuned_threshold_has_the_largest_f1(case: tuple[NDArray[np.bool_], NDArray[np.float64]]) -> None:
    labels, scores = case
    found = confusion(labels, scores >= best_threshold(labels, scores)).f1
    assert found == pytest.approx(max(confusion(labels, scores >= one).f1 for one in scores))


def test_figures_of_a_perfect_and_of_a_blind_choice() -> None:
    table = made_table()
    split = next(leave_one_task_out(table))

    truth = dict(zip(table.job.tolist(), table.time_s.tolist(), strict=True))

    class Knowing(Spy):
        def predict(self, table: Table) -> FloatArray:
            return np.array([truth[job] for job in table.job.tolist()])

    (answer,) = evaluate_left_out(Knowing(), table, split, seed=0, inner_folds=2)
    figures = choice_figures(answer)
    assert (figures["regret"], figures["best_of_5"], figures["auc"], figures["recall_at_5"]) == (1, 1, 1, 1)
    assert figures["false_positives_at_80"] == 0
    assert figures["coverage"] == 1
    assert figures["first_fails"] == 0
    assert error_figures([answer])["rmse"] == pytest.approx(0, abs=1e-9)
    assert interval_figures([answer])["coverage"] == 1
    (blind,) = evaluate_left_out(MeanRanking(Objective.TIME), table, split, seed=0)
    assert error_figures([blind]) == {}
    assert interval_figures([blind]) == {}


def test_means_leave_out_what_is_not_known() -> None:
    assert means([{"a": 1.0, "b": np.nan}, {"a": 3.0}]) == pytest.approx({"a": 2.0, "b": np.nan}, nan_ok=True)


def test_the_order_of_records_does_not_change_a_figure() -> None:
    records = grid(("a", "bb", "ccc"))
    profiles = {f"run-{task}": profile(task) for task in ("a", "bb", "ccc")}
    figures = []
    for order in (records, records[::-1]):
        table, _ = build(order, profiles)
        for split in leave_one_task_out(table):
            (answer,) = evaluate_left_out(MeanRanking(Objective.TIME), table, split, seed=0, inner_folds=2)
            figures.append(choice_figures(answer))
    assert figures[:3] == figures[3:]


def test_the_same_seed_gives_the_same_answers() -> None:
    table = made_table()
    split = random_split(table, seed=1)
    first, second = (evaluate_split(Boosting(Objective.TIME, rounds=20), table, split, seed=7)[0] for _ in range(2))
    assert first.predicted is not None
    assert np.array_equal(first.predicted, second.predicted)  # type: ignore[arg-type]

"""Records as aligned arrays."""

from __future__ import annotations

import numpy as np
import pytest

from schemas.jobs import JobState, TaskFeatures
from schemas.predictions import Objective
from schemas.runs import RunEnd
from services.advisor.core.encoder import (
    SERIES_CHANNELS,
    SERIES_STEPS,
    Encoder,
    configuration_key,
    resampled,
    series_of,
    work_ratio,
)
from services.advisor.core.table import Table, build, concatenated
from tests.support.advisor_records import configuration, grid, made_table, profile, record


def row(table: Table, job: str) -> int:
    return int(np.flatnonzero(table.job == job)[0])


def test_rows_keep_the_order_of_the_records() -> None:
    records = grid(("bb", "a"))
    assert build(records, {})[0].job.tolist() == [one.job for one in records]


def test_what_is_not_known_is_nan_and_another_category_is_zero() -> None:
    unknown = record("a", "small", 1, task=TaskFeatures(task="a", optimizer="adam"))
    table, _ = build(
        [record("a", "large", 1, task=TaskFeatures(task="a", parameter_count=7, optimizer="sgd")), unknown], {}
    )
    assert table.feature("task.parameter_count").tolist() == pytest.approx([7.0, np.nan], nan_ok=True)
    assert table.feature("task.optimizer=sgd").tolist() == [1.0, 0.0]
    assert table.feature("config.instance_type=large").tolist() == [1.0, 0.0]
    assert np.isnan(table.feature("no such feature")).all()


def test_a_frozen_count_of_zero_is_known_where_the_parameters_are() -> None:
    table, _ = build([record("a", "small", 1)], {})
    assert table.feature("task.frozen_parameter_count").tolist() == [0.0]


def test_the_encoder_of_an_earlier_table_makes_the_same_columns() -> None:
    table, encoder = build(grid(("a", "bb")), {})
    other = record("x", "huge", 3, task=TaskFeatures(task="x", optimizer="never seen"))
    asked, _ = build([other], {}, encoder=encoder)
    assert asked.feature_names == table.feature_names
    assert asked.feature("config.instance_type=huge").tolist() == [1.0]
    assert Encoder.fit([]).feature_names == ()


def test_a_cost_that_was_not_billed_follows_from_the_price() -> None:
    # 0.20 $/h x 4 machines x 1800 s = 0.40 $
    derived = record("a", "large", 4, duration_s=1800.0)
    billed = record("a", "large", 4, job="billed", duration_s=1800.0, cost_usd=0.55)
    without = record("a", "large", 4, job="without", price=None)
    table, _ = build([derived, billed, without], {})
    assert table.cost_usd.tolist() == pytest.approx([0.40, 0.55, np.nan], nan_ok=True)


@pytest.mark.parametrize(
    ("state", "feasible", "censored"),
    [
        (JobState.SUCCEEDED, True, False),
        (JobState.TIMED_OUT, True, True),
        (JobState.OUT_OF_MEMORY, False, False),
        (JobState.FAILED, False, False),
    ],
)
def test_only_what_ran_to_its_end_is_completed(state: JobState, feasible: bool, censored: bool) -> None:
    table, _ = build([record("a", "small", 1, state=state)], {})
    assert (table.feasible[0], table.censored[0]) == (feasible, censored)
    assert table.completed(Objective.TIME)[0] == (state is JobState.SUCCEEDED)
    assert np.isfinite(table.time_s[0]) == feasible


def test_a_cancelled_job_says_nothing_of_whether_it_would_have_run() -> None:
    cancelled = record("a", "large", 1, state=JobState.CANCELLED)
    table, encoder = build([record("a", "small", 1), cancelled], {})
    assert table.job.tolist() == ["a-small-1"]
    assert "config.instance_type=large" not in encoder.feature_names
    assert len(build([cancelled], {})[0].without_repeats()) == 0


def test_the_local_runs_own_configuration_is_the_reference() -> None:
    table = made_table(("a",))
    assert table.job[table.is_reference].tolist() == ["a-small-1"]
    assert set(table.reference_time_s) == {profile("a").duration_s}


def test_the_reference_is_scaled_to_the_jobs_work() -> None:
    """The local run trains 2 epochs of 500 samples; the job 6 epochs of 1000: six times as much, but for the start-up.

    Nothing marks the start-up of a run of 105 s: uniform from 0 to half of it, so 26.25 s are not multiplied.
    """
    bigger = record("a", "large", 1, task=TaskFeatures(task="a", epochs=6, samples_per_epoch=1000))
    table, _ = build([bigger], {"run-a": profile("a")})
    assert work_ratio(bigger.task, profile("a")) == 6.0
    assert table.reference_time_s[0] == pytest.approx(26.25 + 6 * (105.0 - 26.25))


def test_a_local_run_that_was_stopped_is_no_reference_but_has_features() -> None:
    stopped = profile("a").model_copy(update={"end": RunEnd.TIMED_OUT})
    table, _ = build([record("a", "large", 1)], {"run-a": stopped})
    assert np.isnan(table.reference_time_s[0])
    assert table.feature("local.observed_s")[0] == stopped.duration_s
    assert "local.time_s" not in table.feature_names


def test_a_question_holds_no_outcome() -> None:
    asked = made_table().without_outcomes()
    assert np.isnan(asked.time_s).all()
    assert np.isnan(asked.cost_usd).all()
    assert asked.feasible.all()
    assert not asked.censored.any()


def test_repeats_count_once_with_their_geometric_mean() -> None:
    # sqrt(10 x 40) = 20 s; the failed repeat does not count
    records = [
        record("a", "small", 1, job=f"j{at}", duration_s=seconds, state=state, price=None)
        for at, (seconds, state) in enumerate(
            [(10.0, JobState.SUCCEEDED), (40.0, JobState.SUCCEEDED), (1.0, JobState.FAILED)]
        )
    ]
    table = build([*records, record("bb", "small", 1)], {})[0].without_repeats()
    assert table.job.tolist() == ["j0", "bb-small-1"]
    assert table.time_s[0] == pytest.approx(20.0)
    assert table.feasible[0]


def test_a_repeat_that_was_stopped_makes_the_mean_a_lower_bound() -> None:
    records = [record("a", "small", 1), record("a", "small", 1, job="stopped", state=JobState.TIMED_OUT)]
    table = build(records, {})[0].without_repeats()
    assert table.censored.tolist() == [True]
    assert not table.completed(Objective.TIME).any()


def test_without_repeats_is_the_table_itself() -> None:
    table = made_table()
    assert table.without_repeats() is table


def test_selected_and_joined_tables_are_the_same_rows() -> None:
    table = made_table()
    middle = len(table) // 2
    joined = concatenated([table.select(np.arange(middle)), table.select(np.arange(middle, len(table)))])
    assert joined.job.tolist() == table.job.tolist()
    assert np.array_equal(joined.features, table.features, equal_nan=True)
    assert joined.task_series.keys() == table.task_series.keys()
    with pytest.raises(ValueError, match="different features"):
        concatenated([table, build(grid(("a",)), {})[0]])
    with pytest.raises(ValueError, match="different features"):
        concatenated([])


def test_the_key_names_everything_that_is_chosen() -> None:
    one = configuration("small", 2)
    keys = {
        configuration_key(one),
        configuration_key(one.model_copy(update={"workers": 3})),
        configuration_key(one.model_copy(update={"batch_size": 64})),
        configuration_key(one.model_copy(update={"instance_type": "large"})),
        configuration_key(one.model_copy(update={"attributes": {"updates": "sync"}})),
    }
    assert len(keys) == 5


def test_a_series_is_averaged_to_a_fixed_number_of_steps() -> None:
    # 2 samples on 4 steps: each sample fills two; 3 samples on 2 steps: (0 + 1/2 x 3) / 1.5 = 1 and (1.5 + 6) / 1.5 = 5
    assert resampled(np.array([1.0, 3.0]), 4).tolist() == pytest.approx([1, 1, 3, 3])
    assert resampled(np.array([0.0, 3.0, 6.0]), 2).tolist() == pytest.approx([1, 5])
    assert resampled(np.zeros(0)).tolist() == [0.0] * SERIES_STEPS


def test_the_others_series_is_their_mean_and_a_run_without_samples_has_none() -> None:
    series = series_of(profile("bb", workers=3))
    assert series is not None
    assert series.shape == (len(SERIES_CHANNELS), SERIES_STEPS)
    assert np.allclose(series[:4], series[4:])
    assert series_of(profile("a", series=False)) is None
    alone = series_of(profile("a"))
    assert alone is not None
    assert not alone[4:].any()


def test_of_several_local_runs_of_a_task_the_first_by_name_gives_the_series() -> None:
    first, second = profile("a"), profile("a", workers=2).model_copy(update={"run": "run-z"})
    records = [record("a", "large", 1, local_run="run-z"), record("a", "huge", 1, local_run="run-a")]
    table, _ = build(records, {"run-a": first, "run-z": second})
    expected = series_of(first)
    assert expected is not None
    assert np.array_equal(table.task_series["a"], expected)

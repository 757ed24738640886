"""Pipelines on 2 to 4 processes over gloo: numerics beside one process, gathers, whole layers, signals.

All trainings run in one process tree (`tests/support/trainer_cases.py`): importing torch costs each process seconds.
"""

from __future__ import annotations

import pytest

from tests.support.trainer_case_runs import Cases, case, run_cases

pytestmark = [pytest.mark.host, pytest.mark.slow]
"""Forty processes that compute with torch: half a minute of two processors."""
PIPELINES = [
    *(f"{groups} groups, {turns} turn{'s' * (turns > 1)}" for groups in (2, 3) for turns in (1, 2, 3)),
    "1 group, 2 turns",
    "a group without layers",
    "many micro-batches",
]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Cases:
    """Those of pipelines alone."""
    return run_cases(tmp_path_factory.mktemp("trainer"), "pipelines")


@pytest.mark.parametrize("name", PIPELINES)
def test_weights_of_a_pipeline_are_those_of_one_process(cases: Cases, name: str) -> None:
    found = case(cases, name)

    assert set(found["codes"]) == {0}
    assert found["distance"] < 1e-9
    assert found["moved"] > 0.1, "a training that changes nothing would agree, too"
    assert len(set(found["losses"])) == 1, "all ranks report the global batch's loss"


@pytest.mark.parametrize("name", PIPELINES)
def test_a_pipeline_gathers_each_layer_twice_at_most_and_has_two_ministages_and_a_layer_whole_at_most(
    cases: Cases, name: str
) -> None:
    found = case(cases, name)

    for watched, expected in zip(found["watched"], found["expected"], strict=True):
        assert watched["gathers"] == expected, "whatever the number of micro-batches, and none of other groups' layers"
        if expected:
            assert set(watched["scatters"].values()) == {1}
            assert 0 < watched["peak_bytes"] <= watched["limit_bytes"]
            assert watched["left_bytes"] == 0


def test_a_pipeline_that_was_stopped_goes_on_with_the_same_bits(cases: Cases) -> None:
    found = case(cases, "stopped pipeline")

    # rank 0 has both micro-batches of the last layer: its 7th call is in the 4th step
    assert found["codes"] == [0, 0, 0]
    assert found["saved"] == 4
    assert set(found["again"]) == {0}
    assert found["same"]


def test_a_pipelines_killed_rank_ends_the_others_and_they_go_on(cases: Cases) -> None:
    found = case(cases, "killed pipeline")

    # every third step is saved
    assert found["codes"] == [-9, 75, 75]
    assert found["saved"] == 3
    assert set(found["again"]) == {0}
    assert found["same"]

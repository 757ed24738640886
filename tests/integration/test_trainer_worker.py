"""The trainer's ranks on 2 and 3 processes over gloo: numerics beside one process, checkpoints, signals, refusals.

All trainings run in one process tree (`tests/support/trainer_cases.py`): importing torch costs each process seconds.
"""

from __future__ import annotations

import pytest

from tests.support.trainer_case_runs import Cases, case, run_cases

pytestmark = [pytest.mark.host, pytest.mark.slow]
"""Sixty processes that compute with torch: half a minute of two processors."""
NUMERICS = ["0:100", "90:10", "even", "fsdp2", "50:20:30", "idle", "sgd"]
WHOLE = ["90:10, built as a whole"]
SCALAR = ["a scalar"]
LAYERS = 4
"""Of the small model, with parameters."""


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Cases:
    """All but those of pipelines alone."""
    return run_cases(tmp_path_factory.mktemp("trainer"))


@pytest.mark.parametrize("name", [*NUMERICS, *WHOLE, *SCALAR])
def test_weights_are_those_of_one_process(cases: Cases, name: str) -> None:
    found = case(cases, name)

    assert set(found["codes"]) == {0}
    assert found["distance"] < 1e-9
    assert found["moved"] > 0.1, "a training that changes nothing would agree, too"


@pytest.mark.parametrize("name", [*NUMERICS, *WHOLE])
def test_a_model_is_built_as_a_whole_only_where_it_has_to_be(cases: Cases, name: str) -> None:
    said = "each rank builds the whole model before it keeps its part: it keeps a tensor that is neither a parameter"

    assert (said in case(cases, name)["said"]) == (name in WHOLE)


def test_without_a_plan_the_batch_is_divided_evenly(cases: Cases) -> None:
    found = case(cases, "without a plan")

    assert found["codes"] == [0, 0, 0], found["said"]
    assert "8 samples divided evenly, up to 3 for each rank (engine fsdp2)" in found["said"]
    assert found["distance"] < 1e-9


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("fsdp2 in float32", 0, 1e-5),
        ("90:10 in bfloat16", 1e-6, 0.02),
        ("fsdp2 in bfloat16", 1e-6, 0.02),
        ("pipeline in bfloat16", 1e-6, 0.02),
        ("pipeline of float64 in bfloat16", 1e-6, 0.02),
    ],
)
def test_weights_in_other_types_differ_by_rounding(cases: Cases, name: str, least: float, most: float) -> None:
    found = case(cases, name)

    assert set(found["codes"]) == {0}
    assert least <= found["distance"] < most, "below the least, nothing was computed in bfloat16"
    assert found["moved"] > 0.1


@pytest.mark.parametrize(("name", "owners"), [("0:100", 1), ("90:10", 2), ("even", 2), ("50:20:30", 3), ("idle", 2)])
def test_each_layer_is_gathered_twice_and_reduced_once(cases: Cases, name: str, owners: int) -> None:
    # the last layer once: its forward pass is part of its backward pass; one broadcast for each rank that holds a part
    expected = {"broadcast": (2 * LAYERS - 1) * owners, "reduce_scatter": LAYERS}

    assert case(cases, name)["per_step"] == expected


def test_each_rank_reports_each_step_once(cases: Cases) -> None:
    found = case(cases, "50:20:30")

    assert found["reported"] == [list(range(50))] * 3
    times = ["compute_us", "end_us", "gather_us", "scatter_us", "step_us"]
    assert found["columns"] == sorted([*times, "loss", "lost_lines", "memory_bytes", "rank", "samples", "step"])


def test_a_checkpoint_has_the_same_bits_under_any_plan(cases: Cases) -> None:
    assert case(cases, "plans change")["equal"] == {"0:100": True, "fsdp2": True, "pipeline": True}


def test_a_checkpoint_goes_on_under_another_plan_and_in_plain_torch(cases: Cases) -> None:
    found = case(cases, "plans change")

    assert set(found["codes"]) == {0}
    # 1 of the embedding, 2 * 6 of the blocks, 2 of the last layer
    assert found["moments"] == 15
    assert found["to_torch"] < 1e-9
    assert found["to_never_stopped"] < 1e-9
    assert found["as_a_pipeline"] < 1e-9


def test_frozen_and_shared_parameters_go_on_with_the_same_bits_and_in_plain_torch(cases: Cases) -> None:
    found = case(cases, "frozen and shared")

    assert set(found["codes"]) == {0}, found["said"]
    assert found["same"]
    # The shared matrix under both of its names, and the 6 tensors of the first block: the second is frozen.
    assert found["changed"] == ["blocks.0", "embedding", "head"]
    assert found["moments"] == 8
    assert found["to_torch"] < 1e-9
    assert found["distance"] < 1e-9
    assert found["moved"] > 0.1


def test_a_request_to_stop_saves_at_the_boundary_and_nothing_is_lost(cases: Cases) -> None:
    found = case(cases, "stopped")

    # the signal comes to one of three ranks, in its 7th step; dropout is drawn as if there had been none
    assert found["codes"] == [0, 0, 0]
    assert found["saved"] == 7
    assert '"stopped": true' in found["said"][0]
    assert set(found["again"]) == {0}
    assert found["same"]


def test_a_killed_rank_ends_the_others_and_they_go_on_at_the_last_checkpoint(
    cases: Cases,
) -> None:
    found = case(cases, "killed")

    # within the deadline of tests/support/forked_ranks.py; every third step is saved, the newest two are kept
    assert found["codes"] == [75, -9, 75]
    assert found["saved"] == 6
    assert "another rank has failed" in found["said"][0]
    assert set(found["again"]) == {0}
    assert found["same"]
    assert found["kept"] == ["converted.pt", "step-000000009", "step-000000010"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("batch norm", "1 is a BatchNorm1d: its result depends on which samples a device computes together"),
        ("ranks differ", "another plan, model, batch or seed than rank 0"),
        ("scalar", "2.gain has no dimensions, but engine fsdp2 cuts parameters along their first one"),
        ("other layers", "the plan's stages have 4 layers, but the model has 5: plan anew"),
        ("offload", "--offload is of pipelines (engine ministage), and this plan's engine is layered"),
        ("other world", "the plan is for 2 devices, but torchrun started 1 processes"),
        ("optimizer", "LBFGS is not known to update each element by itself"),
        ("other seed", "the checkpoint is of a training with --seed 0"),
    ],
)
def test_what_cannot_be_used_is_refused_with_a_sentence(cases: Cases, name: str, words: str) -> None:
    found = case(cases, "refused")[name]

    assert set(found["codes"]) == {65}
    assert words in found["said"]

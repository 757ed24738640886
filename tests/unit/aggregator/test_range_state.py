"""A range's state on its way from one aggregator to the next."""

from __future__ import annotations

from typing import Any

import pytest

from services.aggregator.range_state import OptimizerSpec, RangeState, StateError
from tests.support.aggregation import ADAMW, gradient, parameters

SPECS = (
    ADAMW,
    OptimizerSpec(kind="adam", lr=0.1),
    OptimizerSpec(kind="sgd", lr=0.1, momentum=0.9),
    OptimizerSpec(kind="sgd", lr=0.1),
)


def state(spec: OptimizerSpec, steps: int) -> RangeState:
    made = RangeState(spec, parameters(50).numpy().tobytes())
    for step in range(1, steps + 1):
        made.step([gradient(50, step, rank).numpy().tobytes() for rank in range(2)])
    return made


@pytest.mark.parametrize("steps", [0, 1, 3])
@pytest.mark.parametrize("spec", SPECS, ids=["adamw", "adam", "momentum", "sgd"])
def test_a_moved_state_goes_on_to_the_bit(spec: OptimizerSpec, steps: int) -> None:
    stayed = state(spec, steps)

    moved = RangeState.unpacked(spec, *stayed.packed())

    assert moved.parameters == stayed.parameters
    for each in (stayed, moved):
        each.step([gradient(50, 9, 0).numpy().tobytes()])
    assert moved.parameters == stayed.parameters
    assert moved.parameters != state(spec, steps).parameters


@pytest.mark.parametrize(
    ("vectors", "scalars", "length", "reason"),
    [
        (("exp_avg",), {"step": 1.0}, 400, "not the moments of adamw: exp_avg, step"),
        (("exp_avg", "exp_avg_sq"), {}, 600, "not the moments of adamw: exp_avg, exp_avg_sq"),
        ((), {"lr": 1.0}, 200, "not the moments of adamw: lr"),
        (("exp_avg", "exp_avg_sq"), {"step": 1.0}, 601, "601 bytes are not parameters and 2 vectors"),
    ],
)
def test_what_is_no_state_of_the_optimizer_is_refused(vectors: Any, scalars: Any, length: int, reason: str) -> None:
    with pytest.raises(StateError, match=reason):
        RangeState.unpacked(ADAMW, vectors, scalars, bytes(length))

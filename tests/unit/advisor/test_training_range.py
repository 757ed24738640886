"""Machines, workers and batches far outside of what was measured are not known, with every algorithm."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.jobs import Configuration
from schemas.predictions import Objective
from services.advisor.core.table import build
from services.advisor.core.trained_model import TrainedModel
from services.advisor.models.baselines.learned import Linear
from services.advisor.models.baselines.regressor_model import RegressorAlgorithm
from services.advisor.models.gp.algorithm import GpAlgorithm
from tests.support.examples import examples
from tests.support.gp_tables import World, of_task

WORLD = World(tasks=6)
"""1 to 8 cores, 4 to 32 GB, 1 to 8 workers (so 1 to 64 cores together), batches of 16 and 64."""


@pytest.fixture(scope="module", params=["gp", "plain"])
def trained(request: pytest.FixtureRequest) -> TrainedModel:
    algorithm = GpAlgorithm() if request.param == "gp" else RegressorAlgorithm(Linear(Objective.TIME))
    records = [one for one in WORLD.records() if one.task.task != "delta"]
    return algorithm.fit(records, WORLD.profiles(), seed=0)


def why_unknown(trained: TrainedModel, **changes: Any) -> str:
    record = of_task(WORLD.records(), "delta")[0]
    where = Configuration(**{**record.configuration.model_dump(exclude={"type"}), **changes})
    asked = record.model_copy(update={"configuration": where})
    (told,) = trained.predict(build([asked], WORLD.profiles(), encoder=trained.encoder)[0].without_outcomes()).unknown
    return told


def test_a_machine_of_sixty_times_the_memory_is_not_known_and_the_measured_range_is_told(trained: TrainedModel) -> None:
    told = why_unknown(trained, instance_type="giant", vcpu=8.0, memory_gb=32.0 * 60)
    assert told == "far outside of what was measured: memory in GB 1920 (measured: 4 to 32)"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"vcpu": 96.0, "memory_gb": 32.0}, "vCPU 96 (measured: 1 to 8)"),
        ({"workers": 64}, "workers 64 (measured: 1 to 8)"),
        ({"vcpu": 16.0, "memory_gb": 32.0, "workers": 16}, "cores of all workers 256 (measured: 1 to 64)"),
        ({"batch_size": 4096}, "batch size 4096 (measured: 16 to 64)"),
        ({"vcpu": 0.1}, "vCPU 0.1 (measured: 1 to 8)"),
    ],
)
def test_what_lies_far_outside_is_named(trained: TrainedModel, changes: dict[str, Any], named: str) -> None:
    assert why_unknown(trained, **changes).endswith(named)


@settings(max_examples=examples(25))
@given(
    vcpu=st.sampled_from([0.5, 1.0, 3.0, 8.0, 16.0]),
    memory_gb=st.sampled_from([2.0, 4.0, 20.0, 64.0]),
    batch_size=st.integers(8, 128),
)
def test_up_to_one_doubling_beyond_is_answered(
    trained: TrainedModel, vcpu: float, memory_gb: float, batch_size: int
) -> None:
    assert "far outside" not in why_unknown(trained, vcpu=vcpu, memory_gb=memory_gb, batch_size=batch_size)

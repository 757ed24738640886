"""The rules ``released`` give the plans of Zorse's released planner: its latency to the last digit, its ministages."""

from __future__ import annotations

import pytest

from services.planner.core import zorse
from services.planner.core.profile import Infeasible
from services.planner.core.rules import CORRECTED, RELEASED
from tests.support.peer_planners import read, stages_of, zorse_problem

CASES = [
    ("llama7b_clusterA.json", "clusterA_info.json"),
    ("llama_tiny_example.json", "example_cluster_info.json"),
    ("example_training_config.json", "example_cluster_info.json"),
]


@pytest.mark.parametrize(("name", "cluster"), CASES)
def test_plan(name: str, cluster: str) -> None:
    expected = read(f"zorse/{name}")
    problem = zorse_problem(expected["model_name"], cluster, expected["sequence_length"], expected["global_batch_size"])
    plan = zorse.plan(problem, RELEASED)

    assert isinstance(plan, zorse.Plan)
    assert plan.step_ms == expected["latency"]
    assert plan.microbatch == expected["microbatch_size"]
    assert plan.turns == expected["interleave_degree"]
    kinds = [device.kind for device in problem.devices]
    assert stages_of(as_config(plan), kinds) == stages_of(expected, kinds)


def as_config(plan: zorse.Plan) -> dict[str, object]:
    return {
        "pipeline_config": [
            {
                "layer_partition": [stage.first, stage.last],
                "gpu_ranks": [device.rank for device in plan.groups[stage.group].group.devices],
                "num_microbatches_per_rank": list(plan.groups[stage.group].counts),
            }
            for stage in plan.stages
        ]
    }


@pytest.mark.parametrize(("name", "cluster"), CASES[:2])
def test_the_corrected_plan_is_no_slower_by_the_corrected_model(name: str, cluster: str) -> None:
    expected = read(f"zorse/{name}")
    problem = zorse_problem(expected["model_name"], cluster, expected["sequence_length"], expected["global_batch_size"])
    corrected = zorse.plan(problem, CORRECTED)

    assert isinstance(corrected, zorse.Plan)
    # Collectives weigh nothing in the released latency; these models are bound by computing.
    assert corrected.step_ms <= expected["latency"] * 1.05


def test_no_memory_is_no_plan() -> None:
    problem = zorse_problem("deepspeedllama_tiny", "example_cluster_info.json", 512, 128)
    plan = zorse.plan(zorse.Problem(problem.devices, problem.network, problem.model, 128, memory_share=0.1))

    assert isinstance(plan, Infeasible)
    assert plan.missing_gib > 0

"""Grids of jobs, and when a cost is believed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from services.collector.cloud.cost_settlement import (
    BilledCost,
    CostStability,
    Observation,
    Settlement,
    observe,
    settlement_of,
)
from services.collector.cloud.grid import GridFile, JobPlan, job_requests
from tests.support.grid_files import grid_fields, grid_requests


def test_a_grid_is_the_product_and_whole_rounds_come_first() -> None:
    requests = grid_requests(repeats=2)

    assert len(requests) == 2 * 2 * 2 * 2
    assert [request.plan.repeat for request in requests] == [0] * 8 + [1] * 8
    places = {
        (it.plan.configuration.instance_type, it.plan.configuration.workers, it.plan.configuration.batch_size)
        for it in requests
    }
    assert len(places) == 8
    assert all(re.fullmatch(r"[a-z0-9_-]{1,63}", request.plan.job) for request in requests)
    assert len({request.plan.job for request in requests}) == 16
    assert all(request.container.env == {"RUN": request.plan.job} for request in requests)


def test_the_example_is_a_grid() -> None:
    example = Path(__file__).resolve().parents[3] / "docs" / "examples" / "vertex.json"
    assert len(job_requests(GridFile.model_validate_json(example.read_bytes()))) == 3 * 3 * 3


def test_the_same_job_has_the_same_label_whatever_else_changes() -> None:
    """What was submitted is found again: labels depend on what a job is, not on prices, images or order."""
    first = {request.plan.job for request in grid_requests()}
    fields = grid_fields(workers=[3, 2], batch_sizes=[64, 16], parallel=3, prices=None)
    fields["machine_types"] = {"e2-highmem-8": {}, "n1-standard-4": {}}
    fields["tasks"][0]["container"]["image_uri"] = "gcr.io/p/agnews:2"

    assert {request.plan.job for request in job_requests(GridFile.model_validate(fields))} == first
    assert not first & {request.plan.job for request in grid_requests(name="other")}


def test_what_is_known_travels_with_the_job() -> None:
    plan = grid_requests()[0].plan
    assert JobPlan.model_validate_json(plan.model_dump_json()) == plan
    assert plan.price is not None
    assert (plan.price.usd_per_hour, plan.configuration.vcpu, plan.local_run) == (0.2185, 4, "local-1")


def test_a_task_may_vary_other_things() -> None:
    fields = grid_fields()
    fields["tasks"].append(
        {
            **fields["tasks"][0],
            "task": {"task": "udpos"},
            "workers": [1],
            "batch_sizes": [8],
            "machine_types": {"x": {}},
        }
    )
    requests = job_requests(GridFile.model_validate(fields))
    assert len(requests) == 9
    assert requests[-1].plan.configuration.instance_type == "x"


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"tasks": []}, "at least 1 item"),
        ({"workers": []}, "no numbers of workers"),
        ({"workers": [0]}, "greater than or equal to 1"),
        ({"machine_types": {}}, "no machine_types"),
        ({"prices": None}, "a price without a day is none"),
        ({"name": "With Space"}, "pattern"),
        ({"wrokers": [1]}, "Extra inputs"),
        ({"parallel": 0}, "greater than or equal to 1"),
        ({"machine_types": {"x": {"usd_per_hour": -1}}}, "greater than or equal to 0"),
    ],
)
def test_what_is_wrong_in_a_grid_is_named(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        GridFile.model_validate_json(json.dumps(grid_fields(**changes)))


def test_accelerators_are_part_of_a_job() -> None:
    """Under the catalogue's names, with their memory; numbers of one machine type are different jobs."""
    fields = grid_fields(
        machine_types={
            "n1-standard-8": {"vcpu": 8, "accelerator_type": "NVIDIA_TESLA_T4", "accelerator_count": 2},
            "n1-standard-8+1xV100": {"vcpu": 8},
            "a2-highgpu-1g": {"accelerator_type": "NVIDIA_TESLA_A100"},
        },
        workers=[1],
        batch_sizes=[16],
    )
    fields["tasks"][0]["container"]["args"] = ["{machine_type}", "{accelerator_type}", "{accelerator_count}"]
    requests = job_requests(GridFile.model_validate(fields))

    places = [request.plan.configuration for request in requests]
    assert [(it.instance_type, it.accelerator, it.accelerators, it.accelerator_memory_gb) for it in places] == [
        ("n1-standard-8+2xT4", "T4", 2, 16),
        ("n1-standard-8+1xV100", "V100", 1, 16),
        ("a2-highgpu-1g", "A100-40GB", 1, 40),
    ]
    assert requests[0].container.args == ("n1-standard-8", "NVIDIA_TESLA_T4", "2")
    assert len({request.plan.job for request in requests}) == 3


def test_jobs_without_accelerators_keep_their_labels() -> None:
    """What an earlier version submitted is found again."""
    assert grid_requests()[0].plan.job == "agnews-agnews-n1-standard-4-w2-b16-r0-cdf6500b799a"


@pytest.mark.parametrize(
    ("machine_types", "complaint"),
    [
        (
            {"a2-highgpu-1g": {}},
            "not none: write accelerator_type NVIDIA_TESLA_A100 and accelerator_count 1",
        ),
        ({"g2-standard-24": {"accelerator_type": "NVIDIA_L4"}}, "always has 2 x L4, not 1 x L4"),
        ({"a3-newgpu-8g": {}}, "exists with accelerators only"),
        ({"e2-highmem-8": {"accelerator_type": "NVIDIA_TESLA_T4"}}, "can be attached to n1 machines"),
        ({"n1-standard-8": {"accelerator_type": "NVIDIA_L4"}}, "n1-standard-8 cannot have L4: it comes with g2-"),
        ({"n1-standard-8": {"accelerator_type": "NVIDIA_TESLA_T4", "accelerator_count": 3}}, "1, 2, 4 times"),
        ({"n1-standard-96": {"accelerator_type": "NVIDIA_TESLA_V100"}}, "may have 12 vCPUs"),
        ({"n1-standard-8": {"accelerator_type": "T4"}}, "'T4' is none of NVIDIA_TESLA_K80"),
        ({"n1-standard-8": {"accelerator_count": 1}}, "accelerator_count is given, but no accelerator_type"),
        ({"n1-standard-8+1xT4": {"accelerator_type": "NVIDIA_TESLA_V100"}}, "contradict the name"),
        ({"n1-standard-8+1xA10G": {}}, "Vertex AI has no accelerator A10G"),
        ({"n1-standard-8+1xfoo": {}}, "Vertex AI has no accelerator foo"),
    ],
)
def test_machines_that_google_does_not_have_are_refused(machine_types: dict[str, Any], complaint: str) -> None:
    """Before anything is submitted, and in a dry run."""
    with pytest.raises(ValidationError) as raised:
        GridFile.model_validate(grid_fields(machine_types=machine_types))
    assert complaint in str(raised.value)


def test_a_grids_price_of_zero_is_no_price() -> None:
    requests = grid_requests(machine_types={"n1-standard-4": {"usd_per_hour": 0}})
    assert requests[0].plan.price is None


def test_an_unknown_placeholder_is_named() -> None:
    fields = grid_fields()
    fields["tasks"][0]["container"]["args"] = ["{batchsize}"]
    with pytest.raises(ValidationError, match=r"\{batchsize\} in '\{batchsize\}' is none of task, machine_type"):
        GridFile.model_validate(fields)


def test_a_job_that_stands_twice_is_named() -> None:
    fields = grid_fields()
    fields["tasks"].append(fields["tasks"][0])
    with pytest.raises(ValueError, match="stands in the file twice"):
        job_requests(GridFile.model_validate(fields))


STABILITY = CostStability(polls=3, spacing_s=3_600, min_age_s=86_400, timeout_s=604_800)
ENDED_S = 1_000_000.0


def _after(costs: list[float | None], every_s: float = 3_600.0) -> tuple[Observation | None, float]:
    """Looks that see these costs, and the time of the last."""
    seen: Observation | None = None
    now_s = ENDED_S
    for usd in costs:
        now_s += every_s
        seen = observe(seen, None if usd is None else BilledCost(usd, 1), now_s, STABILITY)
    return seen, now_s


@pytest.mark.parametrize(
    ("costs", "settlement"),
    [
        ([None] * 30, Settlement.WAIT),
        ([1.0] * 23, Settlement.WAIT),  # not a day old
        ([1.0] * 24, Settlement.BILLED),
        ([1.0] * 22 + [1.5, 1.5], Settlement.WAIT),  # changed two polls ago
        ([1.0] * 22 + [1.5, 1.5, 1.5], Settlement.BILLED),
        ([1.0] * 22 + [1.0000000001] * 2, Settlement.BILLED),  # the order of adding
        ([1.0] * 20 + [None] * 4 + [1.0] * 2, Settlement.WAIT),  # vanished and came back
        ([-2.0] * 30, Settlement.NEGATIVE),
        ([-0.001] * 30, Settlement.BILLED),
        ([None] * 168, Settlement.DERIVED),
        ([None] * 167 + [1.0], Settlement.WAIT),  # late, but there
    ],
)
def test_a_cost_is_believed_when_it_stays(costs: list[float | None], settlement: Settlement) -> None:
    seen, now_s = _after(costs)
    assert settlement_of(seen, ENDED_S, now_s, STABILITY) is settlement


def test_looks_in_a_hurry_count_once() -> None:
    seen, now_s = _after([1.0] * 2_000, every_s=60.0)  # 33 hours: about one counted look an hour
    assert seen is not None
    assert seen.polls == 34
    hasty = None
    for second in range(100):
        hasty = observe(hasty, BilledCost(1.0, 1), 2e6 + second, STABILITY)
    assert settlement_of(hasty, ENDED_S, 2e6 + 100, STABILITY) is Settlement.WAIT
    assert now_s > ENDED_S


def test_a_row_more_starts_anew_even_at_the_same_sum() -> None:
    seen = observe(None, BilledCost(1.0, 1), 0.0, STABILITY)
    seen = observe(seen, BilledCost(1.0, 2), 4_000.0, STABILITY)
    assert seen is not None
    assert seen.polls == 1


@given(st.lists(st.none() | st.sampled_from([1.0, 2.0]), max_size=60))
def test_billed_is_only_what_the_last_looks_agree_on(costs: list[float | None]) -> None:
    seen, now_s = _after(costs)
    if settlement_of(seen, ENDED_S, now_s, STABILITY) is Settlement.BILLED:
        assert seen is not None
        assert costs[-3:] == [seen.usd] * 3
        assert len(costs) >= 24

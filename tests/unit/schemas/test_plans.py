"""Messages of the planner refuse what cannot be planned or carried out, in a sentence."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pydantic import ValidationError

from schemas.devices import Cluster, Device, Link
from schemas.layers import Dtype, LayerClass, LayerProfile
from schemas.plans import MAX_BATCH, DevicePlan, Plan, PlanReply, PlanRequest, StagePlan
from tests.support.layer_profiles import cluster, layer, profile, request

HARDWARE = cluster(("fast", "a", 4), ("slow", "b", 4))


def link(first: str, second: str) -> Link:
    return Link(first=first, second=second, bytes_per_s=1, latency_us=0)


def row(rank: int, samples: int, share: float, **changes: Any) -> dict[str, Any]:
    fields = {"microbatches": min(samples, 1), "planned_bytes": 1, "allowed_bytes": 2, "busy_share": 1.0}
    return {"rank": rank, "samples": samples, "state_share": share} | fields | changes


def plan(**changes: Any) -> Plan:
    fields: dict[str, Any] = {
        "plan": "p",
        "job": "train",
        "engine": "layered",
        "strategy": "uneven",
        "batch": 8,
        "devices": [row(0, 6, 0.25), row(1, 2, 0.75)],
        "step_us": 10.0,
        "step_low_us": 9.0,
        "step_high_us": 11.0,
    }
    return Plan.model_validate(fields | changes)


def test_a_plan_survives_json() -> None:
    assert Plan.model_validate_json(plan().model_dump_json()) == plan()
    assert plan().devices[0].microbatch == 6


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"devices": [row(0, 6, 0.25), row(1, 1, 0.75)]}, "devices of one stage have 7 samples instead of 8"),
        ({"devices": [row(0, 0, 0.25), row(1, 0, 0.75)]}, "devices of one stage have 0 samples instead of 8"),
        ({"devices": [row(0, 6, 0.25), row(1, 2, 0.7)]}, "shares of the state add up to 0.950000 instead of 1"),
        ({"devices": [row(1, 6, 0.25), row(0, 2, 0.75)]}, "devices have to be listed by rank from 0 to 1"),
        ({"devices": [row(0, 8, 1.0, microbatches=3)]}, "rank 0: 3 micro-batches do not divide 8 samples"),
        ({"devices": [row(0, 8, 1.0, microbatches=0)]}, "rank 0: 8 samples in 0 micro-batches"),
        ({"step_low_us": 10.5}, "10.5, 10, 11 us are not in ascending order"),
        ({"batch": MAX_BATCH + 1}, f"less than or equal to {MAX_BATCH}"),
    ],
)
def test_a_plan_that_cannot_be_carried_out(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        plan(**changes)


def test_each_stage_of_a_pipeline_has_all_samples() -> None:
    rows = [row(0, 8, 0.5, stage=0), row(1, 8, 0.5, stage=1), row(2, 0, 0.0, stage=2)]

    assert plan(devices=rows).devices[1].samples == 8


def test_a_stage_has_layers() -> None:
    with pytest.raises(ValidationError, match="stage 1: layers 4 to 3"):
        StagePlan(stage=1, ranks=(0,), first_layer=4, last_layer=3)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"devices": HARDWARE.devices[::-1]}, "devices have to be listed by rank from 0 to 1"),
        ({"links": (link("a", "c"),)}, "a link names machine c, which has no device"),
        ({"links": (link("a", "b"), link("b", "a"))}, "the link of a and b is given twice"),
    ],
)
def test_a_cluster_that_does_not_fit_together(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        Cluster.model_validate(HARDWARE.model_dump() | changes)


def test_ranks_of_a_machine_follow_one_another() -> None:
    devices = [
        Device(rank=rank, kind="fast", machine=machine, memory_bytes=1) for rank, machine in enumerate(("a", "b", "a"))
    ]

    with pytest.raises(ValidationError, match="ranks of machine a have to follow one another"):
        Cluster(devices=tuple(devices))


@pytest.mark.parametrize("figure", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize("name", ["state_share", "busy_share", "measured", "threshold"])
def test_figures_that_are_no_numbers_are_refused(name: str, figure: str) -> None:
    """JSON as Python writes it has them, and bounds alone would let NaN pass."""
    made = plan(reasons=[{"measured": 3.5, "threshold": 3.5, "unit": "us", "sentence": "it is"}])
    spoiled = re.sub(rf'"{name}":[0-9.]+', f'"{name}":{figure}', made.model_dump_json())

    with pytest.raises(ValidationError, match=rf"{name}\n  Input should be a finite number"):
        Plan.model_validate_json(spoiled)


def test_limits_of_a_request() -> None:
    with pytest.raises(ValidationError, match="less than 1024"):
        cluster(*[("fast", "a", 1)] * 1_025)
    with pytest.raises(ValidationError, match="less than or equal to 65536"):
        request(HARDWARE, (profile(),), 65_537)
    with pytest.raises(ValidationError, match="at most 256 items"):
        LayerClass.model_validate(layer("block", 1, 1, 1.0).model_dump() | {"saved_bytes": [1] * 257})


def test_a_request_has_profiles_or_a_task() -> None:
    with pytest.raises(ValidationError, match="give either the task of known profiles, or profiles"):
        PlanRequest(job="train", cluster=HARDWARE, batch=1)
    with pytest.raises(ValidationError, match="give at least one strategy"):
        request(HARDWARE, (profile(),), strategies=())
    assert PlanRequest(job="train", task="tiny", cluster=HARDWARE, batch=1).profiles == ()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"order": (0, 1, 7)}, "order names class 7 of 3"),
        ({"order": (0, 1, 2)}, "block: 6 layers, order has 1"),
    ],
)
def test_an_order_of_other_layers(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        LayerProfile.model_validate(profile().model_dump() | changes)


@pytest.mark.parametrize(
    ("field", "sentence"),
    [
        ("backward_us", "block: 4 forward times, 1 backward times and 4 sizes of what is saved"),
        ("forward_us_p10", "block: forward_us_p10 has 1 values instead of 4"),
    ],
)
def test_lists_of_other_lengths(field: str, sentence: str) -> None:
    block = profile().classes[1]

    with pytest.raises(ValidationError, match=sentence):
        type(block).model_validate(block.model_dump() | {field: (1.0,)})


def test_a_reply_is_a_plan_or_a_refusal() -> None:
    with pytest.raises(ValidationError, match="a plan and a refusal"):
        PlanReply(plan=plan(), refused="no")


@pytest.mark.parametrize(("dtype", "size"), [("float64", 8), ("float32", 4), ("bfloat16", 2), ("float16", 2)])
def test_bytes_of_an_element(dtype: str, size: int) -> None:
    assert Dtype(dtype).item_bytes == size


def test_an_unused_device_has_no_microbatch() -> None:
    assert DevicePlan.model_validate(row(0, 0, 0.0)).microbatch == 0

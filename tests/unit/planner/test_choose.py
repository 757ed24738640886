"""A request becomes a plan with reasons and alternatives, or a sentence that says what is missing and what would do."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.devices import Cluster
from schemas.layers import Dtype, LayerProfile
from schemas.plans import Engine, Plan, PlanReply, PlanRequest, Strategy
from schemas.predictions import Objective
from services.planner.core.choose import plan
from services.planner.core.explain import NAMES
from services.planner.core.inputs import UnusableInputError
from tests.support.examples import examples
from tests.support.layer_profiles import MIB, cluster, profile, request
from tests.support.measured_runs import measured_run

PROFILES = (profile(), profile("slow", 6.0))
UNEVEN = cluster(("fast", "a", 2.5), ("fast", "a", 1.6), ("slow", "b", 1.6))
TINY = cluster(("fast", "a", 0.9), ("fast", "a", 0.9))


def planned(
    hardware: Cluster = UNEVEN, profiles: tuple[LayerProfile, ...] = PROFILES, batch: int = 64, **changes: object
) -> Plan:
    reply = plan(request(hardware, profiles, batch, **changes), profiles)
    assert reply.plan is not None, reply.refused
    return reply.plan


def refused(asked: PlanRequest) -> PlanReply:
    reply = plan(asked, asked.profiles)
    assert reply.plan is None
    return reply


@st.composite
def requests(draw: st.DrawFn) -> PlanRequest:
    devices = [
        (draw(st.sampled_from(("fast", "slow"))), machine, draw(st.floats(1, 5)))
        for machine in "abc"[: draw(st.integers(1, 3))]
        for _ in range(draw(st.integers(1, 2)))
    ]
    return request(
        cluster(*devices), PROFILES, draw(st.integers(len(devices), 40)), memory_share=draw(st.floats(0.5, 1))
    )


@given(requests())
@settings(max_examples=examples(200))
def test_every_plan_fits(asked: PlanRequest) -> None:
    """`Plan` itself refuses samples and shares that do not add up."""
    reply = plan(asked, asked.profiles)
    if reply.plan is None:
        assert reply.refused
        return

    for row, device in zip(reply.plan.devices, asked.cluster.devices, strict=True):
        assert row.planned_bytes <= row.allowed_bytes
        assert row.allowed_bytes == pytest.approx(asked.memory_share * device.memory_bytes, abs=2)
    others = [one.step_us for one in reply.plan.alternatives if one.step_us is not None]
    assert all(reply.plan.step_us <= step_us for step_us in others)
    assert len(reply.plan.alternatives) == len(Strategy) - 1


@pytest.mark.parametrize(
    ("measured", "gathered", "says"),
    [
        (Dtype.FLOAT32, Dtype.BFLOAT16, "measured in float32, but are computed in bfloat16 (--gather): measure them"),
        (Dtype.BFLOAT16, Dtype.FLOAT32, "own type: where that is another one, plan with --gather bfloat16"),
        (Dtype.BFLOAT16, Dtype.BFLOAT16, ""),
        (Dtype.FLOAT32, Dtype.FLOAT32, ""),
        (Dtype.FLOAT64, Dtype.FLOAT32, ""),
    ],
)
def test_a_plan_says_first_where_its_layers_were_measured_in_another_type(
    measured: Dtype, gathered: Dtype, says: str
) -> None:
    """Times of one type say nothing of another's: a GPU computes bfloat16 several times as fast as float32."""
    found = planned(UNEVEN, (profile(dtype=measured), profile("slow", 6.0, dtype=measured)), gather_dtype=gathered)

    first, *others = (reason.sentence for reason in found.reasons)
    assert says in first
    assert ("not to be relied on" in first) == bool(says)
    assert not any("not to be relied on" in other for other in others)


def test_uneven_devices_get_uneven_work() -> None:
    found = planned()

    assert (found.engine, found.strategy) == (Engine.LAYERED, Strategy.UNEVEN)
    samples = [device.samples for device in found.devices]
    assert sum(samples) == 64
    assert samples[2] < samples[1] <= samples[0]  # the slow device three times as slow; rank 1 has less memory
    assert {device.rank: device.extrapolated for device in found.devices} == {
        device.rank: device.microbatch > 4 for device in found.devices
    }
    sentences = " / ".join(reason.sentence for reason in found.reasons)
    assert "bounds the step" in sentences
    assert "the even split does not fit: ranks 1, 2 need up to" in sentences


def test_a_device_that_holds_less_state_says_why() -> None:
    hardware = cluster(("fast", "a", 1.1), ("fast", "a", 4.0))
    found = planned(hardware, batch=20, strategies=(Strategy.UNEVEN,))
    (reason,) = [one for one in found.reasons if "holds less state" in one.sentence]

    assert reason.rank == 0
    assert reason.unit == "bytes"
    assert reason.measured < reason.threshold
    share = found.devices[0].state_share
    # What its samples leave of what it may use is all state: 68 million parameters * 16 bytes are the whole.
    assert reason.measured == pytest.approx(share * 68_000_000 * 16, rel=1e-6)
    assert share < found.devices[1].state_share


def test_a_model_that_is_built_as_a_whole_needs_room_for_that() -> None:
    """Idle 300 MiB, 1,000 MiB of the model, and half of 68 million parameters and gradients: 1,559 MiB of 1,536.

    A step on `layered` needs 1,153 (above); a GPU's memory has no part in it.
    """
    small = (("cpu", "a", 2.0), ("cpu", "a", 2.0))
    parts, whole = profile("cpu"), profile("cpu", construction_bytes=1_000 * MIB)
    asked = {"strategies": (Strategy.EVEN,), "batch": 8}
    fitting = planned(cluster(*small), (parts,), **asked)
    reply = refused(request(cluster(*small), (whole,), 8, strategies=(Strategy.EVEN,)))

    assert fitting.devices[0].planned_bytes < 1_536 * MIB
    sentence = "rank 1 needs 1.5 of 1.5 GiB at its start, where build() makes the whole model at once: "
    assert sentence in reply.refused
    # 2 * (1,300 MiB + 68,000,000 / 2 * 8 bytes - 1,536 MiB)
    assert reply.missing_bytes == pytest.approx(2 * (68_000_000 * 4 - 236 * MIB), abs=2)
    gpu = profile("fast", construction_bytes=1_000 * MIB)
    assert planned(cluster(("fast", "a", 2.0), ("fast", "a", 2.0)), (gpu,), **asked).devices
    large = planned(cluster(("cpu", "a", 8.0), ("cpu", "a", 8.0)), (profile("cpu", construction_bytes=4_000 * MIB),), 8)
    assert large.devices[0].planned_bytes >= 4_300 * MIB


def test_equal_devices_with_room_run_on_fsdp2() -> None:
    hardware = cluster(("fast", "a", 8.0), ("fast", "a", 8.0))
    found = planned(hardware, batch=8, strategies=(Strategy.EVEN, Strategy.UNEVEN))

    assert found.engine is Engine.FSDP2
    assert [device.state_share for device in found.devices] == [0.5, 0.5]
    (line,) = found.launch
    assert line.startswith(
        "torchrun --standalone --nproc-per-node 2 --no-python turnbuckle run trainer-worker plan.json "
    )


def test_the_forward_pass_is_done_again_where_not_all_of_it_can_be_kept() -> None:
    """Of the 1,229 MiB that may be used, `layered` needs 1,153 and `fsdp2` 1,637."""
    small, large = (cluster(("fast", "a", gib), ("fast", "a", gib)) for gib in (1.6, 8.0))
    kept = planned(large, batch=8, strategies=(Strategy.EVEN,))
    again = planned(small, batch=8, strategies=(Strategy.EVEN,))

    assert (kept.engine, again.engine) == (Engine.FSDP2, Engine.LAYERED)
    assert [device.planned_bytes // MIB for device in kept.devices] == [1637, 1637]
    assert [device.planned_bytes // MIB for device in again.devices] == [1153, 1153]
    assert again.step_us > kept.step_us

    unchained = tuple(one.model_copy(update={"chain": False}) for one in PROFILES)
    reply = refused(request(small, unchained, 8, strategies=(Strategy.EVEN,)))
    assert reply.refused.startswith("no plan fits; the even split comes closest: ranks 0, 1 need up to 1.6 of 1.2 GiB")


def test_parameters_without_dimensions_are_not_planned_for_fsdp2() -> None:
    """`fully_shard` refuses them; the same plan by engine layered, which computes the forward pass again."""
    asked = {"batch": 8, "strategies": (Strategy.EVEN,)}
    scalar = (profile(), profile(scalar_parameters=True, measured_ns=2))
    hardware = cluster(("fast", "a", 8.0), ("fast", "a", 8.0))

    assert planned(hardware, scalar[:1], **asked).engine is Engine.FSDP2
    assert planned(hardware, scalar, **asked).engine is Engine.LAYERED
    unchained = profile(scalar_parameters=True, chain=False)
    with pytest.raises(
        UnusableInputError, match=r"cannot cut parameters without dimensions\. Make them vectors of one"
    ):
        plan(request(hardware, (unchained,), **asked), (unchained,))


def test_a_model_that_is_no_chain_has_even_state() -> None:
    profiles = tuple(one.model_copy(update={"chain": False}) for one in PROFILES)
    found = planned(cluster(("fast", "a", 8.0), ("slow", "a", 8.0)), profiles, batch=8)

    assert found.engine is Engine.FSDP2
    pipeline = next(one for one in found.alternatives if one.strategy is Strategy.PIPELINE)
    assert pipeline.refused == "a pipeline needs a model whose layers are a chain"


def test_the_step_includes_the_optimizer() -> None:
    hardware, slow = cluster(("fast", "a", 8.0)), profile(optimizer_us_per_mib=1_000.0)
    quick = profile(optimizer_us_per_mib=0.0)

    # 68 million parameters * 16 bytes = 1037.6 MiB, a millisecond each
    difference_us = planned(hardware, (slow,), 4).step_us - planned(hardware, (quick,), 4).step_us
    assert difference_us == pytest.approx(68_000_000 * 16 / (1 << 20) * 1_000)


def test_the_interval_carries_the_spread_of_the_profile() -> None:
    asked = request(cluster(("fast", "a", 8.0)), PROFILES, 4, strategies=(Strategy.EVEN,))
    flat = profile(optimizer_us_per_mib=0.0)
    reply = plan(asked, (flat,))
    assert reply.plan is not None

    # One device, nothing is sent: all of the step is layers, whose deciles are 10 % off.
    assert reply.plan.step_low_us == pytest.approx(0.9 * reply.plan.step_us)
    assert reply.plan.step_high_us == pytest.approx(1.1 * reply.plan.step_us)
    assert (reply.plan.measured_runs, reply.plan.profiled_step_us) == (0, 0)


def test_earlier_runs_correct_the_step_the_interval_and_the_alternatives() -> None:
    """Twenty runs that took 1.2 times what was predicted: the next within 1.25 ** (1 / 20) of that, 1.1 %.

    That is narrower than the deciles of the profile, 10 % off, which therefore remain.
    """
    asked = request(cluster(("fast", "a", 8.0)), PROFILES, 4, strategies=(Strategy.EVEN,))
    flat = profile(optimizer_us_per_mib=0.0)
    before = plan(asked, (flat,)).plan
    assert before is not None
    runs = [measured_run(1.2, engine=before.engine, profiles=("fast-1",), ended_ns=place) for place in range(20)]
    found = plan(asked, (flat,), runs).plan
    assert found is not None

    assert found.step_us == pytest.approx(1.2 * before.step_us)
    assert found.step_low_us == pytest.approx(0.9 * 1.2 * before.step_us)
    assert found.step_high_us == pytest.approx(1.1 * 1.2 * before.step_us)
    assert (found.measured_runs, found.profiled_step_us) == (20, before.step_us)
    assert [one.step_us for one in found.alternatives] == pytest.approx(
        [1.2 * one.step_us if one.step_us else None for one in before.alternatives]
    )
    assert found.reasons[:-1] == before.reasons
    assert found.reasons[-1].sentence.startswith("20 earlier runs of this model took 1.2 times what the layer profiles")
    assert found.plan != before.plan
    assert Plan.model_validate(found.model_dump()) == found


def test_a_single_run_widens_the_interval() -> None:
    asked = request(cluster(("fast", "a", 8.0)), PROFILES, 4, strategies=(Strategy.EVEN,))
    before = plan(asked, PROFILES).plan
    assert before is not None
    found = plan(asked, PROFILES, [measured_run(1.0, engine=before.engine)]).plan
    assert found is not None

    assert found.step_us == before.step_us
    assert found.step_low_us == pytest.approx(before.step_us / 1.25)
    assert found.step_high_us == pytest.approx(before.step_us * 1.25)


def test_equal_requests_have_equal_plans() -> None:
    assert planned() == planned()
    assert planned().plan != planned(batch=60).plan


def test_the_cheapest_strategy_leaves_out_devices_that_are_not_worth_it() -> None:
    """By cost, only devices that are used count; without prices the fastest is taken."""
    found = planned(objective=Objective.COST)
    assert found.usd_per_step == 0

    priced = tuple(device.model_copy(update={"usd_per_hour": 3.6}) for device in UNEVEN.devices)
    dear = planned(UNEVEN.model_copy(update={"devices": priced}), objective=Objective.COST)
    used = sum(1 for device in dear.devices if device.samples or device.state_share)
    # 3.6 $/h are 0.001 $/s for each used device
    assert dear.usd_per_step == pytest.approx(0.001 * used * dear.step_us / 1e6)
    others = [one.usd_per_step for one in dear.alternatives if one.step_us is not None]
    assert all(dear.usd_per_step <= usd for usd in others)


def test_what_is_missing_and_a_smaller_batch() -> None:
    hardware = cluster(("fast", "a", 1.4), ("fast", "a", 1.1), ("slow", "b", 1.1))
    reply = refused(request(hardware, PROFILES, 16))

    assert reply.refused.startswith("no plan fits; the uneven split comes closest: needs")
    assert "MiB are missing" in reply.refused
    assert reply.missing_bytes > 0
    smaller = re.fullmatch(r"a batch of (\d+) samples instead of 16", reply.remedy)
    assert smaller is not None
    fits = int(smaller[1])
    assert plan(request(hardware, PROFILES, fits), PROFILES).plan is not None
    assert plan(request(hardware, PROFILES, fits + 1), PROFILES).plan is None


def test_further_devices_where_no_batch_fits() -> None:
    """Two devices of 0.9 GiB may use 0.675 GiB each: the state alone takes 1.01 GiB, and each worker 0.51 GiB."""
    reply = refused(request(TINY, PROFILES, 16))

    needed = re.fullmatch(r"(\d+) more devices of kind fast \(0\.9 GiB\)", reply.remedy)
    assert needed is not None
    enough = 2 + int(needed[1])
    strategies = (Strategy.UNEVEN,)
    assert plan(request(cluster(*[("fast", "a", 0.9)] * enough), PROFILES, 16, strategies=strategies), PROFILES).plan
    one_less = cluster(*[("fast", "a", 0.9)] * (enough - 1))
    assert plan(request(one_less, PROFILES, 16, strategies=strategies), PROFILES).plan is None


def test_more_devices_than_samples() -> None:
    reply = refused(request(UNEVEN, PROFILES, 2, strategies=(Strategy.UNEVEN,)))

    assert "3 devices, and 2 samples: each device needs one" in reply.refused
    assert reply.remedy == "a batch of at least 3 samples"


def test_every_strategy_has_a_name() -> None:
    assert set(NAMES) == set(Strategy)


def test_a_large_batch_moves_in_units() -> None:
    found = planned(cluster(("fast", "a", 60.0), ("slow", "a", 60.0)), batch=4_096, strategies=(Strategy.UNEVEN,))

    assert sum(device.samples for device in found.devices) == 4_096
    # 4,096 samples in at most 128 units are units of 32
    assert math.gcd(*(device.samples for device in found.devices)) % 32 == 0

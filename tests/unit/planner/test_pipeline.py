"""Pipelines: groups are cut where the network is slow, every plan fits, and none by the released rules is faster."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from schemas.devices import LinkRate
from schemas.plans import Strategy
from services.planner.core import choose, zorse
from services.planner.core.pipeline_time import Stage, pipeline_ms
from services.planner.core.profile import Device, Infeasible, Latency, LayerTimes, Network
from services.planner.core.rules import RELEASED
from services.planner.core.zorse_groups import fixed_ms, ring_ms, send_ms, splits
from services.trainer.worker.plan_file import check_plan
from services.trainer.worker.routes import pipeline_of
from tests.fuzz.random_plans import random_request
from tests.support.examples import examples
from tests.support.layer_profiles import cluster, profile, request

GIB = 1 << 30


@st.composite
def problems(draw: st.DrawFn) -> zorse.Problem:
    machines = draw(st.integers(1, 3))
    devices = tuple(
        Device(rank, kind, draw(st.sampled_from((8.0, 16.0, 24.0))), machine)
        for rank, (machine, kind) in enumerate(
            (machine, draw(st.sampled_from("ab")))
            for machine in range(machines)
            for _ in range(draw(st.integers(1, 3)))
        )
    )
    rate = [[draw(st.floats(0.5, 20)) for _ in range(machines)] for _ in range(machines)]
    rates = tuple(
        tuple(50.0 if i == j else rate[min(i, j)][max(i, j)] for j in range(machines)) for i in range(machines)
    )
    latencies = tuple(tuple(0.004 if i == j else 0.5 for j in range(machines)) for i in range(machines))
    times = {
        kind: LayerTimes(Latency(draw(st.floats(0.5, 20))), Latency(draw(st.floats(1, 40)), draw(st.floats(0, 3))))
        for kind in "ab"
    }
    layer = zorse.LayerClass(times, draw(st.integers(10_000_000, 200_000_000)), 2_000_000)
    model = zorse.Model((layer,), (0,) * draw(st.integers(4, 24)))
    return zorse.Problem(devices, Network(rates, latencies), model, 2 ** draw(st.integers(2, 6)))


@given(problems())
@settings(max_examples=examples(200))
def test_every_plan_fits_and_has_every_layer_once(problem: zorse.Problem) -> None:
    plan = zorse.plan(problem)
    assume(isinstance(plan, zorse.Plan))
    assert isinstance(plan, zorse.Plan)

    needed = zorse.device_gib(problem, plan.groups, plan.stages, plan.microbatch)
    assert all(needed.get(device.rank, 0) <= device.memory_gib for device in problem.devices)
    assert [layer for stage in plan.stages for layer in range(stage.first, stage.last)] == list(
        range(len(problem.model.order))
    )
    assert all(sum(group.counts) * plan.microbatch == problem.batch for group in plan.groups)
    assert plan.step_ms == pipeline_ms(plan.groups, plan.stages)


@given(problems())
@settings(max_examples=examples(200))
def test_released_plans_are_no_faster_by_the_corrected_model(problem: zorse.Problem) -> None:
    released, corrected = zorse.plan(problem, RELEASED), zorse.plan(problem)
    assume(isinstance(released, zorse.Plan))
    assert isinstance(released, zorse.Plan)
    # Where a group has no layer, the released rules mistake the groups' speeds, and may chance on a better division.
    assume({stage.group for stage in released.stages} == set(range(len(released.groups))))

    groups = zorse.timed(
        problem, [zorse.group_of(problem, one.group.devices) for one in released.groups], released.microbatch
    )

    assert isinstance(corrected, zorse.Plan)
    assert corrected.step_ms <= pipeline_ms(groups, released.stages) * (1 + 1e-12)


def test_collectives_of_the_released_rules_are_in_seconds() -> None:
    """Two machines with a slow link: by the released rules one group of both seems free of communication."""
    times = {"a": LayerTimes(Latency(1.0), Latency(2.0))}
    model = zorse.Model((zorse.LayerClass(times, 100_000_000, 1_000),), (0,) * 8)
    devices = tuple(Device(rank, "a", 80.0, rank // 2) for rank in range(4))
    network = Network(((50.0, 0.1), (0.1, 50.0)), ((0.004, 0.5), (0.5, 0.004)))
    problem = zorse.Problem(devices, network, model, 16)
    released, corrected = zorse.plan(problem, RELEASED), zorse.plan(problem)
    assert isinstance(released, zorse.Plan)
    assert isinstance(corrected, zorse.Plan)

    whole = zorse.group_of(problem, devices)
    # A ring of 4 over the slow link: 3 * (1e8 * 2 / 2^30 / 4) / 0.1 s * 1.15 = 1606 ms a layer
    assert whole.gather_ms[0] == pytest.approx(1606.5, abs=0.5)
    assert zorse.group_of(problem, devices, RELEASED).gather_ms[0] == pytest.approx(1.6065, abs=0.0005)
    assert len(corrected.groups) == 2
    assert corrected.step_ms < 1_000


def test_an_interleaved_plan_may_fit_where_one_turn_does_not() -> None:
    """Whole layers of one turn do not fit; two neighbouring ministages of several turns do (Zorse's memory check)."""
    times = {"a": LayerTimes(Latency(1.0), Latency(2.0))}
    model = zorse.Model((zorse.LayerClass(times, 200_000_000, 1_000),), (0,) * 12)
    devices = tuple(Device(rank, "a", 15.0, rank // 2) for rank in range(4))
    network = Network(((50.0, 5.0), (5.0, 50.0)), ((0.004, 0.5), (0.5, 0.004)))
    # Six layers a group, each 0.373 GiB whole and 1.118 GiB of optimizer over two devices. One turn: 6 * 0.373 + 6 *
    # 1.118 + 2 = 10.94 GiB; three turns: 4 * 0.373 + 2 * 0.373 / 2 + 6.706 + 2 = 10.57 GiB. All four devices as one
    # group: 12 * 0.373 + 12 * 2.235 / 4 + 2 = 13.2 GiB.
    problem = zorse.Problem(devices, network, model, 8, memory_share=10.7 / 15)

    assert isinstance(zorse.plan(problem, RELEASED), Infeasible)
    plan = zorse.plan(problem)
    assert isinstance(plan, zorse.Plan)
    assert plan.turns >= 2


def test_memory_and_time_of_the_engine_that_carries_it_out() -> None:
    """One group of two devices, which has layers 0 to 1, 2 to 4, 5 in turn, and one that has the rest."""
    times = {"a": LayerTimes(Latency(1.0), Latency(2.0))}
    layer = zorse.LayerClass(times, 200_000_000, 1_000_000)
    model = zorse.Model((layer,), (0,) * 6, is_carried_out=True, reserved_gib=0.0)
    devices = tuple(Device(rank, "a", 15.0) for rank in range(2))
    problem = zorse.Problem(devices, Network(((50.0,),), ((0.004,),)), model, 8)
    group = replace(zorse.group_of(problem, devices), gather_ms=(10.0,), scatter_ms=(20.0,))
    timed = zorse.timed(problem, [group], 2)
    stages = [Stage(0, 0, 2, (2,)), Stage(0, 2, 5, (3,)), Stage(0, 5, 6, (1,))]

    # Twice 3 layers of 200 million parameters of 2 bytes and one more, half of the other 3, half of 6 with 12 bytes; 3
    # outputs of 2 samples of 1 MB
    needed = (2 * 3 + 1) * 0.4e9 + 3 * 0.4e9 / 2 + 6 * 2.4e9 / 2 + 3 * 2 * 1e6
    assert zorse.device_gib(problem, timed, stages, 2)[0] == pytest.approx(needed / GIB)
    # Of 4 micro-batches each device has 2, which take 2 ms a layer forward, and 6 backward with the forward pass again.
    # Fill: 2 layers and 3 of the next ministage; drain: 1 and 3. Then all forward but the very first one, and backward.
    steady = 2 * 2 * 1 + 2 * 3 * 2 + 2 * 1 * 2 + (2 + 3 + 1) * 6 * 2
    # Layers 0 to 4 are gathered twice, the last one once; all are reduced once
    collectives = 5 * 2 * 10 + 10 + 6 * 20
    expected = (2 + 3) * 2 + (1 + 3) * 6 + steady + collectives
    assert pipeline_ms(timed, stages, hides_collectives=False) == pytest.approx(expected)


def test_each_collective_of_a_pipeline_that_is_carried_out_has_its_fixed_part() -> None:
    """Not by the authors' model, which `RELEASED` is compared with, and not where nothing is sent."""
    times = {"a": LayerTimes(Latency(1.0), Latency(2.0))}
    classes = (zorse.LayerClass(times, 1_000_000, 1_000), zorse.LayerClass(times, 0, 1_000))
    model = zorse.Model(classes, (0, 1) * 4)
    devices = tuple(Device(rank, "a", 80.0, min(rank, 1)) for rank in range(3))
    problem = zorse.Problem(devices, Network(((50.0, 2.0), (2.0, 50.0)), ((0.004, 10.0), (10.0, 0.004))), model, 16)
    carried_out = replace(problem, model=replace(model, is_carried_out=True))

    # Two steps of the ring, of 10 ms each less what 10 MB take at 2 GiB/s
    fixed = 2 * (10 - 1e7 / GIB / 2 * 1_000)
    by_bytes, found = zorse.group_of(problem, devices), zorse.group_of(carried_out, devices)
    assert fixed == pytest.approx(10.69, abs=0.005)
    assert found.gather_ms == pytest.approx((by_bytes.gather_ms[0] + fixed, 0.0))
    assert found.scatter_ms == pytest.approx((by_bytes.scatter_ms[0] + fixed, 0.0))
    assert zorse.group_of(carried_out, devices[:1]).gather_ms == (0.0, 0.0)
    assert zorse.group_of(carried_out, devices, RELEASED) == zorse.group_of(problem, devices, RELEASED)


def test_a_planned_pipeline_takes_longer_by_what_collectives_take_whatever_their_size() -> None:
    """One group, whose 8 layers are gathered and reduced once. 10 MB take 1 ms at 10 GB/s, so 10 of 11 are fixed."""
    took_us = []
    for latency_us in (500, 11_000):
        hardware = cluster(
            ("fast", "a", 8.0), ("fast", "a", 8.0), inside=LinkRate(bytes_per_s=10e9, latency_us=latency_us)
        )
        reply = choose.plan(request(hardware, (profile(),), strategies=(Strategy.PIPELINE,)), (profile(),))
        assert reply.plan is not None
        assert [stage.ranks for stage in reply.plan.stages] == [(0, 1)]
        took_us.append(reply.plan.step_us)

    assert took_us[1] - took_us[0] == pytest.approx(8 * 2 * 10_000)


@given(st.integers(0, 1 << 32))
@settings(max_examples=examples(300), deadline=None)
def test_the_trainer_takes_every_pipeline_that_is_planned(seed: int) -> None:
    asked = random_request(Random(seed)).model_copy(update={"strategies": (Strategy.PIPELINE,)})
    reply = choose.plan(asked, asked.profiles)
    assume(reply.plan is not None)
    assert reply.plan is not None

    check_plan(reply.plan)
    pipeline = pipeline_of(reply.plan)

    assert len(pipeline.ministages) == len(reply.plan.stages)
    assert [pipeline.microbatches(device.rank) for device in reply.plan.devices if not device.samples] == [
        () for device in reply.plan.devices if not device.samples
    ]


def test_a_larger_micro_batch_may_fit_where_a_smaller_one_does_not() -> None:
    """The devices' relation of speeds changes with its size, and with it how many layers each group has."""
    times = {"a": LayerTimes(Latency(1.0), Latency(1.0, 2.0)), "b": LayerTimes(Latency(1.0), Latency(1.0))}
    model = zorse.Model((zorse.LayerClass(times, 89_395_153, 2_000_000),), (0,) * 14)
    devices = tuple(Device(rank, kind, 8.0, min(rank, 1)) for rank, kind in enumerate("aaab"))
    network = Network(((50.0, 1.0), (1.0, 50.0)), ((0.004, 0.5), (0.5, 0.004)))
    problem = zorse.Problem(devices, network, model, 4)

    # With micro-batches of 1 sample only one group of all devices fits, whose collectives take seconds.
    single = zorse.plan(replace(problem, max_microbatch=1))
    plan = zorse.plan(problem)
    assert isinstance(single, zorse.Plan)
    assert isinstance(plan, zorse.Plan)
    assert (len(single.groups), len(plan.groups)) == (1, 2)
    assert plan.microbatch == 2
    assert plan.step_ms < single.step_ms / 50


def test_parts_are_cut_where_the_network_is_slowest() -> None:
    rates = ((50.0, 8.0, 2.0), (8.0, 50.0, 2.0), (2.0, 2.0, 50.0))
    devices = [Device(rank, "a", 8.0, rank // 2) for rank in range(6)]

    found = splits(devices, Network(rates, rates))

    assert [[[device.rank for device in part] for part in parts] for parts in found] == [
        [[0, 1, 2, 3, 4, 5]],
        [[0, 1, 2, 3], [4, 5]],
        [[0, 1], [2, 3], [4, 5]],
    ]


def test_more_devices_do_not_change_the_parts_of_one_machine() -> None:
    devices = [Device(rank, "a", 8.0) for rank in range(4)]

    assert len(splits(devices, Network(((5.0,),), ((0.1,),)))) == 1


def test_a_ring_and_a_send_by_hand() -> None:
    network = Network(((10.0, 2.0), (2.0, 10.0)), ((0.004, 0.5), (0.5, 0.004)))
    pair = [Device(0, "a", 8.0, 0), Device(1, "a", 8.0, 1)]
    # One step of half a GiB over 2 GiB/s, 15 % more: 287.5 ms
    assert ring_ms(pair, network, GIB, 1.15) == pytest.approx(287.5)
    assert ring_ms(pair[:1], network, GIB, 1.15) == 0

    # 10 MB take 0.5 ms between them, of which 4.66 ms would be their bytes' alone: nothing is fixed
    assert fixed_ms(pair, network) == 0
    slow = Network(network.gib_per_s, ((0.004, 10.0), (10.0, 0.004)))
    assert fixed_ms(pair, slow) == pytest.approx(10 - 1e7 / GIB / 2 * 1_000)
    assert fixed_ms(pair[:1], slow) == 0

    one, other = (zorse.Group((device,), (0.0,), (0.0,)) for device in pair)
    # 5 MB: 0.5 ms * (0.8 + 0.2 / 2) = 0.45 ms; 10 MB and a GiB: 0.5 ms and 1 / 2 s
    assert send_ms(one, other, network, 5_000_000) == pytest.approx(0.45)
    assert send_ms(one, other, network, 10_000_000 + GIB) == pytest.approx(500.5)


def test_a_batch_that_does_not_divide_is_trained_whole() -> None:
    """Of 7 samples the released rules would train 6, in micro-batches of 2."""
    times = {"a": LayerTimes(Latency(1.0, 5.0), Latency(2.0, 5.0))}
    model = zorse.Model((zorse.LayerClass(times, 1_000_000, 1_000),), (0,) * 4)
    problem = zorse.Problem((Device(0, "a", 8.0),), Network(((5.0,),), ((0.1,),)), model, 7)
    released, corrected = zorse.plan(problem, RELEASED), zorse.plan(problem)
    assert isinstance(released, zorse.Plan)
    assert isinstance(corrected, zorse.Plan)

    assert sum(released.groups[0].counts) * released.microbatch == 6
    assert sum(corrected.groups[0].counts) * corrected.microbatch == 7

"""Loads as functions of time, their files, and the demo's figures."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from schemas.apps import AppSpec
from services._host.simulation.load_profile import (
    DEMO_CPU_LIMIT,
    DEMO_CYCLE_S,
    DEMO_MEMORY_LIMIT_BYTES,
    ContainerLoad,
    LoadPhase,
    Scenario,
    demo_scenario,
)
from services._host.simulation.load_worker import schedule_of

MIB = 1 << 20
LOAD = ContainerLoad(
    name="web",
    phases=(
        LoadPhase(duration_s=1, cpu_cores=0.5, memory_bytes=10 * MIB),
        LoadPhase(duration_s=2, cpu_cores=0, memory_bytes=110 * MIB),
    ),
    memory_rate_bytes_s=100 * MIB,
)


@pytest.mark.parametrize(
    ("time_s", "cores", "memory_mib"),
    # memory grows from 10 to 110 MiB at 100 MiB/s, that is from second 1 to second 2
    [(0, 0.5, 10), (0.9, 0.5, 10), (1, 0, 10), (1.5, 0, 60), (2.0, 0, 110), (2.9, 0, 110), (3.0, 0.5, 10)],
)
def test_demand_at_a_time(time_s, cores, memory_mib):
    assert LOAD.demand_cores(time_s) == cores
    assert LOAD.memory_bytes(time_s) == memory_mib * MIB


def test_offset_shifts_the_cycle():
    shifted = LOAD.model_copy(update={"offset_s": 1.0})
    assert [shifted.demand_cores(t) for t in (0, 2, 2.5)] == [0, 0.5, 0.5]


phases = st.lists(
    st.builds(
        LoadPhase,
        duration_s=st.floats(0.01, 10),
        cpu_cores=st.floats(0, 1),
        memory_bytes=st.integers(0, 1 << 30),
    ),
    min_size=1,
    max_size=5,
)


@given(phases=phases, time_s=st.floats(0, 1000), offset_s=st.floats(0, 100))
def test_demand_is_always_one_of_the_phases(phases, time_s, offset_s):
    load = ContainerLoad(name="x", phases=tuple(phases), offset_s=offset_s)
    assert load.demand_cores(time_s) in {phase.cpu_cores for phase in phases}
    assert 0 <= load.memory_bytes(time_s) <= max(phase.memory_bytes for phase in phases)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"phases": ()}, "at least 1"),
        ({"phases": ({"duration_s": 0},)}, "greater than 0"),
        ({"phases": ({"duration_s": 1, "cpu_cores": 1.5},)}, "needs more than 1 threads"),
        ({"name": "a b"}, "pattern"),
        ({"thread": 2}, "not permitted"),
    ],
)
def test_wrong_loads_are_refused(change, message):
    with pytest.raises(ValidationError, match=message):
        ContainerLoad.model_validate({"name": "web", "phases": ({"duration_s": 1},)} | change)


def test_names_are_unique():
    with pytest.raises(ValidationError, match="used twice: web"):
        Scenario(containers=(LOAD, LOAD))


def test_the_worker_reads_the_plain_form_as_the_model_means_it():
    for load in demo_scenario().containers:
        schedule, threads = schedule_of(json.loads(load.model_dump_json()))
        assert threads == load.threads
        for step in range(200):
            time_s = step * DEMO_CYCLE_S / 200
            assert schedule.demand_cores(time_s) == load.demand_cores(time_s)
            assert schedule.memory_bytes(time_s) == load.memory_bytes(time_s)


def test_the_demo_shows_what_it_is_meant_to_show():
    scenario = demo_scenario()
    names = [load.name for load in scenario.containers]
    assert names == ["web", "api", "worker", "cache", "batch"]
    assert {load.cycle_s for load in scenario.containers} == {DEMO_CYCLE_S}
    times = [step / 20 for step in range(int(DEMO_CYCLE_S * 20))]
    over = [time_s for time_s in times if scenario.demand_cores(time_s) > DEMO_CPU_LIMIT]
    assert 0 < len(over) / len(times) <= 0.15
    bursts = [max(load.demand_cores(time_s) for time_s in times) for load in scenario.containers]
    assert 0.5 <= max(bursts) <= 0.6
    # The limits that it starts with, equations 2.1 and 2.2
    spec = AppSpec.model_validate(
        {"name": "demo", "cpu_limit": DEMO_CPU_LIMIT, "memory_limit": DEMO_MEMORY_LIMIT_BYTES}
    )
    cache = scenario.containers[3]
    assert max(phase.memory_bytes for phase in cache.phases) == 220 * MIB > 1.3 * spec.initial_memory_bytes(5)
    batch = scenario.containers[4]
    growth = max(batch.memory_bytes(t + 0.1) - batch.memory_bytes(t) for t in times)
    assert growth > 90 * MIB, "more in one period than any limit has to spare"
    interpreters = 5 * 12 * MIB
    assert max(scenario.memory_bytes(time_s) for time_s in times) + interpreters < DEMO_MEMORY_LIMIT_BYTES
    assert any(load.demand_cores(time_s) == 0 for load in scenario.containers for time_s in times)
    assert max(bursts) * 1e5 > 3 * spec.initial_quota_us(5)

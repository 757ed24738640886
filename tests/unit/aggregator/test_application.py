"""The aggregators as one application: what is announced, when, and what is left alone."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.aggregations import APPLICATION
from schemas.apps import AppSpec
from schemas.streams import APPS
from services._host.cgroupfs import CgroupLayout, ControllerMount
from services._runtime.clock import SystemClock
from services._runtime.telemetry.logging import get_logger
from services.aggregator.aggregator_groups import GroupedProcesses, usable_layout
from services.aggregator.aggregator_process import AggregatorProcess, EnterGroup
from services.aggregator.announcement import Announcement
from services.aggregator.core.application import application
from services.aggregator.settings import AggregatorSettings
from tests.support.bus.bus_memory import MemoryBus
from tests.support.bus.memory_broker import MemoryBroker
from tests.support.cluster_lab import poll
from tests.support.deadline import until
from tests.support.local_aggregators import LocalService
from tests.support.service_in_process import run_in_process

SPEC = application(2, None, 1 << 30, in_groups=True)


async def announced(bus: MemoryBus) -> AppSpec | None:
    entry = await bus.bucket(APPS).get(APPLICATION)
    assert entry is None or isinstance(entry.message, AppSpec)
    return entry.message if entry is not None else None


@given(
    processes=st.integers(1, 1024),
    cpu_cores=st.none() | st.floats(0.01, 2_000),
    memory_bytes=st.integers(1 << 20, 1 << 40),
    in_groups=st.booleans(),
)
def test_all_aggregators_fit_into_their_application(
    processes: int, cpu_cores: float | None, memory_bytes: int, in_groups: bool
) -> None:
    spec = application(processes, cpu_cores, memory_bytes, in_groups=in_groups)
    assert spec.mode == "enforce"
    assert spec.refuse_containers(processes) is None
    # Each has, as its fair share, what its jobs may take, and 1 GiB for its process; limit and share are rounded.
    assert spec.initial_memory_bytes(processes) >= memory_bytes + (1 << 30) - 2 * 4096
    if cpu_cores is not None:
        assert spec.cpu_limit >= cpu_cores


def test_an_aggregator_has_a_core_unless_the_settings_say_otherwise() -> None:
    assert (SPEC.cpu_limit, SPEC.container_max_cpu, SPEC.announced_containers) == (2.0, 1.0, 2)
    # Half a core for two: a quarter of a period of 100 ms each.
    assert application(2, 0.5, 1 << 30, in_groups=True).initial_quota_us(2) == 25_000
    whole = application(2, None, 1 << 30, in_groups=False)
    assert (whole.container_max_cpu, whole.announced_containers) == (None, 0)


async def test_an_application_that_is_there_is_kept() -> None:
    bus = MemoryBus(MemoryBroker())
    by_hand = SPEC.model_copy(update={"cpu_limit": 0.25})
    await bus.bucket(APPS).put(APPLICATION, by_hand)
    await Announcement(bus, SystemClock(), get_logger("aggregator")).announce(SPEC)
    assert await announced(bus) == by_hand
    await bus.close(1)


@pytest.mark.virtual_time
async def test_it_is_announced_once_the_bus_is_there() -> None:
    bus = MemoryBus(MemoryBroker())
    bus.disconnect()
    announcing = asyncio.create_task(Announcement(bus, SystemClock(), get_logger("aggregator")).announce(SPEC))
    await asyncio.sleep(0)
    assert not announcing.done()
    bus.reconnect()
    async with asyncio.timeout(60):
        await announcing
    assert await announced(bus) == SPEC
    await bus.close(1)


@pytest.mark.parametrize("announce_limits", [True, False])
async def test_the_instance_that_leads_announces_it(announce_limits: bool) -> None:
    broker = MemoryBroker()
    ours = MemoryBus(broker)
    settings = AggregatorSettings.load({}, processes=2, announce_limits=announce_limits, cpu_cores=1.5)
    async with run_in_process(LocalService, settings, MemoryBus(broker)) as service:
        await until(lambda: service.serving, what="the lead")
        if announce_limits:
            await poll(lambda: announced(ours), what="the application")
    spec = await announced(ours)  # and it stays
    assert (spec.cpu_limit if spec is not None else None) == (1.5 if announce_limits else None)
    await ours.close(1)


async def test_an_aggregator_starts_without_its_group_where_none_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    entered = []

    async def start(_host: str, _memory_bytes: int, enter: EnterGroup) -> str:
        entered.append(enter(1))
        return "started"

    monkeypatch.setattr(AggregatorProcess, "start", start)
    nowhere = ControllerMount("/nonexistent", "/", read_only=False)
    layout = CgroupLayout(2, hybrid=False, mounts={"cpu": nowhere, "memory": nowhere})
    processes = GroupedProcesses(layout, "turnbuckle", get_logger("aggregator"))
    assert await processes.start("127.0.0.1", 1 << 20) == "started"
    assert entered == [None]


def test_no_groups_are_looked_for_where_they_are_switched_off() -> None:
    settings = AggregatorSettings.load({}, control_groups="off")
    assert usable_layout(settings) == "switched off by TURNBUCKLE_AGGREGATOR__CONTROL_GROUPS"

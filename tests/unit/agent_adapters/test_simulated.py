"""The simulated host behaves as the kernel does, where the agent can tell."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.containers import ContainerSource
from services._host.cgroup_snapshot import UNLIMITED, Limits, WriteOutcome
from services._host.simulation.load_profile import ContainerLoad, LoadPhase, Scenario, demo_scenario
from services.agent.cgroup.simulated import SimulatedApp, SimulatedHost
from services.agent.ports import GoneContainer, SourceAnswered
from tests.support.deadline import until

MIB = 1 << 20
PERIOD_S = 0.1


class Machine:
    """A simulated host with a clock that the test turns."""

    def __init__(self, *apps: SimulatedApp, cpu_count: int = 8) -> None:
        self.now_s = 100.0
        self.host = SimulatedHost(apps, cpu_count=cpu_count, clock=lambda: self.now_s)
        self.found = self.host.containers

    def handle(self, index: int = 0):
        handle = self.host.open(self.found[index])
        assert handle is not None
        return handle

    def run(self, seconds: float) -> None:
        self.now_s += seconds


def steady(cores: float, *, quota_us: int = UNLIMITED, threads: int = 4, memory_bytes: int = 0) -> SimulatedApp:
    phase = LoadPhase(duration_s=1000, cpu_cores=cores, memory_bytes=memory_bytes)
    load = ContainerLoad(name="web", phases=(phase,), threads=threads)
    return SimulatedApp("shop", Scenario(containers=(load,)), quota_us)


def test_unlimited_runs_as_it_wants_and_counts_no_periods():
    machine = Machine(steady(0.4))
    machine.run(10)
    counters = machine.handle().read()
    assert counters.usage_us == pytest.approx(4_000_000, rel=0.01)
    assert (counters.nr_periods, counters.nr_throttled) == (0, 0)


def test_a_quota_throttles_every_period_and_caps_usage():
    machine = Machine(steady(0.4, quota_us=10_000))
    machine.run(10)
    counters = machine.handle().read()
    assert counters.nr_periods == pytest.approx(100, abs=1)
    assert counters.nr_throttled == pytest.approx(100, abs=1)
    assert counters.usage_us == pytest.approx(1_000_000, rel=0.02)
    # 40 % wanted: 25 ms until 10 ms are used, so 75 of 100 ms throttled
    assert counters.throttled_us == pytest.approx(7_500_000, rel=0.02)


def test_enough_quota_never_throttles():
    machine = Machine(steady(0.4, quota_us=41_000))
    machine.run(10)
    assert machine.handle().read().nr_throttled == 0


def test_counters_of_an_idle_container_stand_still():
    load = ContainerLoad(name="x", phases=(LoadPhase(duration_s=1, cpu_cores=0.1), LoadPhase(duration_s=100)))
    machine = Machine(SimulatedApp("shop", Scenario(containers=(load,)), quota_us=20_000))
    handle = machine.handle()
    machine.run(2)
    before = handle.read()
    machine.run(50)
    assert handle.read() == before
    assert before.nr_periods <= 13
    assert handle.read_periods() == before.nr_periods


def test_every_write_refills_as_the_kernel_does():
    """Rewritten blindly each period, at another phase than the boundary, a quota of 10 ms yields nearly 20 ms."""
    machine = Machine(steady(1.0, quota_us=10_000))
    handle = machine.handle()
    boundary = handle.read_periods()
    while handle.read_periods() == boundary:
        machine.run(0.001)
    machine.run(0.03)
    before = handle.read()
    for _ in range(50):
        machine.run(PERIOD_S)
        handle.write_quota(10_000)
    used_us = handle.read().usage_us - before.usage_us
    assert used_us / 50 > 15_000
    assert machine.host.no_op_writes == 50


def test_the_machine_has_only_so_many_processors():
    app = SimulatedApp(
        "shop",
        Scenario(
            containers=tuple(
                ContainerLoad(name=n, phases=(LoadPhase(duration_s=9, cpu_cores=2),), threads=2) for n in "ab"
            )
        ),
    )
    machine = Machine(app, cpu_count=2)
    machine.run(10)
    assert [machine.handle(i).read().usage_us for i in (0, 1)] == pytest.approx([10_000_000] * 2, rel=0.01)


def test_limits_are_written_and_restored():
    machine = Machine(steady(0.1, quota_us=30_000, memory_bytes=50 * MIB))
    handle = machine.handle()
    machine.run(1)
    assert handle.read_limits() == Limits(30_000, UNLIMITED)
    assert handle.write_quota(40_000) is WriteOutcome.WRITTEN
    assert handle.write_memory(100 * MIB + 1) is WriteOutcome.WRITTEN
    assert handle.read_limits() == Limits(40_000, 100 * MIB)
    handle.restore()
    assert handle.read_limits() == Limits(30_000, UNLIMITED)
    assert machine.host.writes_by_file == {"quota_us": 2, "limit_bytes": 2}
    assert machine.host.no_op_writes == 0


def test_a_memory_limit_below_usage_is_refused():
    machine = Machine(steady(0.1, memory_bytes=50 * MIB))
    handle = machine.handle()
    machine.run(1)
    assert handle.write_memory(20 * MIB) is WriteOutcome.REFUSED
    assert handle.read_limits().memory_bytes == UNLIMITED


def test_growth_above_the_limit_is_killed_and_comes_back():
    phases = (LoadPhase(duration_s=2, memory_bytes=20 * MIB), LoadPhase(duration_s=2, memory_bytes=100 * MIB))
    scenario = Scenario(containers=(ContainerLoad(name="cache", phases=phases),))
    machine = Machine(SimulatedApp("shop", scenario, limit_bytes=64 * MIB))
    handle = machine.handle()
    machine.run(1.9)
    assert (handle.read_oom_kills(), handle.read().memory_bytes >> 20) == (0, 28)
    machine.run(0.9)
    assert (handle.read_oom_kills(), handle.read().memory_bytes) == (1, 0)
    machine.run(2.0)
    assert handle.read().memory_bytes >> 20 == 28


def test_two_applications_side_by_side():
    machine = Machine(
        SimulatedApp("demo", demo_scenario(), 15_000, 102 * MIB),
        SimulatedApp("demo-static", demo_scenario(), 15_000, 102 * MIB),
    )
    machine.run(20)
    names = [(found.app, found.name) for found in machine.found]
    assert names[:2] == [("demo", "web"), ("demo", "api")]
    assert len({found.key for found in machine.found}) == 10
    assert machine.handle(0).read() == machine.handle(5).read()
    assert machine.handle(8).read_oom_kills() > 0  # the cache outgrows its static share


def test_other_nodes_have_other_ids():
    ids = [SimulatedHost([steady(0.1)], node=node).containers[0].container_id for node in ("a", "b")]
    assert ids[0] != ids[1]


async def test_discovery_reports_all_and_then_removals():
    host = SimulatedHost([SimulatedApp("demo", demo_scenario())])
    reports = []
    task = asyncio.create_task(host.run(reports.append))
    await until(lambda: len(reports) == 6)
    assert reports.pop() == SourceAnswered(ContainerSource.SIMULATED)
    gone = reports[0]
    handle = host.open(gone)
    host.remove(gone.container_id)
    assert reports[5:] == [GoneContainer(gone.container_id)]
    assert (handle.read(), handle.read_periods(), handle.read_limits(), handle.read_oom_kills()) == (None,) * 3 + (0,)
    assert handle.write_quota(10_000) is WriteOutcome.VANISHED
    assert handle.write_memory(MIB) is WriteOutcome.VANISHED
    handle.restore()
    assert host.open(gone) is None
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@given(
    quota_us=st.integers(1_000, 200_000),
    cores=st.floats(0, 3),
    seed=st.integers(0, 1000),
    skip_ms=st.integers(0, 500),
    periods=st.integers(1, 10),
)
def test_without_writes_usage_keeps_to_the_quota(quota_us, cores, seed, skip_ms, periods):
    """Over any K periods at most K + 1 refills: used <= quota x K + one period's quota."""
    phases = (LoadPhase(duration_s=0.3, cpu_cores=cores), LoadPhase(duration_s=0.25, cpu_cores=0))
    load = ContainerLoad(name="x", phases=phases, threads=4)
    machine = Machine(SimulatedApp("shop", Scenario(containers=(load,), seed=seed), quota_us))
    handle = machine.handle()
    machine.run(skip_ms / 1000)
    before = handle.read()
    machine.run(periods * PERIOD_S)
    after = handle.read()
    assert after.usage_us - before.usage_us <= quota_us * (periods + 1) + 1
    assert after.nr_periods - before.nr_periods <= periods + 1
    assert after.nr_throttled - before.nr_throttled <= after.nr_periods - before.nr_periods

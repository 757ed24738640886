"""No task waits at its memory limit beyond the deadline: without an allocator, and without a living agent."""

from __future__ import annotations

import signal
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio

from schemas.oom import OomCause, OomKind
from tests.support.cluster_lab import MIB, ClusterLab, ServiceProcess
from tests.support.deadline import until
from tests.support.growing import QUICK_RECLAIM, grow, grown, guarded_container
from tests.support.invariant_checker import watch

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.machine, pytest.mark.asyncio(loop_scope="module")]
DEADLINE_S = 10.0
"""Not the default of 2 s: half of it leaves room for a machine that stalls for seconds."""
DEADLINE = {"AGENT__OOM_WAIT_TIMEOUT_S": f"{DEADLINE_S:g}"}


@dataclass
class Pair:
    """One agent, one allocator."""

    cluster: ClusterLab
    agent: ServiceProcess
    allocator: ServiceProcess

    async def restart_agent(self) -> None:
        self.agent = await self.cluster.launch_agent(**DEADLINE).ready()


@pytest_asyncio.fixture(loop_scope="module")
async def pair(bare_cluster: ClusterLab) -> AsyncIterator[Pair]:
    agent, allocator = bare_cluster.launch_agent(**DEADLINE), bare_cluster.launch_allocator(**QUICK_RECLAIM)
    made = Pair(bare_cluster, await agent.ready(), await allocator.ready())
    yield made
    if made.agent.running:
        made.agent.send(signal.SIGCONT)
        assert await made.agent.signal(signal.SIGTERM) == 0
    if made.allocator.running:
        await made.allocator.signal(signal.SIGKILL)
    for container in list(bare_cluster.containers):
        bare_cluster.remove(container)


async def test_without_an_allocator_and_a_reserve_the_kernel_decides_at_the_deadline(pair, record_figure):
    spec, container = await guarded_container(pair.cluster, "alone", sigma=0)
    async with watch(pair.cluster, spec, deadline_s=DEADLINE_S) as checker:
        await pair.allocator.signal(signal.SIGKILL)
        grow(container, 200)
        await until(lambda: not container.alive, within_s=60, what="the kernel's kill")
        release = await checker.told(container.key, OomKind.OOM_KILLER_ENABLED)
        assert release.cause is OomCause.DEADLINE
        assert f"tasks waited for {DEADLINE_S:g} s: no reply from an allocator" in release.reason
        await checker.told(container.key, OomKind.KILL)
        hit = await checker.told(container.key, OomKind.OOM_WAIT)
        waited_s = (release.time_ns - hit.time_ns) / 1e9
        record_figure("waited, seconds", round(waited_s, 2))
        assert waited_s >= DEADLINE_S - 0.5


async def test_the_watchdog_grants_from_the_reserve_while_no_agent_lives(pair, record_figure):
    """As beside a frozen agent: tests/kernel/test_watchdog.py."""
    spec, container = await guarded_container(pair.cluster, "granted", sigma=0.4)
    before_bytes = container.limit_bytes
    async with watch(pair.cluster, spec, deadline_s=DEADLINE_S) as checker:
        pair.agent.send(signal.SIGKILL)
        grow(container, before_bytes // MIB + 60)
        await grown(container)
        assert container.limit_bytes >= before_bytes + 60 * MIB
        await pair.restart_agent()

        grant = await checker.told(container.key, OomKind.GRANT)
        assert grant.cause is OomCause.WATCHDOG
        assert "the watchdog raised the limit" in grant.reason
        await checker.settled()
        grow(container, 300)
        await grown(container)
        await checker.settled()
    record_figure("longest pause, seconds", round(checker.rules.longest_pause_s, 2))
    assert checker.rules.kills == []
    assert container.alive


async def test_without_agent_and_reserve_the_kernel_decides_at_the_deadline_that_counts_from_the_hit(
    pair, record_figure
):
    """The agent is frozen when its container has waited for half of the time: that time counts."""
    spec, container = await guarded_container(pair.cluster, "released", sigma=0)
    async with watch(pair.cluster, spec, deadline_s=DEADLINE_S) as checker:
        await pair.allocator.signal(signal.SIGKILL)
        grow(container, 200)
        await until(lambda: container.read().waiting, within_s=60, what="tasks wait")
        hit_s = time.monotonic()
        await until(lambda: time.monotonic() > hit_s + DEADLINE_S / 2, what="half of the deadline")
        assert container.read().waiting
        pair.agent.send(signal.SIGSTOP)
        await until(lambda: not container.alive, within_s=60, what="the kernel's kill")
        record_figure("waited, seconds", round(time.monotonic() - hit_s, 2))
        pair.agent.send(signal.SIGCONT)
        release = await checker.told(container.key, OomKind.OOM_KILLER_ENABLED)
        assert release.cause is OomCause.WATCHDOG
        assert "the watchdog gave the kernel its kill back" in release.reason

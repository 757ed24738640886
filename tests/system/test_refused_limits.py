"""Limits that a real kernel refuses: a CPU burst, and a parent group with less; what the application still gets."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import TypeAlias

import pytest
import pytest_asyncio

from schemas.apps import AppSpec
from schemas.containers import ContainerChange, ContainerEvent
from schemas.subjects import CONTAINER_EVENTS
from tests.support.cluster_lab import MIB, ClusterLab, LabContainer, ServiceProcess
from tests.support.deadline import until

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


def cpu_file(cluster: ClusterLab, container: LabContainer, name: str) -> Path:
    return Path(cluster.tree.cpu, container.directory, name)


Lab: TypeAlias = tuple[ClusterLab, ServiceProcess]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def lab(bare_cluster: ClusterLab) -> Lab:
    """With an allocator, and an agent."""
    agent = bare_cluster.launch_agent()
    await bare_cluster.launch_allocator().ready()
    await agent.ready()
    return bare_cluster, agent


async def test_below_a_parent_with_less_a_container_gets_what_that_allows_and_people_the_reason(lab: Lab) -> None:
    cluster, agent = lab
    await cluster.announce(AppSpec(name="below", cpu_limit=1.5, memory_limit=300 * MIB))
    async with cluster.listen(CONTAINER_EVENTS.pattern(cluster.bus.root, app="below")) as log:
        work = cluster.container("below", "work")
        if cluster.tree.version == 2:
            pytest.skip("version 2 accepts a child above its parent")
        parent = cpu_file(cluster, work, "cpu.cfs_quota_us").parents[1]
        (parent / "cpu.cfs_quota_us").write_text("50000", encoding="ascii")
        work.tell("burn 2")

        def refused() -> list[ContainerEvent]:
            events = [event for event in log.messages if isinstance(event, ContainerEvent)]
            return [event for event in events if event.change is ContainerChange.LIMIT_REFUSED]

        await until(lambda: work.quota_us == 50_000 and refused(), within_s=60, what="what the parent allows")
        reason = f"the kernel refuses more than 0.50 cores: the group above, {parent}, has a quota of 0.50 cores"
        assert refused()[0].reason == reason
        assert 0 < work.limit_bytes <= 300 * MIB
        assert await agent.metric("turnbuckle_agent_refused_limits") == 1
        for command in (("explain", "below"), ("top", "below", "--once")):
            line = [sys.executable, "-m", "services.cli", *command, "--json", "--server", cluster.nats.url]
            done = await asyncio.to_thread(subprocess.run, line, capture_output=True, text=True, check=True)
            assert reason in json.dumps(json.loads(done.stdout))
        (parent / "cpu.cfs_quota_us").write_text("-1", encoding="ascii")
        await until(lambda: work.quota_us > 50_000, within_s=60, what="more, once the parent allows it")
        await until(
            lambda: any(event.change is ContainerChange.LIMIT_ACCEPTED for event in log.messages),
            within_s=60,
            what="the end of the refusal",
        )


async def test_a_burst_is_lowered_for_a_container_that_joins_and_put_back_at_the_end(lab: Lab) -> None:
    """The report: 1.5 cores, a burst of 1.0 written beside the agent, a second container. It ends the agent: last."""
    cluster, agent = lab
    await cluster.announce(AppSpec(name="burst", cpu_limit=1.5, memory_limit=300 * MIB))
    first = cluster.container("burst", "first", quota_us=150_000)
    burst = cpu_file(cluster, first, "cpu.cfs_burst_us" if cluster.tree.version == 1 else "cpu.max.burst")
    if not burst.exists():
        pytest.skip("Linux before 5.14 has no bursts")
    first.tell("burn 2")
    await until(lambda: first.quota_us >= 120_000, within_s=60, what="a quota above the burst")
    burst.write_text("100000", encoding="ascii")
    second = cluster.container("burst", "second")
    second.tell("burn 2")

    def shared() -> bool:
        return second.quota_us > 0 and second.limit_bytes > 0 and first.quota_us + second.quota_us <= 150_000

    await until(lambda: shared() and first.quota_us < 100_000, within_s=60, what="both within the application's limit")
    assert int(burst.read_text(encoding="ascii")) <= first.quota_us
    await agent.signal(15)
    assert (first.quota_us, burst.read_text(encoding="ascii")) == (150_000, "100000\n")

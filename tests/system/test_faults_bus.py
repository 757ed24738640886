"""The bus dies, freezes, or was never there: memory is granted from the reserve, and everything resumes."""

from __future__ import annotations

import signal
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from schemas.oom import OomCause, OomKind
from tests.support.cluster_lab import MIB, ClusterLab, poll
from tests.support.deadline import until
from tests.support.frozen_server import freeze, thaw
from tests.support.growing import QUICK_RECLAIM, grow, grown, guarded_container
from tests.support.invariant_checker import watch

pytestmark = [
    pytest.mark.root,
    pytest.mark.slow,
    pytest.mark.machine,
    pytest.mark.timeout(540),
    pytest.mark.asyncio(loop_scope="module"),
]
SIGMA = 0.5
"""A reserve of 256 MiB."""
FROZEN_S = 4.0
"""Twice what makes an observation stale."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(bare_cluster: ClusterLab) -> AsyncIterator[ClusterLab]:
    """One allocator that reclaims often, one agent.

    With the usual lease the allocator would not decide at all after the freeze, and old observations prove nothing.
    """
    allocator = bare_cluster.launch_allocator(**QUICK_RECLAIM, ALLOCATOR__LEASE_TTL_S="20")
    agent = bare_cluster.launch_agent()
    await agent.ready()
    await allocator.ready()
    yield bare_cluster
    for container in list(bare_cluster.containers):
        bare_cluster.remove(container)


async def resumed(cluster: ClusterLab) -> None:
    """Both services and our own connection."""
    await until(lambda: cluster.bus.connected, within_s=60, what="our own connection")
    for process in (*cluster.running("agent"), *cluster.running("allocator")):
        await process.ready()


async def test_while_the_bus_is_dead_memory_comes_from_the_reserve(cluster, record_figure):
    spec, container = await guarded_container(cluster, "dead-bus", SIGMA)
    before_bytes = container.limit_bytes
    async with watch(cluster, spec) as checker:
        cluster.nats.kill()
        grow(container, before_bytes // MIB + 100)
        await grown(container)
        assert container.limit_bytes >= before_bytes + 100 * MIB

        await cluster.nats.start()
        start_s = time.monotonic()
        await resumed(cluster)
        grow(container, 400)
        await grown(container)
        record_figure("seconds until it could grow beyond its reserve", round(time.monotonic() - start_s, 2))
        grant = await checker.told(container.key, OomKind.GRANT, within_s=60)
        assert grant.limit_before_bytes == before_bytes, "what happened without a bus is told, too"
        await checker.settled(within_s=60)
    assert checker.rules.kills == []


async def test_while_the_bus_is_frozen_memory_comes_from_the_reserve_and_what_is_stale_is_ignored(
    cluster, record_figure
):
    spec, container = await guarded_container(cluster, "frozen-bus", SIGMA)
    before_bytes = container.limit_bytes
    [allocator] = cluster.running("allocator")
    stale = await allocator.metric("turnbuckle_allocator_stale_batches_total")
    async with watch(cluster, spec) as checker:
        freeze(cluster.nats)
        frozen_s = time.monotonic()
        try:
            grow(container, before_bytes // MIB + 100)
            await grown(container)
            assert container.limit_bytes >= before_bytes + 100 * MIB
            await until(lambda: time.monotonic() > frozen_s + FROZEN_S, within_s=60, what="long frozen")
        finally:
            thaw(cluster.nats)
        await resumed(cluster)

        async def has_ignored() -> bool:
            return await allocator.metric("turnbuckle_allocator_stale_batches_total") > stale

        await poll(has_ignored, within_s=60, what="old observations ignored")
        grow(container, 400)
        await grown(container)
        await checker.settled(within_s=60)
        record_figure("stale batches", await allocator.metric("turnbuckle_allocator_stale_batches_total") - stale)
    assert checker.rules.kills == []


async def test_an_agent_that_starts_without_a_bus_grants_from_the_reserve_that_the_one_before_it_had(cluster):
    spec, container = await guarded_container(cluster, "no-bus", SIGMA)
    before_bytes = container.limit_bytes
    [agent] = cluster.running("agent")
    async with watch(cluster, spec) as checker:
        cluster.nats.kill()
        await agent.signal(signal.SIGKILL)
        second = cluster.launch_agent()
        await second.not_ready_because("no connection", within_s=60)
        await until(lambda: any(line["event"] == "container_found" for line in second.log()), what="it is found")
        # The first agent's watchdog gives at most half of the reserve, 128 MiB, when it dies.
        grow(container, before_bytes // MIB + 180)
        await grown(container)
        assert container.limit_bytes >= before_bytes + 180 * MIB

        await cluster.nats.start()
        await resumed(cluster)
        await checker.told(container.key, OomKind.GRANT, within_s=60)
        grants = checker.events(container.key, OomKind.GRANT)
        assert any(grant.cause is not OomCause.WATCHDOG for grant in grants)
        grow(container, 400)
        await grown(container)
        await checker.settled(within_s=60)
    assert checker.rules.kills == []

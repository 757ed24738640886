"""An owner dies while an agent is frozen: the next owner does not hand out what its containers hold."""

from __future__ import annotations

import signal

import pytest

from schemas.apps import AppSpec
from services._runtime.bus.api import BusError
from tests.support.cluster_lab import MIB, poll
from tests.support.deadline import until

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]
PERIODS = 15
"""Three times the warm-up."""


async def test_the_share_of_a_silent_node_stays_its_own_across_a_change_of_owner(cluster, record_figure):
    there_root = f"{cluster.root}-b"
    frozen = await cluster.launch_agent(node="n2", root=there_root).ready()
    spec = await cluster.announce(AppSpec(name="absent", cpu_limit=0.4, memory_limit=256 * MIB))
    here, there = cluster.container(spec.name, "here"), cluster.container(spec.name, "there", root=there_root)
    await until(lambda: here.quota_us > 0 and there.quota_us > 0, within_s=60, what="both admitted")
    there.tell("burn")
    await until(lambda: there.quota_us >= 0.6 * spec.cpu_limit_us, within_s=60, what="most of it there")
    there.tell("idle")
    observer = cluster.observe(cluster.root, there_root)
    [first] = cluster.running("allocator")
    epoch = (await cluster.state(spec.name)).epoch

    frozen.send(signal.SIGSTOP)
    try:
        await first.signal(signal.SIGKILL)
        second = await cluster.launch_allocator().ready()
        here.tell("burn")
        await poll(lambda: _decided_by_another(cluster, spec.name, epoch), within_s=60, what="another owner")
        async with cluster.batches(spec.name) as log:
            await until(lambda: len(log.messages) >= PERIODS, within_s=60, what="periods with a new owner")
        assert await second.metric("turnbuckle_allocator_nodes_not_reported") == 1
        assert there.quota_us + here.quota_us <= spec.cpu_limit_us
    finally:
        frozen.send(signal.SIGCONT)
    await until(lambda: here.quota_us >= 0.6 * spec.cpu_limit_us, within_s=60, what="followed once all are heard")

    seen = observer.stop()[spec.name]
    record_figure("highest quota / limit", seen.highest_quota_us / spec.cpu_limit_us)
    record_figure("highest memory / limit", seen.highest_limit_bytes / int(spec.memory_limit))
    # But for the floor of the one that came last (decision 117).
    assert seen.highest_quota_us <= spec.cpu_limit_us + spec.floor_quota_us
    assert seen.highest_limit_bytes <= spec.memory_limit + spec.container_floor_memory
    assert await second.metric("turnbuckle_allocator_nodes_not_reported") == 0
    for container in (here, there):
        cluster.remove(container)
    assert await frozen.signal(signal.SIGTERM) == 0


async def _decided_by_another(cluster, app: str, epoch: int) -> bool:
    try:
        return (await cluster.state(app)).epoch > epoch
    except BusError:  # it is changing hands; or who was asked has just died
        return False

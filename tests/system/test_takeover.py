"""An owner dies while an agent is frozen or dead: the next owner does not hand out what its containers hold."""

from __future__ import annotations

import signal

import pytest

from schemas.apps import AppSpec
from schemas.containers import NodeInfo
from schemas.streams import NODES
from services._runtime.bus.api import BusError
from tests.support.cluster_lab import MIB, ServiceProcess, poll
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
    assert seen.highest_quota_us <= spec.cpu_limit_us
    assert seen.highest_limit_bytes <= spec.memory_limit
    assert await second.metric("turnbuckle_allocator_nodes_not_reported") == 0
    for container in (here, there):
        cluster.remove(container)
    assert await frozen.signal(signal.SIGTERM) == 0


async def test_a_node_whose_registration_names_no_container_yet_is_waited_for(cluster, record_figure):
    """Registrations are renewed every five seconds: what has begun since is not in them."""
    there_root = f"{cluster.root}-c"
    await cluster.launch_allocator().ready()
    dying = await cluster.launch_agent(node="n3", root=there_root).ready()
    empty = await _next_heartbeat(cluster, "n3")
    spec = await cluster.announce(AppSpec(name="begun", cpu_limit=0.4, memory_limit=256 * MIB))
    here, there = cluster.container(spec.name, "here"), cluster.container(spec.name, "there", root=there_root)
    there.tell("burn")
    await until(lambda: there.quota_us >= 0.6 * spec.cpu_limit_us, within_s=60, what="most of it there")
    state = await cluster.state(spec.name)
    observer = cluster.observe(cluster.root, there_root)

    await dying.signal(signal.SIGKILL)
    assert empty.container_count == 0
    await cluster.bus.bucket(NODES).put("n3", empty)  # as if it had died before it could tell of its first containers
    await _replica(cluster, state.owner).signal(signal.SIGKILL)
    here.tell("burn")
    await poll(lambda: _decided_by_another(cluster, spec.name, state.epoch), within_s=60, what="another owner")
    async with cluster.batches(spec.name) as log:
        await until(lambda: len(log.messages) >= PERIODS, within_s=60, what="periods with a new owner")
    assert there.quota_us + here.quota_us <= spec.cpu_limit_us
    successor = await cluster.launch_agent(node="n3", root=there_root).ready()
    there.tell("idle")
    await until(lambda: here.quota_us >= 0.6 * spec.cpu_limit_us, within_s=60, what="followed once all are heard")

    seen = observer.stop()[spec.name]
    record_figure("highest quota / limit", seen.highest_quota_us / spec.cpu_limit_us)
    assert seen.highest_quota_us <= spec.cpu_limit_us
    for container in (here, there):
        cluster.remove(container)
    assert await successor.signal(signal.SIGTERM) == 0


async def _registered(cluster, node: str) -> NodeInfo:
    entry = await cluster.bus.bucket(NODES).get(node)
    assert entry is not None
    assert isinstance(entry.message, NodeInfo)
    return entry.message


async def _next_heartbeat(cluster, node: str) -> NodeInfo:
    """The registration after the present one; the next one comes five seconds later."""
    before = await _registered(cluster, node)

    async def renewed() -> NodeInfo | None:
        now = await _registered(cluster, node)
        return now if now.time_ns != before.time_ns and not before.sources_pending else None

    found: NodeInfo = await poll(renewed, within_s=60, what=f"heartbeat of {node}")
    return found


def _replica(cluster, replica: str) -> ServiceProcess:
    """The allocator's process with this id."""
    [process] = [each for each in cluster.running("allocator") if each.replica_id == replica]
    return process


async def _decided_by_another(cluster, app: str, epoch: int) -> bool:
    try:
        return (await cluster.state(app)).epoch > epoch
    except BusError:  # it is changing hands; or who was asked has just died
        return False

"""Policies exchanged in a running allocator: real nats-server, real agent, real control groups."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from schemas.apps import AppSpec
from tests.bench.escra.processes import Child, ProcessError
from tests.bench.escra.profile import ContainerProfile, Profile
from tests.support.cluster_lab import MIB, ClusterLab, LabContainer
from tests.support.deadline import until
from tests.support.growing import grow, grown

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

ANSWER_S = 50.0
PROFILE = Profile(
    {
        "web": ContainerProfile((20_000,) * 60, (40 * MIB,) * 60),
        "store": ContainerProfile((8_000,) * 60, (80 * MIB,) * 60),
    }
)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def allocator(bare_cluster: ClusterLab, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Child]:
    """The exchanged allocator, and an agent, ready."""
    agent = bare_cluster.launch_agent()
    environment = {"NATS_URL": bare_cluster.nats.url, "TURNBUCKLE_LOG_LEVEL": "warning"}
    log = tmp_path_factory.mktemp("peer") / "allocator.log"
    child = await Child.start("allocator", ("tests.bench.escra.peer_allocator",), environment, log)
    try:
        await agent.ready()
        yield child
    finally:
        await child.stop()


async def choose(allocator: Child, policy: str, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    PROFILE.write(path)
    allocator.tell({"policy": policy, "profile": str(path)})
    answer = await allocator.hear(ANSWER_S)
    assert answer["policy"] == policy
    assert answer["switch_ms"] < 20_000


async def limited(*pairs: tuple[LabContainer, int, int]) -> None:
    """Wait until containers hold these quotas (us) and memory limits (bytes)."""
    await until(
        lambda: all((one.quota_us, one.limit_bytes) == (quota, limit) for one, quota, limit in pairs),
        within_s=60,
        what=f"{[(quota, limit) for _, quota, limit in pairs]}",
    )


async def test_policies_take_turns_and_the_application_goes_on(bare_cluster: ClusterLab, allocator: Child, tmp_path):
    """Static limits by name; a Captain that is throttled asks for more; and the product's own guards memory again."""
    await choose(allocator, "static-1.0", tmp_path)
    spec = await bare_cluster.announce(AppSpec(name="turns", cpu_limit=1.0, memory_limit=512 * MIB))
    web, store = bare_cluster.container(spec.name, "web"), bare_cluster.container(spec.name, "store")
    await limited((web, 20_000, 40 * MIB), (store, 8_000, 80 * MIB))

    await choose(allocator, "static-0.75", tmp_path)
    await limited((web, 15_000, 30 * MIB), (store, 6_000, 60 * MIB))

    await choose(allocator, "captain-0.02", tmp_path)
    await limited((web, 20_000, 60 * MIB), (store, 8_000, 120 * MIB))
    web.tell("burn 0.4")
    await until(lambda: web.quota_us > 25_000, within_s=60, what="more for who is throttled")
    web.tell("idle")

    await choose(allocator, "waterfill:delta=20", tmp_path)
    grow(web, 200)
    await grown(web)
    assert web.alive
    assert web.limit_bytes > 200 * MIB
    for container in (web, store):
        bare_cluster.remove(container)


async def test_who_reaches_a_static_limit_is_killed(bare_cluster: ClusterLab, allocator: Child, tmp_path):
    """Although the application has ten times as much free: a peer has no guard."""
    await choose(allocator, "static-0.75", tmp_path)
    spec = await bare_cluster.announce(AppSpec(name="killed", cpu_limit=1.0, memory_limit=1024 * MIB))
    store = bare_cluster.container(spec.name, "store")
    await limited((store, 6_000, 60 * MIB))
    grow(store, 100)
    await until(lambda: not store.alive, within_s=60, what="the kernel's kill")
    bare_cluster.remove(store)


async def test_it_refuses_what_it_does_not_know_and_ends_with_its_master(bare_cluster: ClusterLab, tmp_path):
    environment = {"NATS_URL": bare_cluster.nats.url, "TURNBUCKLE_LOG_LEVEL": "warning"}
    child = await Child.start(
        "allocator", ("tests.bench.escra.peer_allocator",), environment, tmp_path / "allocator.log"
    )
    try:
        child.tell({"policy": "captain-0.1"})
        with pytest.raises(ProcessError, match="starts from a profile"):
            await child.hear(ANSWER_S)
        child.tell({"policy": "captain-7"})
        with pytest.raises(ProcessError, match="no policy"):
            await child.hear(ANSWER_S)
        child._process.stdin.close()
        assert await asyncio.wait_for(child._process.wait(), 60) == 0
    finally:
        await child.stop()

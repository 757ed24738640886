"""A node whose memory is set to 2 GiB, and two applications that may use 2 GiB each: real groups and services."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from typer.testing import CliRunner

from schemas.apps import AppSpec
from schemas.oom import OomEvent, OomKind
from schemas.streams import NODES
from schemas.subjects import OOM_EVENTS
from services.cli.main import app as main
from tests.support.cluster_lab import MIB, ClusterLab
from tests.support.deadline import until
from tests.support.growing import grow

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

GIB = 1 << 30
ALLOCATABLE = 2 * GIB - 256 * MIB


async def turnbuckle(cluster: ClusterLab, *arguments: str) -> dict[str, Any]:
    run = CliRunner().invoke
    done = await asyncio.to_thread(run, main, [*arguments, "--json", "--server", cluster.nats.url])
    assert done.exit_code == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


async def test_growers_of_two_applications_are_refused_before_the_node_is_full(
    bare_cluster: ClusterLab, record_figure
) -> None:
    """Each grows by 100 MiB/s towards 1.5 GiB; 1792 MiB are allocatable."""
    cluster = bare_cluster
    agent = cluster.launch(
        "agent",
        AGENT__NODE="n1",
        AGENT__MANAGED_ROOT=cluster.root,
        AGENT__DOCKER="off",
        AGENT__NODE_MEMORY_BYTES="2GiB",
    )
    allocator = cluster.launch_allocator()
    await agent.ready()
    await allocator.ready()
    specs = [
        await cluster.announce(AppSpec(name=name, cpu_limit=1, memory_limit=2 * GIB)) for name in ("shop", "cache")
    ]
    growers = [cluster.container(spec.name, "grow") for spec in specs]
    sums, told = [], []
    async with cluster.listen(OOM_EVENTS.pattern(cluster.bus.root)) as log:
        await until(lambda: all(0 < each.limit_bytes < GIB for each in growers), within_s=60, what="first limits")
        for each in growers:
            grow(each, 1536, rate=100 * MIB)

        def refused() -> bool:
            limits = [each.limit_bytes for each in growers]
            if limits == [each.limit_bytes for each in growers]:  # files cannot be read at one instant
                sums.append(sum(limits))
            told[:] = [event for event in log.messages if isinstance(event, OomEvent)]
            return any(event.kind is OomKind.GRANT_DENIED and "budget" in event.reason for event in told)

        await until(refused, within_s=60, what="our refusal")
        kinds = [event.kind for event in told]
        assert OomKind.KILL not in kinds[: kinds.index(OomKind.GRANT_DENIED)], "refused first"
        refusal = told[kinds.index(OomKind.GRANT_DENIED)]
        assert "the memory budget of node n1 is used up" in refusal.reason
        await until(
            lambda: refused() and not all(each.alive for each in growers), within_s=60, what="the kill after it"
        )
    assert max(sums) <= ALLOCATABLE
    assert max(sums) > 1200 * MIB
    record_figure("highest sum of limits, MiB", max(sums) // MIB)
    assert await agent.metric("turnbuckle_agent_node_allocatable_bytes") == ALLOCATABLE
    assert await agent.metric("turnbuckle_agent_node_committed_bytes") <= ALLOCATABLE

    explained = await turnbuckle(cluster, "explain", refusal.app)
    sentences = [event["sentence"] for event in explained["memory"]["events"]]
    assert any("the memory budget of node n1 is used up" in sentence for sentence in sentences), sentences
    [node] = explained["nodes"]
    assert node["allocatable_memory_bytes"] == ALLOCATABLE
    assert isinstance((await cluster.bus.bucket(NODES).entries())["n1"].message.available_memory_bytes, int)
    for each in growers:
        cluster.remove(each)

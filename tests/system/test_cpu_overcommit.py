"""A node whose CPU limits may add up to half of its cores, and two applications that may use all: real groups."""

from __future__ import annotations

import asyncio
import json

import pytest
from typer.testing import CliRunner

from schemas.apps import PERIOD_US, AppSpec
from schemas.containers import ContainerChange, ContainerEvent
from schemas.subjects import CONTAINER_EVENTS
from services.cli.main import app as main
from tests.support.cluster_lab import MIB, ClusterLab
from tests.support.deadline import until

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]


async def test_limits_of_two_applications_stay_within_the_ratio_and_what_is_refused_is_told(
    bare_cluster: ClusterLab, record_figure
) -> None:
    cluster = bare_cluster
    agent = cluster.launch(
        "agent", AGENT__NODE="n1", AGENT__MANAGED_ROOT=cluster.root, AGENT__DOCKER="off", AGENT__CPU_OVERCOMMIT="0.5"
    )
    allocator = cluster.launch_allocator()
    await agent.ready()
    await allocator.ready()
    bound_us = int(await agent.metric("turnbuckle_agent_node_allocatable_cores") * PERIOD_US)
    cores = 2 * bound_us / PERIOD_US
    specs = [
        await cluster.announce(AppSpec(name=name, cpu_limit=cores, memory_limit=512 * MIB))
        for name in ("shop", "cache")
    ]
    sums: list[int] = []
    async with cluster.listen(CONTAINER_EVENTS.pattern(cluster.bus.root)) as log:
        containers = [cluster.container(spec.name, "work") for spec in specs]

        def total_us() -> int:
            quotas = [each.quota_us for each in containers]
            if min(quotas) > 0 and quotas == [each.quota_us for each in containers]:  # not read at one instant
                sums.append(sum(quotas))
            return sums[-1] if sums else 0

        def refused() -> list[ContainerEvent]:
            events = [event for event in log.messages if isinstance(event, ContainerEvent)]
            return [event for event in events if event.change is ContainerChange.CPU_REFUSED]

        # The first limit of the application that comes first is to be all cores.
        await until(lambda: total_us() and refused(), within_s=60, what="first limits, and the refusal")
        for each in containers:
            each.tell(f"burn {cores:g}")
        first = len(sums)
        await until(
            lambda: total_us() > 0.95 * bound_us and len(sums) > first + 200, within_s=60, what="a busy, full node"
        )

    assert max(sums) <= bound_us
    record_figure("highest sum of CPU limits, us per period", f"{max(sums)} of {bound_us}")
    told = refused()[0]
    assert "the CPU budget of node n1 is used up: CPU limits of its containers add up to" in told.reason
    assert f"of {bound_us / PERIOD_US:.2f} cores (0.5 x {cores:g})" in told.reason
    assert await agent.metric("turnbuckle_agent_node_cpu_budget_rejections_total") >= 1
    assert "limit_increase_rejected" in {line["event"] for line in allocator.log()}

    done = await asyncio.to_thread(
        CliRunner().invoke, main, ["explain", told.app, "--json", "--server", cluster.nats.url]
    )
    assert done.exit_code == 0, done.stderr
    explained = json.loads(done.stdout)
    assert any(
        event["sentence"].startswith("more CPU refused: the CPU budget") for event in explained["memory"]["events"]
    )
    assert explained["nodes"][0]["allocatable_cpu_us"] == bound_us
    for each in containers:
        cluster.remove(each)

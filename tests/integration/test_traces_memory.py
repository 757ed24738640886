"""One trace from an out-of-memory event through the allocator's grant to the applied limit: real processes and OTLP."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from schemas.apps import AppSpec
from tests.support.cluster_lab import MIB, ClusterLab, LabContainer
from tests.support.deadline import until
from tests.support.growing import QUICK_RECLAIM, grow, grown
from tests.support.otlp_receiver import OtlpReceiver, ReceivedSpan, otlp_receiver
from tests.support.telemetry_rules import assert_all_declared

pytestmark = [pytest.mark.root, pytest.mark.slow, pytest.mark.machine, pytest.mark.timeout(300)]
LINEAGE = [
    ("turnbuckle-agent", "agent.handle_oom", "internal"),
    ("turnbuckle-agent", "request cmd.memory.{app}.{node}", "client"),
    ("turnbuckle-allocator", "respond cmd.memory.{app}.{node}", "server"),
    ("turnbuckle-allocator", "allocator.grant_memory", "internal"),
    ("turnbuckle-allocator", "request cmd.limits.{node}", "client"),
    ("turnbuckle-agent", "respond cmd.limits.{node}", "server"),
    ("turnbuckle-agent", "agent.apply_limits", "internal"),
    ("turnbuckle-agent", "agent.handle_oom", "internal"),
]
"""From the shortage to the limit as it was raised. The first may be a step below the first of its episode."""
GROWN_MIB = 700
FAST = 2_000 * MIB
"""Bytes per second: beyond what the reserve holds long before the allocator's next step."""


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[OtlpReceiver]:
    """A collector, and an environment that makes every process of the test send there."""
    with otlp_receiver() as made:
        for name, value in made.environment.items():
            monkeypatch.setenv(name, value)
        yield made


@pytest.fixture
async def cluster(receiver: OtlpReceiver, tmp_path: Path) -> AsyncIterator[ClusterLab]:
    lab = ClusterLab(tmp_path)
    try:
        await lab.start()
        agent, allocator = lab.launch_agent(), lab.launch_allocator(**QUICK_RECLAIM)
        await agent.ready()
        await allocator.ready()
        yield lab
    finally:
        await lab.close()


def grants(receiver: OtlpReceiver, key: str) -> list[list[ReceivedSpan]]:
    """What led to each limit of this container that was raised with what an order had brought."""
    last = [
        span
        for span in receiver.spans
        if span.name == "agent.handle_oom"
        and "grant" in span.attributes["turnbuckle.oom.kinds"]
        and span.attributes["turnbuckle.container"] == key
    ]
    lineages = [receiver.lineage(span)[-len(LINEAGE) :] for span in last]
    return [it for it in lineages if [(each.service, each.name, each.kind) for each in it] == LINEAGE]


async def until_traced(
    cluster: ClusterLab, app: str, receiver: OtlpReceiver
) -> tuple[LabContainer, list[ReceivedSpan]]:
    """Let one container after the other grow beyond the reserve, until one trace is whole.

    Where the machine is slow the allocator's step is before its answer. Each time it is a new container: one that has
    grown before keeps room for that for seconds.
    """
    deadline_s = time.monotonic() + 90
    attempt = 0
    while time.monotonic() < deadline_s:
        container = cluster.container(app, f"web-{attempt}")
        attempt += 1
        await until(lambda one=container: one.guarded and 0 < one.limit_bytes < 120 * MIB, what="reclaimed")
        grow(container, GROWN_MIB, FAST)
        await grown(container)
        try:
            await until(lambda one=container: grants(receiver, one.key), within_s=8)
        except AssertionError:
            cluster.remove(container)
        else:
            return container, grants(receiver, container.key)[0]
    names = sorted({" > ".join(each.name for each in receiver.lineage(span)) for span in receiver.spans})
    raise AssertionError("no such trace: " + "\n".join(names))


async def test_from_an_oom_event_to_the_applied_limit(cluster: ClusterLab, receiver: OtlpReceiver) -> None:
    """A container takes what the node's reserve holds and more; the allocator has plenty."""
    spec = AppSpec(name="grows", cpu_limit=2, container_min_cpu=1, memory_limit=1 << 30, sigma=0.02)
    await cluster.announce(spec)

    container, lineage = await until_traced(cluster, spec.name, receiver)

    short, grant, applied, raised = lineage[0], lineage[3], lineage[6], lineage[7]
    assert len({span.trace_id for span in lineage}) == 1
    assert short.attributes["turnbuckle.app"] == spec.name
    assert short.attributes["turnbuckle.container"] == raised.attributes["turnbuckle.container"] == container.key
    assert short.attributes["turnbuckle.memory.wanted_bytes"] > 0
    assert grant.attributes["turnbuckle.memory.granted_bytes"] > 0
    assert applied.attributes["turnbuckle.node"] == "n1"
    assert raised.attributes["turnbuckle.memory.granted_bytes"] > 0
    assert raised.attributes["turnbuckle.memory.limit_bytes"] > short.attributes["turnbuckle.memory.limit_bytes"]
    assert all(span.failed is None for span in lineage)
    published = [span for span in receiver.trace(short.trace_id) if span.name == "publish evt.oom.{app}.{node}"]
    assert published, "the events are told within the trace"
    assert all(receiver.lineage(span)[-2].name == "agent.handle_oom" for span in published)
    assert {span.kind for span in published} == {"producer"}
    # CPU limits follow usage meanwhile: each step that changed one is a trace of its own.
    decided = [span for span in receiver.spans if span.name == "allocator.decide"]
    assert {span.parent_id for span in decided} == {""}
    assert all(span.attributes["turnbuckle.limit_updates"] >= 1 for span in decided)
    assert_all_declared(receiver.spans)
    services = {point.service for point in receiver.points if point.name == "turnbuckle.bus.received_messages"}
    assert services == {"turnbuckle-agent", "turnbuckle-allocator"}
